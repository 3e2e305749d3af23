// FileSink and the disk below it: which folders are synced, and what a repair writes beside the file.
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/feed/feed_source.h"
#include "events/event_samples.h"
#include "support/scratch_folder.h"

namespace ashlar::feed {
namespace {

// Sees the syncs of this thread while it lives; all but the first so many fail.
class FolderSyncs {
 public:
  explicit FolderSyncs(std::size_t good = SIZE_MAX) : good_(good) { current() = this; }
  ~FolderSyncs() { current() = nullptr; }
  FolderSyncs(const FolderSyncs&) = delete;
  FolderSyncs& operator=(const FolderSyncs&) = delete;
  static FolderSyncs*& current() {
    static thread_local FolderSyncs* watch = nullptr;
    return watch;
  }
  bool see(int file) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t size = readlink(link.c_str(), path.data(), path.size());
    paths_.emplace_back(path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    return paths_.size() <= good_;
  }
  bool has(const std::string& path) const { return std::ranges::find(paths_, path) != paths_.end(); }

 private:
  const std::size_t good_;
  std::vector<std::string> paths_;
};

}  // namespace
}  // namespace ashlar::feed

// Takes the place of the C library's in this program.
extern "C" int fsync(int file) {
  if (ashlar::feed::FolderSyncs* const watch = ashlar::feed::FolderSyncs::current())
    if (!watch->see(file)) {
      errno = EIO;
      return -1;
    }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace ashlar::feed {
namespace {

class FileDurabilityTest : public ::testing::Test {
 protected:
  std::string folder() const { return std::filesystem::canonical(folder_.path()).string(); }
  void write_damaged() const {
    {
      auto sink = FileSink::create({.path = path_}).value();
      for (std::uint64_t i = 0; i < 3; ++i) {
        events::OwnedBatch batch;
        batch.head.stream = {{events::WorkerId(1), 0}, 1};
        batch.head.first = 2 * i;
        batch.events = events::chain(i, 2);
        ASSERT_TRUE(sink->publish(batch.view()));
      }
    }
    std::fstream file(path_, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(80);
    file.put('!');
  }
  static std::string text_of(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  }
  std::set<std::string> names() const {
    std::set<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path()))
      out.insert(entry.path().filename().string());
    return out;
  }

  const ScopedLogSink quiet_{[](LogLevel, std::string_view, std::string_view) {}};
  ScratchFolder folder_;
  std::string path_ = folder_.file("stream");
};

TEST_F(FileDurabilityTest, TheNameOfANewFileIsSyncedWhereBatchesAre) {
  {
    const FolderSyncs syncs;
    ASSERT_TRUE(FileSink::create({.path = path_, .sync = true}));
    EXPECT_TRUE(syncs.has(folder()));
  }
  {
    const FolderSyncs syncs;
    ASSERT_TRUE(FileSink::create({.path = folder_.file("other")}));
    EXPECT_FALSE(syncs.has(folder()));
  }
  const FolderSyncs failing(0);
  const auto refused = FileSink::create({.path = folder_.file("third"), .sync = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
}

TEST_F(FileDurabilityTest, TheNameOfARepairedFileIsSynced) {
  write_damaged();
  {
    const FolderSyncs syncs;
    ASSERT_TRUE(FileSink::create({.path = path_, .append = true, .repair = true}));
    EXPECT_TRUE(syncs.has(folder()));
  }
  std::filesystem::remove(path_);
  write_damaged();
  const FolderSyncs failing(1);  // the file's own
  const auto refused = FileSink::create({.path = path_, .append = true, .repair = true});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kIo);
}

TEST_F(FileDurabilityTest, ARepairTouchesNoOtherFile) {
  write_damaged();
  std::ofstream(folder_.file("mine")) << "mine";
  std::filesystem::create_symlink(folder_.file("mine"), path_ + ".repair");
  ASSERT_TRUE(FileSink::create({.path = path_, .append = true, .repair = true}));
  EXPECT_EQ(text_of(folder_.file("mine")), "mine");
  EXPECT_EQ(names(), (std::set<std::string>{"mine", "stream", "stream.repair"}));
}

TEST_F(FileDurabilityTest, ARepairThatFailsLeavesNothingBehind) {
  write_damaged();
  const std::string before = text_of(path_);
  const FolderSyncs failing(0);
  EXPECT_FALSE(FileSink::create({.path = path_, .append = true, .repair = true}));
  EXPECT_EQ(text_of(path_), before);
  EXPECT_EQ(names(), (std::set<std::string>{"stream"}));
}

}  // namespace
}  // namespace ashlar::feed
