#include "ashlar/backend/uring/uring_executor.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstdlib>

#include "transfer/executor_conformance.h"
#include "transfer/file_conformance.h"

namespace ashlar::transfer {
namespace {

using backend::uring::Registration;
using backend::uring::UringExecutor;

std::unique_ptr<Executor> uring_executor(const ExecutorSettings& settings) {
  auto made = UringExecutor::create({.depth = settings.threads * 4,
                                     .strip_bytes = 16384,
                                     .staging_buffers = 2,
                                     .limits = settings.limits,
                                     .clock = settings.clock});
  if (!made && made.error().code() == ErrorCode::kUnsupported) return nullptr;  // the kernel refuses
  return *std::move(made);
}
std::unique_ptr<storage::Allocator> system_memory(const ScratchFolder&) {
  return std::make_unique<storage::SystemAllocator>();
}
template <storage::DirectIo kDirect>
std::unique_ptr<storage::Allocator> files(const ScratchFolder& folder,
                                          std::shared_ptr<storage::IoFaults> faults) {
  return std::make_unique<storage::DiskAllocator>(storage::DiskOptions{
      .path = folder.file("far"), .direct = kDirect, .remove = true, .faults = std::move(faults)});
}

INSTANTIATE_TEST_SUITE_P(Uring, ExecutorTest,
                         ::testing::Values(ExecutorCase{"Direct", uring_executor, system_memory,
                                                        files<storage::DirectIo::kIfPossible>},
                                           ExecutorCase{"Buffered", uring_executor, system_memory,
                                                        files<storage::DirectIo::kNever>}),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

INSTANTIATE_TEST_SUITE_P(Uring, FileFaultTest,
                         ::testing::Values(ExecutorCase{"Direct", uring_executor, system_memory,
                                                        files<storage::DirectIo::kIfPossible>},
                                           ExecutorCase{"Buffered", uring_executor, system_memory,
                                                        files<storage::DirectIo::kNever>}),
                         [](const ::testing::TestParamInfo<ExecutorCase>& test) { return test.param.name; });

class UringTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto made = UringExecutor::create({.depth = 4, .registered_buffers = 4, .registered_files = 4});
    if (!made) GTEST_SKIP() << made.error();
    executor_ = *std::move(made);
  }
  static layout::Layout layout_of(std::uint32_t blocks) {
    layout::LayoutConfig config = small_shape(blocks, 2, 4);
    config.head_dim = 512;
    config.inner_dim = 2048;
    config.alignment = 4096;
    return layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
  }
  void expect_round_trip(const std::shared_ptr<const BlockSet>& memory,
                         const std::shared_ptr<const BlockSet>& file) {
    const std::vector<std::uint32_t> blocks = {3, 1, 0};
    const std::vector<std::uint32_t> places = {0, 2, 3};
    BlockImage source(*memory, 0);
    source.number(*memory);
    source.store(*memory);
    ASSERT_TRUE(executor_->submit({.plan = plan(memory, blocks, file, places).value()}).value().wait());
    BlockImage(*memory, 0xEE).store(*memory);
    ASSERT_TRUE(executor_->submit({.plan = plan(file, places, memory, blocks).value()}).value().wait());
    BlockImage expected(*memory, 0xEE);
    copy_naively(*memory, source, blocks, *memory, expected, blocks);
    EXPECT_TRUE(BlockImage::of(*memory) == expected);
  }

  ScratchFolder folder_;
  storage::SystemAllocator memory_;
  storage::DiskAllocator disk_{{.path = folder_.file("x"), .remove = true}};
  std::unique_ptr<UringExecutor> executor_;
};

TEST_F(UringTest, RegisteredSetsMoveTheSameBytes) {
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  const auto file = BlockSet::allocate(layout_of(4), disk_).value();
  for (const bool register_memory : {false, true})
    for (const bool register_file : {false, true}) {
      std::vector<Registration> registrations;
      if (register_memory) registrations.push_back(executor_->register_set(memory).value());
      if (register_file) registrations.push_back(executor_->register_set(file).value());
      expect_round_trip(memory, file);
    }
  expect_round_trip(memory, file);
}

// A descriptor whose file has gone may be that of another file tomorrow.
TEST_F(UringTest, AFileThatWasRegisteredIsNotTakenForTheNextOne) {
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  for (int i = 0; i < 10; ++i) {
    auto file = BlockSet::allocate(layout_of(4), disk_).value();
    const Registration registration = executor_->register_set(file).value();
    const std::weak_ptr<const BlockSet> watched = file;
    expect_round_trip(memory, file);
    file.reset();
    EXPECT_FALSE(watched.expired()) << "a registration keeps its set";
  }
}

TEST_F(UringTest, PlacesRunOutWithNumbersAndComeBack) {
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  std::vector<Registration> registrations;
  for (int i = 0; i < 4; ++i) registrations.push_back(executor_->register_set(memory).value());
  const auto refused = executor_->register_set(memory);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(), ::testing::HasSubstr("all 4 places"));
  registrations.clear();
  EXPECT_TRUE(executor_->register_set(memory));
  const auto none = executor_->register_set(nullptr);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code(), ErrorCode::kUnsupported);
}

// Registrations come and go while operations end short and go on: places in the kernel's tables change hands.
TEST_F(UringTest, PlacesThatChangeHandsNeverLeadToAnotherFile) {
  const auto faults = std::make_shared<ScriptedFaults>(
      [](storage::IoDirection, std::uint64_t, std::uint64_t) { return storage::IoVerdict{.at_most = 4096}; });
  storage::DiskAllocator short_disk({.path = folder_.file("short"), .remove = true, .faults = faults});
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  const auto file = BlockSet::allocate(layout_of(4), short_disk).value();
  const auto bystander = BlockSet::allocate(layout_of(4), disk_).value();
  const BlockImage untouched(*bystander, 0x77);
  untouched.store(*bystander);
  std::atomic<bool> stop{false};
  std::thread registrar([&] {
    while (!stop) {
      {
        const Registration one = executor_->register_set(file).value();
      }
      {
        const Registration two = executor_->register_set(bystander).value();
      }
      {
        const Registration three = executor_->register_set(memory).value();
      }
    }
  });
  const std::vector<std::uint32_t> all = {0, 1, 2, 3};
  for (int i = 0; i < 200; ++i) {
    const TransferResult done =
        executor_->submit({.plan = plan(memory, all, file, all).value()}).value().wait();
    EXPECT_TRUE(done) << done.error();
    if (!done) break;
  }
  stop = true;
  registrar.join();
  EXPECT_TRUE(BlockImage::of(*bystander) == untouched);
}

TEST_F(UringTest, ARegistrationMayGoWithItsTransfer) {
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  const auto file = BlockSet::allocate(layout_of(4), disk_).value();
  const std::vector<std::uint32_t> all = {0, 1, 2, 3};
  std::optional<Result<Registration>> from_callback;
  const Transfer transfer =
      executor_
          ->submit({.plan = plan(memory, all, file, all).value(),
                    .owned = std::make_shared<Registration>(executor_->register_set(memory).value()),
                    .on_done = [&](const TransferResult&) { from_callback = executor_->register_set(file); }})
          .value();
  ASSERT_TRUE(transfer.wait());
  expect_round_trip(memory, file);
  EXPECT_TRUE(*from_callback);
}

TEST_F(UringTest, ARegistrationMayOutliveTheExecutor) {
  const auto memory = BlockSet::allocate(layout_of(4), memory_).value();
  const Registration registration = executor_->register_set(memory).value();
  executor_.reset();
}

TEST_F(UringTest, OptionsAreChecked) {
  EXPECT_EQ(backend::uring::create_disk_executor({.depth = 2}).value()->name(), "uring");
  EXPECT_FALSE(backend::uring::create_disk_executor({.depth = 0}));
  EXPECT_FALSE(UringExecutor::create({.strip_bytes = 100}));
  EXPECT_FALSE(UringExecutor::create({.staging_buffers = 0}));
  EXPECT_FALSE(UringExecutor::create({.registered_files = 0}));
}

// From here on the kernel answers io_uring_setup with EPERM, as a container without the right to it does.
bool forbid_uring() {
  sock_filter program[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog filter{4, program};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

void move_without_uring() {
  if (!forbid_uring()) std::exit(3);
  const Result<std::unique_ptr<UringExecutor>> refused = UringExecutor::create();
  if (refused || refused.error().code() != ErrorCode::kUnsupported) std::exit(4);
  const ScratchFolder folder;
  storage::SystemAllocator memory;
  storage::DiskAllocator disk({.path = folder.file("x"), .remove = true});
  layout::LayoutConfig config = small_shape(4, 2, 4);
  const layout::Layout layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd).value();
  const auto from = BlockSet::allocate(layout, memory).value();
  const auto to = BlockSet::allocate(layout, disk).value();
  BlockImage source(*from, 0);
  source.number(*from);
  source.store(*from);
  const auto executor = backend::uring::create_disk_executor().value();
  if (executor->name() != "file") std::exit(5);
  const std::vector<std::uint32_t> all = {0, 1, 2, 3};
  if (!executor->submit({.plan = plan(from, all, to, all).value()}).value().wait()) std::exit(6);
  std::exit(BlockImage::of(*to) == source ? 0 : 7);
}

TEST(UringFallbackTest, WhereTheKernelRefusesReadsAndWritesGoOn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(move_without_uring(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace ashlar::transfer
