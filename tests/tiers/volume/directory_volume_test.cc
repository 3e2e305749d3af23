// DirectoryVolume: what only folders do; builtin_volumes_test.cc has the suite of all volumes.
#include "tiers/volume/directory_volume.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <string_view>

#include "support/scratch_folder.h"
#include "support/volume_objects.h"

namespace ashlar::tiers {
namespace {

VolumeDescriptor directory_at(const std::string& folder, std::map<std::string, std::string> options = {}) {
  return {.name = "test", .kind = "directory", .location = folder, .options = std::move(options)};
}

std::size_t files_in(const std::string& folder) {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
    files += entry.is_regular_file();
  return files;
}

// Files may not grow beyond a limit while this lives, as on a disk that is full.
class SmallFiles {
 public:
  explicit SmallFiles(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    const rlimit small{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  }
  ~SmallFiles() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = nullptr;
};

TEST(DirectoryVolumeTest, AFullDiskIsCapacityAndLeavesNothingBehind) {
  const ScratchFolder folder;
  const std::unique_ptr<Volume> volume = DirectoryVolume::attach(directory_at(folder.path())).value();
  ASSERT_TRUE(put_one(*volume, "kept", make_bytes(1000, 1)));
  Writes writes;
  writes.add("small", make_bytes(1000, 2));
  writes.add("kept", make_bytes(100'000, 3));
  writes.add("large", make_bytes(100'000, 4));
  std::vector<Result<void>> results;
  {
    const SmallFiles limit(64 * 1024);
    results = volume->put(writes.objects());
  }
  EXPECT_TRUE(results[0]) << results[0].error();
  EXPECT_EQ(code_of(results[1]), ErrorCode::kCapacity);
  EXPECT_EQ(code_of(results[2]), ErrorCode::kCapacity);
  EXPECT_EQ(files_in(folder.path()), 2U);
  EXPECT_TRUE(get_one(*volume, "kept", 1000).value() == make_bytes(1000, 1));
  EXPECT_FALSE(contains_one(*volume, "large").value());
}

TEST(DirectoryVolumeTest, ObjectsAreThereForTheNextProcess) {
  const ScratchFolder folder;
  ASSERT_TRUE(
      put_one(*DirectoryVolume::attach(directory_at(folder.path())).value(), "a/b", make_bytes(5000, 1)));
  const std::unique_ptr<Volume> again = DirectoryVolume::attach(directory_at(folder.path())).value();
  EXPECT_TRUE(get_one(*again, "a/b", 5000).value() == make_bytes(5000, 1));
}

TEST(DirectoryVolumeTest, AFileThatWasCutShortIsCorrupt) {
  const ScratchFolder folder;
  const std::unique_ptr<Volume> volume =
      DirectoryVolume::attach(directory_at(folder.path(), {{"fanout", "1"}})).value();
  ASSERT_TRUE(put_one(*volume, "cut", make_bytes(5000, 1)));
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path()))
    if (entry.is_regular_file()) std::filesystem::resize_file(entry.path(), 4000);
  EXPECT_EQ(code_of(get_one(*volume, "cut", 5000)), ErrorCode::kCorruption);
}

// An operator's mount that is gone: the name stands for nothing, or for the empty folder below the mount.
TEST(DirectoryVolumeTest, AFolderThatIsAwayHasNeitherLostNorRemovedAnything) {
  for (const bool another : {false, true}) {
    const ScratchFolder scratch;
    const std::string folder = scratch.file("volume");
    std::filesystem::create_directory(folder);
    const std::unique_ptr<Volume> volume = DirectoryVolume::attach(directory_at(folder)).value();
    ASSERT_TRUE(put_one(*volume, "kept", make_bytes(1000, 1)));
    std::filesystem::rename(folder, scratch.file("away"));
    if (another) std::filesystem::create_directory(folder);
    const auto code = [](const auto& result) { return result.error().code(); };
    const std::string_view keys[] = {"kept", "never"};
    for (const Result<void>& removed : volume->remove(keys)) EXPECT_EQ(code(removed), ErrorCode::kIo);
    EXPECT_EQ(code(contains_one(*volume, "kept")), ErrorCode::kIo);
    EXPECT_EQ(code(get_one(*volume, "kept", 1000)), ErrorCode::kIo);
    EXPECT_EQ(code(put_one(*volume, "new", make_bytes(1000, 2))), ErrorCode::kIo);
    if (another) std::filesystem::remove(folder);  // fails where something was written into it
    std::filesystem::rename(scratch.file("away"), folder);
    EXPECT_EQ(get_one(*volume, "kept", 1000).value(), make_bytes(1000, 1));
    for (const Result<void>& removed : volume->remove(keys)) EXPECT_TRUE(removed);
    EXPECT_FALSE(contains_one(*volume, "kept").value());
  }
}

TEST(DirectoryVolumeTest, AttachSaysWhatIsWrong) {
  const ScratchFolder folder;
  std::ofstream(folder.file("file")) << "x";
  EXPECT_EQ(code_of(DirectoryVolume::attach(directory_at(folder.file("none")))), ErrorCode::kNotFound);
  EXPECT_EQ(code_of(DirectoryVolume::attach(directory_at(folder.file("file")))), ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DirectoryVolume::attach(directory_at(folder.path(), {{"fanout", "0"}}))),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(code_of(DirectoryVolume::attach(directory_at(folder.path(), {{"sync", "yes"}}))),
            ErrorCode::kInvalidArgument);
  const auto unknown = DirectoryVolume::attach(directory_at(folder.path(), {{"colour", "s3cr3t"}}));
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message().find("s3cr3t"), std::string::npos);
  EXPECT_NE(unknown.error().message().find("no option 'colour'; it has fanout, sync, threads"),
            std::string::npos);
}

TEST(VolumeRegistryTest, KnowsItsKindsAndNamesThem) {
  const ScratchFolder folder;
  VolumeRegistry registry = VolumeRegistry::with_builtin();
  EXPECT_TRUE(registry.attach(directory_at(folder.path())));
  const auto unknown = registry.attach({.name = "v", .kind = "tape", .location = ""});
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().code(), ErrorCode::kNotFound);
  EXPECT_NE(unknown.error().message().find("directory, file"), std::string::npos);
  EXPECT_NE(unknown.error().message().find("added to VolumeShape::kinds"), std::string::npos);
  registry.add("tape", DirectoryVolume::attach);
  EXPECT_TRUE(registry.attach({.name = "v", .kind = "tape", .location = folder.path()}));
}

}  // namespace
}  // namespace ashlar::tiers
