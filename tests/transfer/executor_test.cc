#include "transfer/executor_conformance.h"
#include "transfer/file_conformance.h"

#include "ashlar/storage/external_storage.h"
#include "ashlar/transfer/host_executors.h"

namespace ashlar::transfer {
namespace {

using storage::Allocator;

// Memory of the test's own, as a framework's tensors.
class ExternalAllocator final : public Allocator {
 public:
  StorageKind kind() const noexcept override { return StorageKind::kSystem; }
  Result<std::shared_ptr<storage::Storage>> allocate(std::uint64_t bytes, std::uint64_t alignment) override {
    auto memory = std::make_shared<std::vector<std::byte>>(bytes + alignment);
    const std::uint64_t past = reinterpret_cast<std::uintptr_t>(memory->data()) % alignment;
    return storage::ExternalStorage::create({.kind = StorageKind::kSystem,
                                             .address = memory->data() + (alignment - past) % alignment,
                                             .bytes = bytes,
                                             .owner = memory})
        .transform([](auto&& made) { return std::shared_ptr<storage::Storage>(made); });
  }
};

std::unique_ptr<Executor> memcpy_executor(const ExecutorSettings& settings) {
  return MemcpyExecutor::create({.threads = settings.threads,
                                 .inline_bytes = 4096,
                                 .strip_bytes = 8192,
                                 .limits = settings.limits,
                                 .clock = settings.clock})
      .value();
}
std::unique_ptr<Executor> file_executor(const ExecutorSettings& settings) {
  return FileExecutor::create({.threads = settings.threads,
                               .strip_bytes = 16384,
                               .limits = settings.limits,
                               .clock = settings.clock})
      .value();
}
std::unique_ptr<Allocator> system_memory(const ScratchFolder&) {
  return std::make_unique<storage::SystemAllocator>();
}
std::unique_ptr<Allocator> pinned_near(const ScratchFolder&) {
  return std::make_unique<storage::PinnedAllocator>();
}
std::unique_ptr<Allocator> external_memory(const ScratchFolder&) {
  return std::make_unique<ExternalAllocator>();
}
std::unique_ptr<Allocator> pinned_memory(const ScratchFolder&, std::shared_ptr<storage::IoFaults>) {
  return std::make_unique<storage::PinnedAllocator>();
}
template <storage::DirectIo kDirect>
std::unique_ptr<Allocator> files(const ScratchFolder& folder, std::shared_ptr<storage::IoFaults> faults) {
  return std::make_unique<storage::DiskAllocator>(storage::DiskOptions{
      .path = folder.file("far"), .direct = kDirect, .remove = true, .faults = std::move(faults)});
}

INSTANTIATE_TEST_SUITE_P(
    All, ExecutorTest,
    ::testing::Values(
        ExecutorCase{"SystemToPinned", memcpy_executor, system_memory, pinned_memory},
        ExecutorCase{"ExternalToPinned", memcpy_executor, external_memory, pinned_memory},
        ExecutorCase{"FileDirect", file_executor, system_memory, files<storage::DirectIo::kIfPossible>},
        ExecutorCase{"FileBuffered", file_executor, pinned_near, files<storage::DirectIo::kNever>},
        ExecutorCase{"ExternalToFile", file_executor, external_memory,
                     files<storage::DirectIo::kIfPossible>}),
    [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(All, FileFaultTest,
                         ::testing::Values(ExecutorCase{"FileDirect", file_executor, system_memory,
                                                        files<storage::DirectIo::kIfPossible>},
                                           ExecutorCase{"FileBuffered", file_executor, system_memory,
                                                        files<storage::DirectIo::kNever>}),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

TEST(ExecutorOptionsTest, WhatCannotWorkIsNamed) {
  const auto refused = [](const auto& made, const char* says) {
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().message(), ::testing::HasSubstr(says));
  };
  refused(MemcpyExecutor::create({.threads = 0}), "threads is 0");
  refused(MemcpyExecutor::create({.strip_bytes = 0}), "strip_bytes is 0");
  refused(MemcpyExecutor::create({.strip_bytes = ~std::uint64_t{0}}), "strip_bytes is 18446744073709551615");
  refused(MemcpyExecutor::create({.limits = {.transfers = 0}}), "limits of 0 transfers");
  refused(FileExecutor::create({.threads = 5000}), "threads is 5000");
  refused(FileExecutor::create({.strip_bytes = 1000}), "strip_bytes is 1000");
  refused(FileExecutor::create({.strip_bytes = std::uint64_t{1} << 63}), "strip_bytes is");
  refused(FileExecutor::create({.limits = {.bytes = 0}}), "0 bytes");
}

TEST(ExecutorOptionsTest, AnExecutorSaysWhatItDoesNotHandle) {
  const auto executor = FileExecutor::create().value();
  storage::SystemAllocator memory;
  const layout::Layout layout =
      layout::Layout::create(small_shape(6, 3, 4), layout::order::kFullyContiguousNhd).value();
  const std::vector<std::uint32_t> one = {0};
  const Result<Transfer> refused =
      executor->submit({.plan = plan(BlockSet::allocate(layout, memory).value(), one,
                                     BlockSet::allocate(layout, memory).value(), one)
                                    .value()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(refused.error().message(), "the file executor does not copy from system to system storage");
}

}  // namespace
}  // namespace ashlar::transfer
