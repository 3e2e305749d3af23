// DirectoryVolume and the device below it: which folders are synced, syncs that fail, what dead writers left.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "support/volume_objects.h"
#include "tiers/volume/directory_volume.h"

namespace ashlar::tiers {
namespace {

// Sees the syncs of this process while it lives; a function of the test may fail them: it returns an errno.
class SyncWatch {
 public:
  using Verdict = std::function<int(const std::string& path)>;
  explicit SyncWatch(Verdict verdict = {}) : verdict_(std::move(verdict)) { current() = this; }
  ~SyncWatch() { current() = nullptr; }
  std::vector<std::string> paths() const {
    const MutexLock lock(mu_);
    return paths_;
  }
  static std::atomic<SyncWatch*>& current() {
    static std::atomic<SyncWatch*> watch{nullptr};
    return watch;
  }
  int see(int file) {
    std::array<char, 4096> path{};
    const std::string link = "/proc/self/fd/" + std::to_string(file);
    const ssize_t size = readlink(link.c_str(), path.data(), path.size());
    const std::string name(path.data(), static_cast<std::size_t>(std::max<ssize_t>(size, 0)));
    {
      const MutexLock lock(mu_);
      paths_.push_back(name);
    }
    return verdict_ ? verdict_(name) : 0;
  }

 private:
  const Verdict verdict_;
  mutable Mutex mu_;
  std::vector<std::string> paths_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace
}  // namespace ashlar::tiers

// Takes the place of the C library's in this program.
extern "C" int fsync(int file) {
  if (ashlar::tiers::SyncWatch* const watch = ashlar::tiers::SyncWatch::current().load())
    if (const int error = watch->see(file); error != 0) {
      errno = error;
      return -1;
    }
  return static_cast<int>(syscall(SYS_fsync, file));
}

namespace ashlar::tiers {
namespace {

class DirectoryDurabilityTest : public ::testing::Test {
 protected:
  std::unique_ptr<Volume> attach(const std::string& fanout = "4") const {
    return DirectoryVolume::attach({.name = "test",
                                    .kind = "directory",
                                    .location = folder_.path(),
                                    .options = {{"fanout", fanout}}})
        .value();
  }
  std::string root() const { return std::filesystem::canonical(folder_.path()).string(); }
  // Folders that hold objects.
  std::vector<std::string> folders() const {
    std::vector<std::string> out;
    for (const auto& entry : std::filesystem::directory_iterator(root()))
      out.push_back(entry.path().string());
    return out;
  }
  static bool has(const std::vector<std::string>& paths, const std::string& path) {
    return std::ranges::find(paths, path) != paths.end();
  }

  ScratchFolder folder_;
};

TEST_F(DirectoryDurabilityTest, TheNamesOfNewFoldersAreSyncedOnce) {
  const std::unique_ptr<Volume> volume = attach();
  std::size_t before = 0;
  for (int i = 0; folders().size() < 4; ++i) {
    before = folders().size();
    const SyncWatch watch;
    ASSERT_TRUE(put_one(*volume, "k" + std::to_string(i), make_bytes(100, 1)));
    const std::vector<std::string> synced = watch.paths();
    EXPECT_EQ(has(synced, root()), folders().size() > before) << i;
    if (has(synced, root())) {
      const auto at = [&](const std::string& path) { return std::ranges::find(synced, path); };
      EXPECT_TRUE(std::ranges::any_of(folders(), [&](const std::string& made) {
        return at(made) < at(root());
      })) << "the folder, then its name";
    }
  }
  // Another process does not know whether the first has synced them.
  const std::unique_ptr<Volume> another = attach();
  for (const bool first : {true, false}) {
    const SyncWatch watch;
    ASSERT_TRUE(put_one(*another, "k0", make_bytes(100, 1)));
    EXPECT_EQ(has(watch.paths(), root()), first);
  }
}

TEST_F(DirectoryDurabilityTest, AFolderWhoseNameCouldNotBeSyncedHasNothing) {
  const std::unique_ptr<Volume> volume = attach();
  for (int round = 0; round < 2; ++round) {
    const SyncWatch watch([&](const std::string& path) { return path == root() ? EIO : 0; });
    EXPECT_EQ(code_of(put_one(*volume, "k", make_bytes(100, 1))), ErrorCode::kIo);
  }
  const SyncWatch watch;
  EXPECT_TRUE(put_one(*volume, "k", make_bytes(100, 1)));
  EXPECT_TRUE(has(watch.paths(), root())) << "it is tried again";
}

// The system reports a failed sync to one of those who sync, and may have given up what all of them wrote.
TEST_F(DirectoryDurabilityTest, ASyncThatFailsForOneThreadFailsForAllThatWroteBefore) {
  const std::unique_ptr<Volume> volume = attach("1");
  ASSERT_TRUE(put_one(*volume, "first", make_bytes(100, 1)));
  const std::string folder = folders().at(0);
  Gate gate;
  std::atomic<int> syncs{0};
  const SyncWatch watch([&](const std::string& path) {
    if (path != folder) return 0;
    if (syncs.fetch_add(1) == 0) {
      gate.pass();  // the first has written, and syncs when the second has failed
      return 0;
    }
    return EIO;
  });
  std::thread first([&] { EXPECT_EQ(code_of(put_one(*volume, "a", make_bytes(100, 1))), ErrorCode::kIo); });
  gate.wait_for_somebody();
  EXPECT_EQ(code_of(put_one(*volume, "b", make_bytes(100, 1))), ErrorCode::kIo);
  gate.open();
  first.join();
}

TEST_F(DirectoryDurabilityTest, WhatDeadWritersLeftGoesWhenItIsOld) {
  std::filesystem::create_directories(root() + "/0000");
  const auto leave = [&](const std::string& name, int hours) {
    const std::string path = root() + "/0000/" + name;
    std::ofstream(path) << "half an object";
    std::filesystem::last_write_time(path,
                                     std::filesystem::last_write_time(path) - std::chrono::hours(hours));
    return path;
  };
  const std::string old = leave(".~12.0", 2);
  const std::string older = leave(".~0123456789abcdef", 48);
  const std::string fresh = leave(".~fedcba9876543210", 0);
  const std::string object = leave("an-object", 1000);
  ASSERT_EQ(mkfifo((root() + "/0000/.~pipe").c_str(), 0600), 0);
  const std::unique_ptr<Volume> volume = attach("1");
  ASSERT_TRUE(put_one(*volume, "k", make_bytes(100, 1)));
  EXPECT_FALSE(std::filesystem::exists(old));
  EXPECT_FALSE(std::filesystem::exists(older));
  EXPECT_TRUE(std::filesystem::exists(fresh)) << "its writer may live";
  EXPECT_TRUE(std::filesystem::exists(object));
}

// As many as a process with the same number, in another container, may have left.
TEST_F(DirectoryDurabilityTest, NamesOfOtherWritersAreNotInTheWay) {
  std::filesystem::create_directories(root() + "/0000");
  for (int i = 0; i < 64; ++i)
    std::ofstream(root() + "/0000/.~" + std::to_string(getpid()) + "." + std::to_string(i)) << "half";
  const std::unique_ptr<Volume> volume = attach("1");
  for (int i = 0; i < 8; ++i) {
    const Result<void> put = put_one(*volume, "k" + std::to_string(i), make_bytes(100, 1));
    EXPECT_TRUE(put) << put.error();
  }
}

}  // namespace
}  // namespace ashlar::tiers
