// What holds without a GPU: nothing crashes, and everybody says what is missing.
#include <gtest/gtest.h>

#include "ashlar/backend/cuda/cuda_executor.h"
#include "ashlar/backend/cuda/cuda_page_locker.h"
#include "ashlar/backend/cuda/device.h"
#include "ashlar/backend/cuda/device_storage.h"

namespace ashlar::backend::cuda {
namespace {

TEST(NoDevice, EverythingSaysThatThereIsNone) {
  const Result<int> count = device_count();
  if (count) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(count.error().code(), ErrorCode::kUnavailable);
  EXPECT_NE(count.error().message().find("no CUDA device can be used: "), std::string::npos) << count.error();
  EXPECT_NE(count.error().message().find("(cudaError"), std::string::npos) << count.error();
  const auto executor = CudaExecutor::create();
  ASSERT_FALSE(executor);
  EXPECT_EQ(executor.error(), count.error());
  const auto storage = DeviceStorage::create(0, 4096);
  ASSERT_FALSE(storage);
  EXPECT_EQ(storage.error(), count.error());
  const auto locker = CudaPageLocker::create();
  ASSERT_FALSE(locker);
  EXPECT_EQ(locker.error(), count.error());
  EXPECT_EQ(DeviceAllocator().allocate(4096, 256).error(), count.error());
}

TEST(CudaOptions, BadNumbersAreNamed) {
  const auto message = [](const CudaOptions& options) {
    const Result<void> valid = options.validate();
    EXPECT_FALSE(valid);
    EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
    return valid.error().message();
  };
  EXPECT_TRUE(CudaOptions().validate());
  EXPECT_EQ(message({.device = -3}), "device is -3; devices are counted from 0");
  EXPECT_EQ(message({.copy_blocks = 0}), "copy_blocks is 0; it is 1 to 65535");
  EXPECT_EQ(message({.device_copy_blocks = 70000}), "device_copy_blocks is 70000; it is at most 65535");
  EXPECT_EQ(message({.packing_bytes = 5}), "packing_bytes is 5; it is 0 or at least 1048576");
  EXPECT_NE(message({.limits = {.transfers = 0}}).find("0 transfers"), std::string::npos);
  // Refused before anything is asked of a device.
  EXPECT_EQ(CudaExecutor::create({.copy_blocks = 0}).error().code(), ErrorCode::kInvalidArgument);
}

TEST(DeviceStorage, BadNumbersAreNamed) {
  EXPECT_EQ(DeviceStorage::create(0, 0).error().code(), ErrorCode::kInvalidArgument);
  const Error error = DeviceStorage::create(0, 1, 3).error();
  EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(error.message(), "alignment is 3; it is a power of two up to 2097152");
}

}  // namespace
}  // namespace ashlar::backend::cuda
