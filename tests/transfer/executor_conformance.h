// What every executor promises, as tests over cases. A file that includes this names its cases and
// instantiates ExecutorTest with them.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/random.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/executor.h"
#include "support/block_images.h"
#include "support/gates.h"
#include "support/rounds.h"
#include "support/scratch_folder.h"

namespace ashlar::transfer {

// A layout meets every so many of the others.
inline std::size_t layout_step() {
  return testing::few_shapes() ? 12 : 4;
}

struct ExecutorSettings {
  std::uint32_t threads = 2;
  QueueLimits limits = {};
  Clock* clock = nullptr;
};

struct ExecutorCase {
  std::string name;
  std::function<std::unique_ptr<Executor>(const ExecutorSettings&)> executor;
  // Storage of each side; `faults` reach the files of the second.
  std::function<std::unique_ptr<storage::Allocator>(const ScratchFolder&)> near;
  std::function<std::unique_ptr<storage::Allocator>(const ScratchFolder&, std::shared_ptr<storage::IoFaults>)>
      far;
};

inline void PrintTo(const ExecutorCase& one, std::ostream* out) {
  *out << one.name;
}

class ExecutorTest : public ::testing::TestWithParam<ExecutorCase> {
 protected:
  void SetUp() override {
    if (make() == nullptr) GTEST_SKIP() << "this machine does not have what the executor needs";
  }

  std::shared_ptr<const BlockSet> near(std::span<const PlaneShape> shapes) {
    return BlockSet::allocate(shapes, *near_).value();
  }
  std::shared_ptr<const BlockSet> near(const layout::Layout& layout) {
    return BlockSet::allocate(layout, *near_).value();
  }
  std::shared_ptr<const BlockSet> far(std::span<const PlaneShape> shapes) {
    return BlockSet::allocate(shapes, *far_).value();
  }
  std::shared_ptr<const BlockSet> far(const layout::Layout& layout) {
    return BlockSet::allocate(layout, *far_).value();
  }

  // Moves blocks and compares every byte of both sides with the model.
  void expect_move(Executor& executor, const std::shared_ptr<const BlockSet>& from,
                   const std::vector<std::uint32_t>& from_blocks, const std::shared_ptr<const BlockSet>& to,
                   const std::vector<std::uint32_t>& to_blocks, const PlanSelection& selection = {}) {
    BlockImage source(*from, 0x11);
    source.number(*from);
    source.store(*from);
    BlockImage expected(*to, 0xEE);
    expected.store(*to);
    copy_naively(*from, source, from_blocks, *to, expected, to_blocks, selection);
    Result<TransferPlan> planned = plan(from, from_blocks, to, to_blocks, selection);
    ASSERT_TRUE(planned) << planned.error();
    const std::uint64_t bytes = planned->bytes();
    const Result<Transfer> transfer = executor.submit({.plan = *std::move(planned)});
    ASSERT_TRUE(transfer) << transfer.error();
    const TransferResult done = transfer->wait();
    ASSERT_TRUE(done) << done.error();
    EXPECT_EQ(done->stats.bytes, bytes);
    EXPECT_EQ(transfer->bytes_done(), bytes);
    ASSERT_TRUE(BlockImage::of(*to) == expected);
    ASSERT_TRUE(BlockImage::of(*from) == source);
  }

  ScratchFolder folder_;
  std::unique_ptr<storage::Allocator> near_ = GetParam().near(folder_);
  std::unique_ptr<storage::Allocator> far_ = GetParam().far(folder_, nullptr);
  std::vector<std::uint32_t> from_ = {4, 0, 3};
  std::vector<std::uint32_t> to_ = {1, 2, 5};

  std::unique_ptr<Executor> make(const ExecutorSettings& settings = {}) {
    return GetParam().executor(settings);
  }
  layout::Layout plain() {
    return layout::Layout::create(small_shape(6, 3, 4), layout::order::kFullyContiguousNhd).value();
  }
  // Large enough that no executor does it inside submit().
  layout::Layout large() {
    layout::LayoutConfig config = small_shape(6, 3, 4);
    config.head_dim = 4096;
    config.inner_dim = 4 * 4096;
    return layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
  }
  TransferPlan large_plan(const std::shared_ptr<const BlockSet>& from,
                          const std::shared_ptr<const BlockSet>& to) {
    return plan(from, from_, to, to_).value();
  }
  // Submits a transfer whose end holds the executor's thread at the gate.
  Transfer hold(Executor& executor, const std::shared_ptr<Gate>& gate) {
    const auto from = near(large());
    const auto to = far(large());
    const Transfer transfer = executor
                                  .submit({.plan = large_plan(from, to),
                                           .on_done = [gate](const TransferResult&) { gate->pass(); }})
                                  .value();
    gate->wait_for_somebody();
    return transfer;
  }
};

TEST_P(ExecutorTest, MovesFromAndToEveryLayoutAndTouchesNothingElse) {
  const std::unique_ptr<Executor> executor = make();
  const std::vector<layout::Layout> layouts = every_layout(small_shape(6, 3, 4));
  std::vector<std::shared_ptr<const BlockSet>> nears;
  std::vector<std::shared_ptr<const BlockSet>> fars;
  for (const layout::Layout& one : layouts) {
    nears.push_back(near(one));
    fars.push_back(far(one));
  }
  // Every layout on both sides, against a part of the others, there and back.
  for (std::size_t i = 0; i < nears.size(); ++i)
    for (std::size_t j = i % layout_step(); j < fars.size(); j += layout_step()) {
      expect_move(*executor, nears[i], from_, fars[j], to_);
      expect_move(*executor, fars[j], to_, nears[i], from_);
      if (HasFatalFailure()) return;
    }
}

TEST_P(ExecutorTest, MovesWithSectorAlignment) {
  const std::unique_ptr<Executor> executor = make();
  layout::LayoutConfig config = small_shape(6, 3, 4);
  config.head_dim = 512;
  config.inner_dim = 2048;
  const std::vector<layout::Layout> layouts = every_layout(config, 4096);
  for (std::size_t i = 0; i < layouts.size(); i += layout_step() / 4) {
    const auto from = near(layouts[i]);
    const auto to = far(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value());
    expect_move(*executor, from, from_, to, to_);
    expect_move(*executor, to, to_, from, from_);
    if (HasFatalFailure()) return;
  }
}

TEST_P(ExecutorTest, MovesLayersAndHeadsAlone) {
  const std::unique_ptr<Executor> executor = make();
  const layout::LayoutConfig config = small_shape(6, 4, 4);
  const auto from = near(layout::Layout::create(config, layout::order::kLbhnc).value());
  for (const layout::Layout& one : every_layout(config)) {
    const auto to = far(one);
    for (const layout::Range layers : {layout::Range{0, 1}, layout::Range{1, 2}})
      for (const layout::Range heads : {layout::Range{2, 1}, layout::Range{1, 3}})
        expect_move(*executor, from, from_, to, to_, {layers, heads});
    if (HasFatalFailure()) return;
  }
}

TEST_P(ExecutorTest, MovesBetweenRanksOfDifferentDegree) {
  const std::unique_ptr<Executor> executor = make();
  for (const std::uint32_t ranks : {1u, 4u, 8u, 16u}) {
    const layout::Shard narrow = layout::Shard::tensor_rank(ranks - 1, ranks, 8, {0, 3}).value();
    const layout::Shard wide = layout::Shard::tensor_rank(1, 2, 8, {0, 3}).value();
    const auto set = [&](bool here, const layout::Shard& shard, const layout::AxisOrder& order) {
      const PlaneShape shape{layout::Layout::create(small_shape(6, 3, shard.heads.count), order).value(),
                             shard};
      return here ? near(std::span(&shape, 1)) : far(std::span(&shape, 1));
    };
    const auto a = set(true, narrow, layout::order::kBlockSecondNhd);
    const auto b = set(false, wide, layout::order::kUniversalTp);
    expect_move(*executor, a, from_, b, to_);
    expect_move(*executor, b, to_, a, from_);
    if (HasFatalFailure()) return;
  }
}

// MLA: one joint vector for all heads, which every rank has.
TEST_P(ExecutorTest, MovesJointVectors) {
  const std::unique_ptr<Executor> executor = make();
  layout::LayoutConfig config = small_shape(6, 3, 1);
  config.outer_dim = 1;
  config.head_dim = 576;
  config.inner_dim = 576;
  for (const layout::Layout& one : every_layout(config)) {
    const auto from = near(one);
    const auto to = far(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value());
    expect_move(*executor, from, from_, to, to_);
    expect_move(*executor, to, to_, from, from_, {layout::Range{1, 1}, {}});
    if (HasFatalFailure()) return;
  }
}

TEST_P(ExecutorTest, ScalesTravelWithTheirBlocks) {
  const std::unique_ptr<Executor> executor = make();
  layout::LayoutConfig values = small_shape(6, 3, 4);
  values.dtype = layout::Dtype::kF8E4M3;
  layout::LayoutConfig scales = values;
  scales.dtype = layout::Dtype::kF32;
  scales.head_dim = 1;
  scales.inner_dim = 4;
  const auto shapes = [&](const layout::AxisOrder& order) {
    return std::vector<PlaneShape>{PlaneShape::whole(layout::Layout::create(values, order).value()),
                                   PlaneShape::whole(layout::Layout::create(scales, order).value())};
  };
  const auto from = near(shapes(layout::order::kBlockFirstHnd));
  const auto to = far(shapes(layout::order::kFullyContiguousNhd));
  expect_move(*executor, from, from_, to, to_);
  expect_move(*executor, to, to_, from, from_, {layout::Range{1, 2}, layout::Range{2, 2}});
}

TEST_P(ExecutorTest, MovesLongRunsOfNeighbouringBlocksAndManyPieces) {
  const std::unique_ptr<Executor> executor = make({.threads = 3});
  layout::LayoutConfig config = small_shape(600, 2, 4);
  config.head_dim = 64;
  config.inner_dim = 256;
  for (const layout::AxisOrder& order :
       {layout::order::kFullyContiguousNhd, layout::order::kBlockSecondNhd, layout::order::kUniversalTp}) {
    const auto from = near(layout::Layout::create(config, order).value());
    const auto to = far(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value());
    std::vector<std::uint32_t> sources(testing::few_shapes() ? 120 : 500);
    std::iota(sources.begin(), sources.end(), 0u);
    std::vector<std::uint32_t> targets(sources);
    for (std::uint32_t& block : targets) block += 37;
    std::swap(targets[20], targets[100]);
    expect_move(*executor, from, sources, to, targets);
    expect_move(*executor, to, targets, from, sources);
  }
}

TEST_P(ExecutorTest, NoBlocksAreDoneAtOnce) {
  const std::unique_ptr<Executor> executor = make();
  const Result<Transfer> transfer =
      executor->submit({.plan = plan(near(plain()), {}, far(plain()), {}).value()});
  ASSERT_TRUE(transfer);
  const TransferResult done = transfer->wait();
  ASSERT_TRUE(done) << done.error();
  EXPECT_EQ(done->stats.bytes, 0u);
}

TEST_P(ExecutorTest, AnEmptyPlanIsRefused) {
  const Result<Transfer> transfer = make()->submit({});
  ASSERT_FALSE(transfer);
  EXPECT_EQ(transfer.error().code(), ErrorCode::kInvalidArgument);
}

TEST_P(ExecutorTest, OwnsWhatItWasGivenUntilTheEnd) {
  const auto gate = std::make_shared<Gate>();
  const std::unique_ptr<Executor> executor = make({.threads = 1});
  hold(*executor, gate);
  auto from = near(large());
  auto to = far(large());
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  const std::weak_ptr<const BlockSet> watched_from = from;
  const std::weak_ptr<const BlockSet> watched_to = to;
  std::atomic<bool> released_in_callback{false};
  const Transfer transfer =
      executor
          ->submit({.plan = large_plan(from, to),
                    .owned = std::move(owned),
                    .on_done = [&](const TransferResult&) { released_in_callback = watched.expired(); }})
          .value();
  from.reset();
  to.reset();
  EXPECT_FALSE(watched.expired());
  EXPECT_FALSE(watched_from.expired() || watched_to.expired());
  EXPECT_FALSE(transfer.done());
  EXPECT_FALSE(transfer.fence().passed());
  EXPECT_EQ(transfer.bytes_done(), 0u);
  gate->open();
  EXPECT_TRUE(transfer.wait());
  EXPECT_TRUE(watched.expired() && watched_from.expired() && watched_to.expired());
  EXPECT_TRUE(transfer.fence().passed());
  std::atomic<int> calls{0};
  transfer.on_done([&](const TransferResult& result) { calls += result ? 1 : 100; });
  EXPECT_EQ(calls, 1);
  while (!released_in_callback) std::this_thread::yield();
}

TEST_P(ExecutorTest, CancelKeepsWhatHasNotStartedFromStarting) {
  const auto gate = std::make_shared<Gate>();
  const std::unique_ptr<Executor> executor = make({.threads = 1});
  hold(*executor, gate);
  const auto from = near(large());
  const auto to = far(large());
  BlockImage source(*from, 0);
  source.number(*from);
  source.store(*from);
  const BlockImage before(*to, 0xEE);
  before.store(*to);
  const Transfer transfer = executor->submit({.plan = large_plan(from, to)}).value();
  transfer.cancel();
  const TransferResult early = transfer.wait();
  ASSERT_FALSE(early) << "the waiting ends";
  EXPECT_EQ(early.error().code(), ErrorCode::kCancelled);
  EXPECT_FALSE(transfer.done());
  gate->open();
  const TransferResult result = transfer.wait_for_end();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
  EXPECT_TRUE(transfer.fence().failed());
  EXPECT_TRUE(BlockImage::of(*to) == before);
  EXPECT_TRUE(BlockImage::of(*from) == source);
  EXPECT_EQ(executor->counters().cancelled, 1u);
  EXPECT_EQ(executor->counters().in_flight_bytes, 0u);
}

TEST_P(ExecutorTest, ADeadlineEndsTheWaitingAndThenTheTransfer) {
  ManualClock clock;
  const auto gate = std::make_shared<Gate>();
  const std::unique_ptr<Executor> executor = make({.threads = 1, .clock = &clock});
  hold(*executor, gate);
  const auto from = near(large());
  const auto to = far(large());
  const BlockImage before(*to, 0xEE);
  before.store(*to);
  auto owned = std::make_shared<int>(1);
  const std::weak_ptr<int> watched = owned;
  const Transfer transfer = executor
                                ->submit({.plan = large_plan(from, to),
                                          .owned = std::move(owned),
                                          .deadline = clock.now() + std::chrono::seconds(5)})
                                .value();
  const TransferResult early = transfer.wait_until(clock.now());
  ASSERT_FALSE(early);
  EXPECT_EQ(early.error().code(), ErrorCode::kTimeout);
  clock.advance(std::chrono::seconds(6));
  const TransferResult late = transfer.wait();
  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::kTimeout);
  EXPECT_FALSE(watched.expired()) << "the waiting ended, not the transfer";
  gate->open();
  const TransferResult end = transfer.wait_for_end();
  ASSERT_FALSE(end);
  EXPECT_EQ(end.error().code(), ErrorCode::kTimeout);
  EXPECT_TRUE(watched.expired());
  EXPECT_TRUE(BlockImage::of(*to) == before);
  const Result<Transfer> too_late =
      executor->submit({.plan = large_plan(from, to), .deadline = clock.now() - std::chrono::seconds(1)});
  ASSERT_FALSE(too_late);
  EXPECT_EQ(too_late.error().code(), ErrorCode::kTimeout);
}

TEST_P(ExecutorTest, AFullQueueRefusesOrWaits) {
  ManualClock clock;
  const auto gate = std::make_shared<Gate>();
  const std::unique_ptr<Executor> executor =
      make({.threads = 1, .limits = {.transfers = 2, .bytes = std::uint64_t{1} << 40}, .clock = &clock});
  hold(*executor, gate);
  const auto from = near(large());
  const auto to = far(large());
  const auto other = far(large());
  const Transfer second = executor->submit({.plan = large_plan(from, to)}).value();
  const Transfer third = executor->submit({.plan = large_plan(from, other)}).value();
  const Result<Transfer> refused = executor->submit({.plan = large_plan(from, to), .wait_for_room = false});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("2 transfers"));
  EXPECT_EQ(executor->counters().refused, 1u);
  std::optional<Result<Transfer>> late;
  std::thread waiter([&] {
    late =
        executor->submit({.plan = large_plan(from, to), .deadline = clock.now() + std::chrono::seconds(1)});
  });
  while (clock.waiters() == 0) std::this_thread::yield();
  clock.advance(std::chrono::seconds(2));
  waiter.join();
  ASSERT_FALSE(*late);
  EXPECT_EQ(late->error().code(), ErrorCode::kTimeout);
  std::thread patient([&] { EXPECT_TRUE(executor->submit({.plan = large_plan(from, to)}).value().wait()); });
  gate->open();
  patient.join();
  EXPECT_TRUE(second.wait());
  EXPECT_TRUE(third.wait());
  EXPECT_EQ(executor->counters().completed, 4u);
}

TEST_P(ExecutorTest, ATransferLargerThanTheLimitRunsAlone) {
  const std::unique_ptr<Executor> executor = make({.limits = {.transfers = 8, .bytes = 1}});
  const auto from = near(large());
  const auto to = far(large());
  const Transfer first = executor->submit({.plan = large_plan(from, to)}).value();
  const Transfer second = executor->submit({.plan = large_plan(from, to)}).value();
  EXPECT_EQ(first.bytes_done(), first.bytes_total()) << "the second came in only when the first had left";
  EXPECT_TRUE(second.wait());
}

TEST_P(ExecutorTest, DestructionCancelsWhatWaitsAndEndsWhatRuns) {
  const auto gate = std::make_shared<Gate>();
  std::unique_ptr<Executor> executor = make({.threads = 1});
  const Transfer first = hold(*executor, gate);
  const auto from = near(large());
  const auto to = far(large());
  const Transfer second = executor->submit({.plan = large_plan(from, to)}).value();
  std::thread opener([&] { gate->open(); });
  executor.reset();
  opener.join();
  EXPECT_TRUE(first.done());
  ASSERT_TRUE(second.done());
  const TransferResult result = second.wait();
  if (!result) {
    EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
  }
}

TEST_P(ExecutorTest, WhoWaitsForRoomIsSentAwayWhenTheExecutorGoes) {
  const auto gate = std::make_shared<Gate>();
  ManualClock clock;
  std::unique_ptr<Executor> executor = make({.threads = 1, .limits = {.transfers = 1}, .clock = &clock});
  hold(*executor, gate);
  const auto from = near(large());
  const auto to = far(large());
  const Transfer second = executor->submit({.plan = large_plan(from, to)}).value();
  std::vector<std::thread> waiters;
  std::atomic<int> sent_away{0};
  Executor* raw = executor.get();
  const auto other = far(large());
  for (int i = 0; i < 3; ++i)
    waiters.emplace_back([&] {
      const Result<Transfer> refused =
          raw->submit({.plan = large_plan(from, other), .deadline = clock.now() + std::chrono::hours(1)});
      if (!refused && refused.error().code() == ErrorCode::kCancelled) ++sent_away;
      if (refused) {
        EXPECT_FALSE(refused->wait_for_end());
      }
    });
  std::thread opener([&] {
    while (sent_away < 3) std::this_thread::yield();
    gate->open();
  });
  // The line must have formed before the executor goes.
  while (clock.waiters() < 3) std::this_thread::yield();
  executor.reset();
  opener.join();
  for (std::thread& waiter : waiters) waiter.join();
  EXPECT_EQ(sent_away, 3);
  EXPECT_TRUE(second.done());
}

TEST_P(ExecutorTest, CallbacksMaySubmitAndAreNotMadeToWait) {
  const std::unique_ptr<Executor> executor = make({.threads = 1, .limits = {.transfers = 1}});
  const auto from = near(large());
  const auto to = far(large());
  const auto other = far(large());
  std::atomic<int> answers{0};
  const Transfer first = executor
                             ->submit({.plan = large_plan(from, to),
                                       .on_done =
                                           [&](const TransferResult&) {
                                             const Result<Transfer> next =
                                                 executor->submit({.plan = large_plan(from, other)});
                                             if (!next) {
                                               EXPECT_EQ(next.error().code(), ErrorCode::kCapacity);
                                             }
                                             ++answers;
                                           }})
                             .value();
  // Somebody stands in line before the callback comes.
  const Result<Transfer> second = executor->submit({.plan = large_plan(from, other)});
  ASSERT_TRUE(second);
  while (answers == 0) std::this_thread::yield();
  EXPECT_TRUE(second->wait_for_end());
}

TEST_P(ExecutorTest, WhoHearsOfTheEndFindsTheFencePassed) {
  const std::unique_ptr<Executor> executor = make();
  const auto from = near(plain());
  const auto to = far(plain());
  for (int i = 0; i < 200; ++i) {
    const Transfer transfer = executor->submit({.plan = plan(from, from_, to, to_).value()}).value();
    ASSERT_TRUE(transfer.wait());
    ASSERT_TRUE(transfer.fence().passed());
  }
}

TEST_P(ExecutorTest, ManyThreadsMoveAtTheSameTime) {
  const std::unique_ptr<Executor> executor = make({.threads = 2, .limits = {.transfers = 5}});
  layout::LayoutConfig config = small_shape(64, 2, 4);
  config.head_dim = 256;
  config.inner_dim = 1024;
  const layout::Layout layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
  const auto from = near(layout::Layout::create(config, layout::order::kBlockSecondHnd).value());
  const auto to = far(layout);
  const auto back = near(layout::Layout::create(config, layout::order::kBlockSecondHnd).value());
  BlockImage source(*from, 0x11);
  source.number(*from);
  source.store(*from);
  BlockImage(*back, 0x11).store(*back);
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (std::uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (std::uint32_t i = 0; i < 16; i += 2) {
        const std::vector<std::uint32_t> blocks = {t * 16 + i, t * 16 + i + 1};
        const Transfer out = executor->submit({.plan = plan(from, blocks, to, blocks).value()}).value();
        if (!out.wait()) ++failures;
        const Transfer in = executor->submit({.plan = plan(to, blocks, back, blocks).value()}).value();
        if (!in.wait()) ++failures;
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(failures, 0);
  EXPECT_TRUE(BlockImage::of(*back) == source);
  EXPECT_EQ(executor->counters().completed, 64u);
  EXPECT_EQ(executor->counters().in_flight, 0u);
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExecutorTest);

}  // namespace ashlar::transfer
