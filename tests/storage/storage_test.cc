#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "ashlar/storage/allocator.h"
#include "ashlar/storage/disk_storage.h"
#include "ashlar/storage/external_storage.h"
#include "storage/pinned_storage.h"
#include "storage/shared_storage.h"
#include "storage/system_storage.h"
#include "support/scratch_folder.h"

namespace ashlar::storage {
namespace {

using ::testing::HasSubstr;

class DiskStorageTest : public ::testing::Test {
 protected:
  std::string path(const char* name) const { return folder_.file(name); }

  ScratchFolder folder_;
};

void expect_error(const auto& result, ErrorCode code, const std::string& says) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), code) << result.error();
  EXPECT_THAT(result.error().message(), HasSubstr(says));
}

TEST(SystemStorageTest, IsZeroedAlignedAndWritable) {
  for (const std::uint64_t bytes : {1ull, 4096ull, 5000ull, 3ull << 20})
    for (const std::uint64_t alignment : {1ull, 4096ull, 65536ull, 2ull << 20})
      for (const bool huge : {false, true}) {
        const auto made = SystemStorage::create(
            {.bytes = bytes, .alignment = alignment, .huge_pages = huge, .touch_pages = bytes < 10000});
        ASSERT_TRUE(made) << made.error();
        const Storage& storage = **made;
        EXPECT_EQ(storage.kind(), StorageKind::kSystem);
        EXPECT_EQ(storage.size(), bytes);
        EXPECT_TRUE(storage.host_accessible());
        EXPECT_EQ(storage.file(), nullptr);
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage.address()) % alignment, 0u);
        EXPECT_EQ(storage.address()[bytes - 1], std::byte{0});
        std::memset(storage.address(), 0x5A, bytes);
      }
}

TEST(SystemStorageTest, BadOptionsAreNamed) {
  expect_error(SystemStorage::create({.bytes = 0}), ErrorCode::kInvalidArgument, "bytes is 0");
  expect_error(SystemStorage::create({.bytes = 1, .alignment = 3}), ErrorCode::kInvalidArgument,
               "alignment is 3");
  expect_error(SystemStorage::create({.bytes = 1, .numa_node = 5000}), ErrorCode::kInvalidArgument,
               "numa_node is 5000");
  expect_error(SystemStorage::create({.bytes = ~std::uint64_t{0}}), ErrorCode::kInvalidArgument,
               "address space");
}

TEST(SystemStorageTest, MoreThanTheMachineHasIsAnErrorWithNumbers) {
  const auto made = SystemStorage::create({.bytes = std::uint64_t{1} << 50});
  expect_error(made, ErrorCode::kCapacity,
               "1125899906842624 bytes of memory were requested, the system has ");
}

// A node that the machine has, or the kernel's refusal in words.
TEST(SystemStorageTest, LiesOnANodeOrSaysThatItCannot) {
  const auto first = SystemStorage::create({.bytes = 1 << 20, .numa_node = 0});
  if (!first) {
    expect_error(first, ErrorCode::kUnsupported, "NUMA node 0 was refused");
  } else {
    std::memset((*first)->address(), 1, (*first)->size());
  }
  expect_error(SystemStorage::create({.bytes = 1 << 20, .numa_node = 1000}), ErrorCode::kUnsupported,
               "NUMA node 1000");
}

struct RecordingLocker final : PageLocker {
  Result<void> lock(std::byte* address, std::uint64_t bytes) override {
    if (refuse) return make_error(ErrorCode::kCapacity, "no more than %d", 7);
    locked.push_back({address, bytes});
    return {};
  }
  void unlock(std::byte* address) noexcept override {
    std::erase_if(locked, [&](const auto& entry) { return entry.first == address; });
  }
  bool refuse = false;
  std::vector<std::pair<std::byte*, std::uint64_t>> locked;
};

TEST(PinnedStorageTest, IsLockedAsLongAsItLives) {
  const auto locker = std::make_shared<RecordingLocker>();
  {
    const auto made = PinnedStorage::create({.bytes = 10000}, locker);
    ASSERT_TRUE(made);
    EXPECT_TRUE((*made)->page_locked());
    EXPECT_EQ((*made)->kind(), StorageKind::kPinned);
    ASSERT_EQ(locker->locked.size(), 1u);
    EXPECT_EQ(locker->locked[0].first, (*made)->address());
    EXPECT_EQ(locker->locked[0].second, 10000u);
  }
  EXPECT_TRUE(locker->locked.empty());
  locker->refuse = true;
  expect_error(PinnedStorage::create({.bytes = 10000}, locker), ErrorCode::kCapacity, "no more than 7");
}

TEST(PinnedStorageTest, WithoutAGpuItIsPlainMemory) {
  const auto made = PinnedStorage::create({.bytes = 10000});
  ASSERT_TRUE(made);
  EXPECT_FALSE((*made)->page_locked());
  EXPECT_TRUE((*made)->host_accessible());
  std::memset((*made)->address(), 1, 10000);
}

TEST(SharedStorageTest, IsZeroedAlignedAndWritable) {
  for (const std::uint64_t bytes : {1ull, 4096ull, 5000ull, 3ull << 20})
    for (const std::uint64_t alignment : {1ull, 65536ull, 2ull << 20})
      for (const bool huge : {false, true}) {
        SharedAllocator allocator({.huge_pages = huge, .touch_pages = bytes < 10000});
        const auto made = allocator.allocate(bytes, alignment);
        ASSERT_TRUE(made) << made.error();
        const Storage& storage = **made;
        EXPECT_EQ(storage.kind(), StorageKind::kSystem);
        EXPECT_EQ(storage.kind(), allocator.kind());
        EXPECT_EQ(storage.size(), bytes);
        EXPECT_TRUE(storage.host_accessible());
        EXPECT_EQ(storage.file(), nullptr) << "it is memory";
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(storage.address()) % alignment, 0u);
        EXPECT_EQ(storage.address()[bytes - 1], std::byte{0});
        std::memset(storage.address(), 0x5A, bytes);
      }
}

TEST(SharedStorageTest, IsSeenByWhoMapsItsFile) {
  SharedAllocator allocator;
  const auto made = allocator.allocate(10000, 4096).value();
  const SharedMemory* shared = made->shared();
  ASSERT_NE(shared, nullptr);
  EXPECT_EQ(SystemStorage::create({.bytes = 1}).value()->shared(), nullptr);
  void* other = mmap(nullptr, 10000, PROT_READ | PROT_WRITE, MAP_SHARED, shared->descriptor,
                     static_cast<off_t>(shared->offset));
  ASSERT_NE(other, MAP_FAILED);
  auto* bytes = static_cast<std::byte*>(other);
  made->address()[9999] = std::byte{7};
  EXPECT_EQ(bytes[9999], std::byte{7});
  bytes[0] = std::byte{9};
  EXPECT_EQ(made->address()[0], std::byte{9});
  munmap(other, 10000);
  // Whoever could shorten it would end the processes that map it.
  EXPECT_NE(ftruncate(shared->descriptor, 1), 0);
  EXPECT_NE(ftruncate(shared->descriptor, 1 << 20), 0);
}

TEST(SharedStorageTest, IsPinnedWhereThereIsALocker) {
  const auto locker = std::make_shared<RecordingLocker>();
  SharedAllocator allocator({}, locker);
  EXPECT_EQ(allocator.kind(), StorageKind::kPinned);
  int descriptor = -1;
  {
    const auto made = allocator.allocate(10000, 4096).value();
    EXPECT_EQ(made->kind(), StorageKind::kPinned);
    ASSERT_EQ(locker->locked.size(), 1u);
    EXPECT_EQ(locker->locked[0].first, made->address());
    descriptor = made->shared()->descriptor;
    EXPECT_GE(fcntl(descriptor, F_GETFD), 0);
  }
  EXPECT_TRUE(locker->locked.empty());
  EXPECT_LT(fcntl(descriptor, F_GETFD), 0) << "the file goes with the storage";
  locker->refuse = true;
  expect_error(allocator.allocate(10000, 4096), ErrorCode::kCapacity, "no more than 7");
}

TEST(SharedStorageTest, BadOptionsAndLimitsAreNamed) {
  SharedAllocator allocator;
  expect_error(allocator.allocate(0, 1), ErrorCode::kInvalidArgument, "bytes is 0");
  expect_error(allocator.allocate(1, 3), ErrorCode::kInvalidArgument, "alignment is 3");
  expect_error(allocator.allocate(~std::uint64_t{0}, 1), ErrorCode::kInvalidArgument, "address space");
  expect_error(allocator.allocate(std::uint64_t{1} << 50, 1), ErrorCode::kCapacity, "bytes of memory were");
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto made = allocator.allocate(1 << 20, 4096);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_error(made, ErrorCode::kCapacity, "1048576 bytes of shared memory were refused");
}

TEST(ExternalStorageTest, HoldsItsOwnerAndChecksWhatItIsTold) {
  auto memory = std::make_shared<std::vector<std::byte>>(100);
  const std::weak_ptr<std::vector<std::byte>> watched = memory;
  std::byte* address = memory->data();
  {
    const auto made = ExternalStorage::create({.address = address, .bytes = 100, .owner = std::move(memory)});
    ASSERT_TRUE(made);
    EXPECT_EQ((*made)->address(), address);
    EXPECT_FALSE(watched.expired());
  }
  EXPECT_TRUE(watched.expired());
  std::byte one{};
  expect_error(ExternalStorage::create({.bytes = 5}), ErrorCode::kInvalidArgument, "needs an address");
  expect_error(ExternalStorage::create({.address = &one}), ErrorCode::kInvalidArgument,
               "needs an address and a size");
  expect_error(ExternalStorage::create({.kind = StorageKind::kDisk, .address = &one, .bytes = 1}),
               ErrorCode::kInvalidArgument, "not disk");
  expect_error(ExternalStorage::create({.kind = StorageKind::kDevice, .address = &one, .bytes = 1}),
               ErrorCode::kInvalidArgument, "device -1 does not fit device memory");
  expect_error(ExternalStorage::create({.address = &one, .bytes = 1, .device = 2}),
               ErrorCode::kInvalidArgument, "device 2 does not fit system");
}

TEST_F(DiskStorageTest, TakesItsSpaceAtOnceAndGoesWhenTold) {
  {
    const auto made = DiskStorage::create({.path = path("a"), .bytes = 1 << 20, .remove = true});
    ASSERT_TRUE(made) << made.error();
    const DiskStorage& disk = **made;
    EXPECT_EQ(disk.kind(), StorageKind::kDisk);
    EXPECT_EQ(disk.size(), 1u << 20);
    EXPECT_EQ(disk.address(), nullptr);
    EXPECT_FALSE(disk.host_accessible());
    ASSERT_NE(disk.file(), nullptr);
    EXPECT_EQ(std::filesystem::file_size(path("a")), 1u << 20);
    EXPECT_EQ(pwrite(disk.file()->buffered, "abc", 3, 5000), 3);
    EXPECT_TRUE(disk.sync());
    EXPECT_THAT(disk.describe(), HasSubstr(path("a")));
    if (disk.file()->direct >= 0) {
      EXPECT_NE(fcntl(disk.file()->direct, F_GETFL) & O_DIRECT, 0);
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path("a")));
}

TEST_F(DiskStorageTest, NeverTouchesAFileThatIsThere) {
  std::ofstream(path("b")) << "mine";
  expect_error(DiskStorage::create({.path = path("b"), .bytes = 4096}), ErrorCode::kAlreadyExists,
               "already exists");
  std::string text;
  std::ifstream(path("b")) >> text;
  EXPECT_EQ(text, "mine");
  const auto opened = DiskStorage::open({.path = path("b")});
  ASSERT_TRUE(opened) << opened.error();
  EXPECT_EQ((*opened)->size(), 4u);
}

TEST_F(DiskStorageTest, SaysWhatIsWrongWithAPath) {
  expect_error(DiskStorage::create({.path = "", .bytes = 4096}), ErrorCode::kInvalidArgument, "needs a path");
  expect_error(DiskStorage::create({.path = path("c"), .bytes = 0}), ErrorCode::kInvalidArgument, "0 bytes");
  expect_error(DiskStorage::create({.path = path("no/c"), .bytes = 4096}), ErrorCode::kNotFound,
               path("no/c") + ": its folder " + path("no") + " does not exist; create it first");
  expect_error(DiskStorage::open({.path = path("c")}), ErrorCode::kNotFound, "cannot be opened");
  std::ofstream(path("empty")).flush();
  expect_error(DiskStorage::open({.path = path("empty")}), ErrorCode::kInvalidArgument, "no file with bytes");
  expect_error(DiskStorage::open({.path = folder_.path()}), ErrorCode::kInvalidArgument, "directory");
}

TEST_F(DiskStorageTest, AnExclusiveOneIsAlone) {
  std::ofstream(path("alone")) << "bytes";
  {
    const auto first = DiskStorage::open({.path = path("alone"), .exclusive = true});
    ASSERT_TRUE(first) << first.error();
    expect_error(DiskStorage::open({.path = path("alone"), .exclusive = true}), ErrorCode::kNotReady,
                 "is in use");
    EXPECT_TRUE(DiskStorage::open({.path = path("alone")})) << "who does not ask is not stopped";
  }
  EXPECT_TRUE(DiskStorage::open({.path = path("alone"), .exclusive = true}));
}

TEST_F(DiskStorageTest, AFullFileSystemIsAnErrorWithNumbersAndLeavesNothingBehind) {
  const auto made = DiskStorage::create({.path = path("d"), .bytes = std::uint64_t{1} << 43});
  expect_error(made, ErrorCode::kCapacity, "8796093022208 bytes were requested, the file system has ");
  EXPECT_FALSE(std::filesystem::exists(path("d")));
}

// A real limit of the kernel, put back afterwards. Its signal would end the process.
TEST_F(DiskStorageTest, ALimitOfTheProcessIsAnErrorToo) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small{1 << 16, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const auto made = DiskStorage::create({.path = path("e"), .bytes = 1 << 20});
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  expect_error(made, ErrorCode::kCapacity, "1048576 bytes were requested");
  EXPECT_FALSE(std::filesystem::exists(path("e")));
}

TEST_F(DiskStorageTest, DirectIoCanBeForbiddenOrDemanded) {
  const auto never = DiskStorage::create({.path = path("f"), .bytes = 4096, .direct = DirectIo::kNever});
  ASSERT_TRUE(never);
  EXPECT_EQ((*never)->file()->direct, -1);
  const auto always = DiskStorage::create({.path = path("g"), .bytes = 4096, .direct = DirectIo::kAlways});
  if (always) {
    EXPECT_GE((*always)->file()->direct, 0);
  } else {
    expect_error(always, ErrorCode::kUnsupported, "refuses direct I/O");
    EXPECT_FALSE(std::filesystem::exists(path("g")));
  }
}

TEST_F(DiskStorageTest, WithoutPreallocationTheFileHasHoles) {
  const auto made =
      DiskStorage::create({.path = path("h"), .bytes = std::uint64_t{1} << 32, .preallocate = false});
  ASSERT_TRUE(made) << made.error();
  EXPECT_EQ((*made)->size(), std::uint64_t{1} << 32);
}

TEST_F(DiskStorageTest, AllocatorsGiveStorageOfTheirKind) {
  SystemAllocator system;
  PinnedAllocator pinned;
  SharedAllocator shared;
  DiskAllocator disk({.path = path("x"), .remove = true});
  std::ofstream(path("x.1")) << "taken";
  for (Allocator* allocator : std::initializer_list<Allocator*>{&system, &pinned, &shared, &disk})
    for (int i = 0; i < 3; ++i) {
      const auto made = allocator->allocate(8192, 4096);
      ASSERT_TRUE(made) << made.error();
      EXPECT_EQ((*made)->kind(), allocator->kind());
      EXPECT_EQ((*made)->size(), 8192u);
    }
  expect_error(disk.allocate(0, 1), ErrorCode::kInvalidArgument, "0 bytes");
  EXPECT_TRUE(std::filesystem::exists(path("x.1")));
}

}  // namespace
}  // namespace ashlar::storage
