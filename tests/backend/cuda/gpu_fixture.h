// What the tests on a GPU share: executors that take one way only, allocators, transfers against the model.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"
#include "ashlar/storage/allocator.h"
#include "backend/cuda/block_model.h"

namespace ashlar::backend::cuda {

inline constexpr std::uint64_t kFar = std::uint64_t{1} << 40;
inline constexpr SwitchPoints kAlwaysEngines = {1, 1, 1, kFar};
inline constexpr SwitchPoints kAlwaysKernel = {kFar, kFar, kFar, kFar};
inline constexpr SwitchPoints kAlwaysPacked = {kFar, kFar, kFar, 1};

// Blocks that move, and where to.
inline const std::vector<std::uint32_t> kFrom = {4, 0, 5, 2};
inline const std::vector<std::uint32_t> kTo = {1, 2, 5, 3};

class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const Result<int> count = device_count(); !count) GTEST_SKIP() << count.error();
    const auto locker = CudaPageLocker::create();
    ASSERT_TRUE(locker) << locker.error();
    pinned_ = std::make_unique<storage::PinnedAllocator>(*locker);
  }

  static std::unique_ptr<CudaExecutor> make(const CudaOptions& options) {
    auto made = CudaExecutor::create(options);
    EXPECT_TRUE(made) << made.error();
    return *std::move(made);
  }

  // Moves blocks and compares every byte of the destination with what the model says.
  static transfer::TransferStats move(CudaExecutor& executor,
                                      const std::shared_ptr<const transfer::BlockSet>& from,
                                      const std::vector<std::uint32_t>& from_blocks,
                                      const std::shared_ptr<const transfer::BlockSet>& to,
                                      const std::vector<std::uint32_t>& to_blocks,
                                      const transfer::PlanSelection& selection = {}) {
    Mirror source(from);
    Mirror expected(to);
    Mirror seen(to);
    source.scramble(from_blocks.size() + 11);
    source.put();
    expected.put();
    copy_elements(source, from_blocks, expected, to_blocks, selection);
    const auto plan = transfer::plan(from, from_blocks, to, to_blocks, selection);
    EXPECT_TRUE(plan) << plan.error();
    const auto running = executor.submit({.plan = *plan});
    EXPECT_TRUE(running) << running.error();
    const transfer::TransferResult result = running->wait();
    EXPECT_TRUE(result) << result.error();
    EXPECT_TRUE(running->done());
    seen.fetch();
    EXPECT_TRUE(seen == expected);
    Mirror after(from);
    after.fetch();
    EXPECT_TRUE(after == source) << "the source changed";
    if (!result) return {};
    EXPECT_EQ(result->stats.bytes, plan->bytes());
    EXPECT_GT(result->stats.operations, 0u);
    return result->stats;
  }

  DeviceAllocator device_;
  storage::SystemAllocator system_;
  std::unique_ptr<storage::PinnedAllocator> pinned_;
};

}  // namespace ashlar::backend::cuda
