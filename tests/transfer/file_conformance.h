// What executors over files promise when files misbehave. Cases as in executor_conformance.h; the far side is
// a file.
#pragma once

#include <sys/resource.h>

#include <cerrno>

#include "transfer/executor_conformance.h"

namespace ashlar::transfer {

class FileFaultTest : public ExecutorTest {
 protected:
  // Blocks on a file whose operations go as `script` says, and memory with known bytes beside it.
  struct Setting {
    std::shared_ptr<ScriptedFaults> faults;
    std::unique_ptr<storage::Allocator> allocator;
    std::shared_ptr<const BlockSet> memory;
    std::shared_ptr<const BlockSet> file;
  };
  Setting set_up(ScriptedFaults::Script script,
                 const layout::AxisOrder& order = layout::order::kFullyContiguousNhd) {
    Setting setting;
    setting.faults = std::make_shared<ScriptedFaults>(std::move(script));
    setting.allocator = GetParam().far(folder_, setting.faults);
    layout::LayoutConfig config = small_shape(6, 3, 4);
    config.head_dim = 1024;
    config.inner_dim = 4096;
    config.alignment = 4096;
    setting.memory = near(layout::Layout::create(config, order).value());
    setting.file =
        BlockSet::allocate(layout::Layout::create(config, layout::order::kFullyContiguousNhd).value(),
                           *setting.allocator)
            .value();
    return setting;
  }
  TransferResult write(Executor& executor, const Setting& setting) {
    return executor.submit({.plan = plan(setting.memory, from_, setting.file, to_).value()}).value().wait();
  }
  TransferResult read(Executor& executor, const Setting& setting) {
    return executor.submit({.plan = plan(setting.file, to_, setting.memory, from_).value()}).value().wait();
  }
};

TEST_P(FileFaultTest, ShortOperationsAreTakenUpWhereTheyEnded) {
  const std::unique_ptr<Executor> executor = make();
  Random random(3);
  Mutex mu;
  for (const layout::AxisOrder& order :
       {layout::order::kFullyContiguousNhd, layout::order::kBlockSecondHnd}) {
    const Setting setting = set_up(
        [&](storage::IoDirection, std::uint64_t, std::uint64_t bytes) {
          const MutexLock lock(mu);
          return storage::IoVerdict{.at_most = 1 + random.below(bytes)};
        },
        order);
    expect_move(*executor, setting.memory, from_, setting.file, to_);
    expect_move(*executor, setting.file, to_, setting.memory, from_);
    BlockImage(*setting.memory, 7).store(*setting.memory);
    const TransferResult again = write(*executor, setting);
    ASSERT_TRUE(again);
    EXPECT_GT(again->stats.continued, 0u);
  }
}

TEST_P(FileFaultTest, AFailedOperationFailsTheTransferAndLeavesTheRestAlone) {
  for (const auto& [error, code, says] : {std::tuple{EIO, ErrorCode::kIo, "Input/output error"},
                                          {ENOSPC, ErrorCode::kCapacity, "No space left"},
                                          {EDQUOT, ErrorCode::kCapacity, "quota"}})
    for (const bool writes : {true, false})
      for (const std::uint64_t at : {0u, 2u}) {
        std::atomic<std::uint64_t> seen{0};
        const std::unique_ptr<Executor> executor = make();
        const Setting setting = set_up([&](storage::IoDirection, std::uint64_t, std::uint64_t) {
          return storage::IoVerdict{.error = seen++ == at ? error : 0};
        });
        BlockImage source(writes ? *setting.memory : *setting.file, 1);
        source.number(writes ? *setting.memory : *setting.file);
        source.store(writes ? *setting.memory : *setting.file);
        const BlockSet& target = writes ? *setting.file : *setting.memory;
        BlockImage(target, 0xEE).store(target);
        auto owned = std::make_shared<int>(0);
        const std::weak_ptr<int> watched = owned;
        const Transfer transfer =
            executor
                ->submit({.plan = writes ? plan(setting.memory, from_, setting.file, to_).value()
                                         : plan(setting.file, to_, setting.memory, from_).value(),
                          .owned = std::move(owned)})
                .value();
        const TransferResult result = transfer.wait();
        ASSERT_FALSE(result);
        EXPECT_EQ(result.error().code(), code) << result.error();
        EXPECT_THAT(result.error().message(), ::testing::HasSubstr(says));
        EXPECT_THAT(result.error().message(), ::testing::HasSubstr(folder_.file("far")));
        EXPECT_TRUE(watched.expired());
        EXPECT_TRUE(BlockImage::of(writes ? *setting.memory : *setting.file) == source)
            << "the source is intact";
        // Blocks that were not named are intact too.
        BlockImage now = BlockImage::of(target);
        const layout::Layout& layout = target.planes()[0].layout;
        for (std::uint32_t block = 0; block < 6; ++block)
          if (std::ranges::find(writes ? to_ : from_, block) == (writes ? to_ : from_).end()) {
            EXPECT_EQ(*now.at(0, layout.place({.block = block})), 0xEE);
          }
        EXPECT_EQ(executor->counters().failed, 1u);
        EXPECT_EQ(executor->counters().in_flight, 0u);
        // The executor goes on.
        const TransferResult next = writes ? write(*executor, setting) : read(*executor, setting);
        EXPECT_TRUE(next);
      }
}

TEST_P(FileFaultTest, CancelStopsBetweenOperations) {
  const auto gate = std::make_shared<Gate>();
  const std::unique_ptr<Executor> executor = make({.threads = 1});
  const Setting setting = set_up([&](storage::IoDirection, std::uint64_t, std::uint64_t) {
    gate->pass();
    return storage::IoVerdict{};
  });
  const Transfer transfer =
      executor->submit({.plan = plan(setting.memory, from_, setting.file, to_).value()}).value();
  gate->wait_for_somebody();
  transfer.cancel();
  EXPECT_FALSE(transfer.done()) << "an operation is still out";
  gate->open();
  const TransferResult result = transfer.wait_for_end();
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kCancelled);
  EXPECT_LT(transfer.bytes_done(), transfer.bytes_total());
}

// One that was cancelled leaves at once, though a long one runs before it.
TEST_P(FileFaultTest, WhatWasCancelledDoesNotWaitBehindOthers) {
  const std::unique_ptr<Executor> executor = make({.threads = 1});
  std::atomic<std::uint64_t> seen{0};
  std::atomic<bool> left_early{false};
  std::optional<Transfer> second;
  const auto ready = std::make_shared<Gate>();
  const Setting setting = set_up([&](storage::IoDirection, std::uint64_t, std::uint64_t bytes) {
    const std::uint64_t number = seen++;
    if (number == 0) ready->pass();
    if (number == 2) second->cancel();
    if (second->done()) left_early = true;
    return storage::IoVerdict{.at_most = std::max<std::uint64_t>(bytes / 2 / 4096 * 4096, 4096)};
  });
  const Transfer first =
      executor->submit({.plan = plan(setting.memory, from_, setting.file, to_).value()}).value();
  ready->wait_for_somebody();
  const auto other = far(large());
  second = executor->submit({.plan = large_plan(near(large()), other)}).value();
  ready->open();
  ASSERT_TRUE(first.wait());
  EXPECT_TRUE(left_early);
  EXPECT_FALSE(second->wait_for_end());
}

TEST_P(FileFaultTest, AFileThatEndsEarlyIsAnError) {
  const std::unique_ptr<Executor> executor = make();
  const Setting setting = set_up([](auto...) { return storage::IoVerdict{}; });
  ASSERT_EQ(ftruncate(setting.file->planes()[0].regions[0].storage->file()->buffered, 10000), 0);
  const TransferResult result = read(*executor, setting);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kIo);
  EXPECT_THAT(result.error().message(), ::testing::HasSubstr("the file ends there"));
}

// The kernel itself refuses, in the middle of the file: a short write, then EFBIG.
TEST_P(FileFaultTest, ALimitOfTheProcessIsNoRoom) {
  const std::unique_ptr<Executor> executor = make();
  const Setting setting = set_up([](auto...) { return storage::IoVerdict{}; });
  const int file = setting.file->planes()[0].regions[0].storage->file()->buffered;
  ASSERT_EQ(ftruncate(file, 0), 0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{setting.file->block_bytes() + 5000, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const TransferResult result = write(*executor, setting);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::kCapacity) << result.error();
}

TEST_P(FileFaultTest, AlignedBlocksGoPastThePageCache) {
  const std::unique_ptr<Executor> executor = make();
  const Setting setting = set_up([](auto...) { return storage::IoVerdict{}; });
  const bool direct = setting.file->planes()[0].regions[0].storage->file()->direct >= 0;
  const TransferResult result = write(*executor, setting);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->stats.direct_bytes, direct ? result->stats.bytes : 0);
  EXPECT_EQ(result->stats.staged_bytes, 0u);
}

TEST_P(FileFaultTest, ScatteredMemoryIsPutTogetherBeforeItIsWritten) {
  const std::unique_ptr<Executor> executor = make();
  const Setting setting =
      set_up([](auto...) { return storage::IoVerdict{}; }, layout::order::kBlockSecondHnd);
  const TransferResult result = write(*executor, setting);
  ASSERT_TRUE(result);
  EXPECT_EQ(result->stats.staged_bytes, result->stats.bytes);
  EXPECT_EQ(result->stats.operations, 3u) << "one per block";
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(FileFaultTest);

}  // namespace ashlar::transfer
