#include "tiers/offload/offload_worker.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "tiers/offload/offload_worker_fixture.h"

namespace ashlar::tiers {
namespace {

TEST_F(OffloadWorkerTest, BlocksGoDownThroughTwoWorkers) {
  for (std::uint64_t i = 0; i < 5; ++i) compute(i);
  const auto to_disk = worker(*g2_, *g3_);
  const auto to_host = worker(*g1_, *g2_, {}, [&](const SequenceHash& hash, std::uint8_t priority) {
    to_disk->offload(std::span(&hash, 1), priority);
  });
  const OffloadHandle handle = to_host->offload(names({0, 1, 2, 3, 4}), 35);
  const Result<OffloadProgress> done = handle.wait();
  ASSERT_TRUE(done) << done.error();
  EXPECT_EQ(*done, (OffloadProgress{.total = 5, .arrived = 5}));
  EXPECT_TRUE(handle.done());
  to_disk->drain();
  EXPECT_EQ(to_disk->counters().arrived, 5u);
  for (std::uint64_t i = 0; i < 5; ++i) EXPECT_TRUE(g3_->has(name(i)));
  expect_counts_exact();
}

TEST_F(OffloadWorkerTest, ThePolicyDecides) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  const auto filtered = worker(
      *g1_, *g2_,
      {.policy = all_of(
           {absent_below(), priority_at_least(10),
            any_of({used_at_least(2), [](const OffloadCandidate& block) { return block.hash == name(3); }})}),
       .uses = [](const SequenceHash& hash) { return hash == name(0) ? 2u : 0u; }});
  EXPECT_EQ(*filtered->offload(names({0, 1, 2, 3}), 10).wait(),
            (OffloadProgress{.total = 4, .arrived = 2, .filtered = 2}));
  EXPECT_EQ(*filtered->offload(names({0}), 10).wait(), (OffloadProgress{.total = 1, .filtered = 1}))
      << "it is below";
  EXPECT_EQ(*filtered->offload(names({2}), 9).wait(), (OffloadProgress{.total = 1, .filtered = 1}));
  EXPECT_EQ(filtered->counters().filtered, 4u);
}

TEST_F(OffloadWorkerTest, NothingIsCopiedTwice) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2});
  const auto to_disk = worker(*g2_, *g3_);
  gate_ = std::make_shared<Gate>();
  const OffloadHandle first = to_disk->offload(names({0, 1}), 35);
  gate_->wait_for_somebody();
  const OffloadHandle second = to_disk->offload(names({1, 0, 2}), 35);  // joins what is on its way
  gate_->open();
  EXPECT_EQ(first.wait()->arrived, 2u);
  EXPECT_EQ(second.wait()->arrived, 3u);
  EXPECT_EQ(to_disk->counters().arrived, 3u);
  EXPECT_EQ(*to_disk->offload(names({0}), 35).wait(), (OffloadProgress{.total = 1, .present = 1}));
  EXPECT_EQ(*to_disk->offload(names({9}), 35).wait(), (OffloadProgress{.total = 1, .gone = 1}));
}

TEST_F(OffloadWorkerTest, ABlockWaitsForItsPrecondition) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  const auto to_host = worker(*g1_, *g2_);
  auto [one, signal_one] = block::Fence::create();
  auto [two, signal_two] = block::Fence::create();
  const OffloadHandle handle = to_host->offload(names({0, 1}), {.after = {one, two}});
  const OffloadHandle whole = to_host->offload(names({2, 3}), {.after = {two}});
  EXPECT_EQ(*to_host->offload(names({9}), {.after = {block::Fence::passed_already()}}).wait(),
            (OffloadProgress{.total = 1, .gone = 1}));
  to_host->drain();
  EXPECT_EQ(to_host->counters().blocked, 4u);
  EXPECT_FALSE(g2_->has(name(0)) || g2_->has(name(1)));
  std::move(signal_one).signal();
  while (!g2_->has(name(0))) std::this_thread::yield();
  EXPECT_FALSE(g2_->has(name(1)));
  EXPECT_FALSE(handle.done());
  whole.cancel();
  EXPECT_EQ(whole.wait()->cancelled, 2u);
  std::move(signal_two).signal();
  EXPECT_EQ(handle.wait()->arrived, 2u);
  to_host->drain();
  EXPECT_FALSE(g2_->has(name(2)) || g2_->has(name(3)));
  EXPECT_EQ(to_host->counters().blocked, 0u);
}

TEST_F(OffloadWorkerTest, ABlockThatIsComputedAgainWhileItsNameWaitsIsNotCopiedBeforeItsBytesAreThere) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  ManualClock clock;
  const auto to_host = worker(*g1_, *g2_,
                              {.queue = {.on_deck = 1},
                               .batch_blocks = 1,
                               .full_batch = 1,
                               .bytes_per_second = g1_->block_bytes(),  // a block a second
                               .clock = &clock});
  const OffloadHandle handle = to_host->offload(names({0, 1, 2}), 35);
  while (to_host->counters().batches < 1 || clock.waiters() < 1) std::this_thread::yield();
  ASSERT_EQ(to_host->counters().queue.on_deck, 1u);
  ASSERT_EQ(to_host->counters().queue.waiting, 1u) << "by its name alone";
  g1_manager_->reset_inactive_pool();
  auto [fence, signal] = block::Fence::create();
  auto blocks = g1_manager_->allocate_blocks(1).value();
  const block::BlockId id = blocks[0].block_id();
  const auto write = [&](std::uint64_t content) {
    each_byte(*g1_->blocks(), id.value(),
              [&](std::byte& byte, std::uint64_t i) { byte = byte_of(content, i); });
  };
  write(99);
  block::BlockList<block::CompleteBlock<G1>> complete;
  complete.push_back(std::move(blocks[0]).stage(name(2), KvReady::asserted_by_caller()));
  ASSERT_TRUE(g1_manager_->register_blocks(std::move(complete), {.after = {fence}}));
  while (to_host->counters().blocked != 1) {
    clock.advance(std::chrono::seconds(1));
    std::this_thread::yield();
  }
  to_host->drain();
  EXPECT_EQ(handle.progress().arrived, 2u);
  EXPECT_FALSE(g2_->has(name(2)));
  write(2);
  std::move(signal).signal();
  while (!handle.done()) {
    clock.advance(std::chrono::seconds(1));
    std::this_thread::yield();
  }
  EXPECT_TRUE(right(*g2_, 2));
}

TEST_F(OffloadWorkerTest, APreconditionThatIsAbandonedIsAFailure) {
  compute(0);
  const auto to_host = worker(*g1_, *g2_);
  auto made = std::make_optional(block::Fence::create());
  const OffloadHandle handle = to_host->offload(names({0}), {.after = {made->first}});
  made.reset();
  const Result<OffloadProgress> done = handle.wait();
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(handle.progress().failed, 1u);
  expect_counts_exact();
}

TEST_F(OffloadWorkerTest, BytesBoundABatch) {
  for (std::uint64_t i = 0; i < 5; ++i) compute(i);
  const auto to_host = worker(*g1_, *g2_, {.batch_bytes = 2 * g1_->block_bytes()});
  EXPECT_EQ(to_host->offload(names({0, 1, 2, 3, 4}), 35).wait()->arrived, 5u);
  EXPECT_GE(to_host->counters().batches, 3u);
}

TEST_F(OffloadWorkerTest, ABudgetSpreadsBatchesOverTime) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  ManualClock clock;
  const auto to_host = worker(*g1_, *g2_,
                              {.batch_blocks = 2,
                               .full_batch = 2,
                               .bytes_per_second = g1_->block_bytes(),  // a block a second
                               .clock = &clock});
  const OffloadHandle handle = to_host->offload(names({0, 1, 2, 3}), 35);
  while (to_host->counters().batches < 1 || clock.waiters() < 1) std::this_thread::yield();
  EXPECT_EQ(handle.progress().arrived, 2u);
  clock.advance(std::chrono::milliseconds(1900));
  while (clock.waiters() < 1) std::this_thread::yield();
  EXPECT_EQ(handle.progress().arrived, 2u) << "the budget is spent";
  clock.advance(std::chrono::milliseconds(200));
  EXPECT_EQ(handle.wait()->arrived, 4u);
}

TEST_F(OffloadWorkerTest, AFailedBatchIsToldAndMayBeTriedAgain) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2});
  const auto to_disk = worker(*g2_, *g3_);
  error_ = EIO;
  const OffloadHandle handle = to_disk->offload(names({0, 1, 2}), 35);
  const Result<OffloadProgress> failed = handle.wait();
  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::kIo);
  EXPECT_EQ(handle.progress().failed, 3u);
  error_ = 0;
  EXPECT_EQ(to_disk->offload(names({0, 1, 2}), 35).wait()->arrived, 3u);
  expect_counts_exact();
}

TEST_F(OffloadWorkerTest, TheTailOfABatchGoesByTime) {
  ManualClock clock;
  compute(0);
  const auto to_host =
      worker(*g1_, *g2_, {.full_batch = 4, .max_wait = std::chrono::seconds(1), .clock = &clock});
  const OffloadHandle handle = to_host->offload(names({0}), 35);
  while (clock.waiters() == 0) std::this_thread::yield();
  EXPECT_FALSE(handle.done()) << "it waits for others to go along";
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(handle.wait()->arrived, 1u);
}

TEST_F(OffloadWorkerTest, DestructionEndsEveryCall) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2, 3});
  auto to_disk = worker(*g2_, *g3_, {.batch_blocks = 1, .full_batch = 1});
  gate_ = std::make_shared<Gate>();
  const OffloadHandle handle = to_disk->offload(names({0, 1, 2, 3}), 35);
  gate_->wait_for_somebody();
  std::thread opener([&] { gate_->open(); });
  to_disk.reset();
  opener.join();
  const Result<OffloadProgress> done = handle.wait();
  ASSERT_TRUE(done);
  EXPECT_EQ(done->ended(), 4u);
  EXPECT_GE(done->arrived, 1u);
  handle.cancel();
  expect_counts_exact();
}

TEST_F(OffloadWorkerTest, OptionsAreChecked) {
  const auto nowhere = [](std::vector<block::Hold>, const MoveOptions&) { return OffloadWorker::Finish(); };
  EXPECT_FALSE(OffloadWorker::create(*g1_, *g2_, nowhere, {.batch_blocks = 0}));
  EXPECT_FALSE(OffloadWorker::create(*g1_, *g2_, nowhere, {.batch_blocks = 4, .full_batch = 5}));
  EXPECT_FALSE(OffloadWorker::create(*g1_, *g2_, nowhere, {.policy = nullptr}));
  EXPECT_FALSE(OffloadWorker::create(*g1_, *g2_, nowhere, {.batch_bytes = 0}));
}

// Threads offer, cancel and use blocks while workers run; afterwards everything below is right and all counts
// are exact.
TEST_F(OffloadWorkerTest, ManyThreadsAtOnce) {
  for (std::uint64_t i = 0; i < kG1Blocks; ++i) compute(i);
  {
    const auto to_disk = worker(*g2_, *g3_, {.policy = absent_below()});
    const auto to_host = worker(*g1_, *g2_, {}, [&](const SequenceHash& hash, std::uint8_t priority) {
      to_disk->offload(std::span(&hash, 1), priority);
    });
    std::vector<std::thread> threads;
    for (std::uint64_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        Random random(t);
        for (int i = 0; i < 60; ++i) {
          const std::vector<SequenceHash> some = names({random.below(kG1Blocks), random.below(kG1Blocks)});
          const OffloadHandle handle = to_host->offload(some, static_cast<std::uint8_t>(random.below(100)));
          if (random.below(4) == 0) handle.cancel();
          if (random.below(3) == 0) {
            const auto used = g1_manager_->match_blocks(std::span(some).first(1));
          }
          const OffloadProgress ended = handle.wait().value_or(OffloadProgress{.total = 2, .failed = 2});
          EXPECT_EQ(ended.ended(), 2u);
          if (random.below(8) == 0) to_host->check_invariants();
        }
      });
    for (std::thread& thread : threads) thread.join();
    to_host->drain();
    to_disk->drain();
    to_host->check_invariants();
    to_disk->check_invariants();
  }
  for (std::uint64_t i = 0; i < kG1Blocks; ++i)
    if (g2_->has(name(i))) {
      EXPECT_TRUE(right(*g2_, i));
    }
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
