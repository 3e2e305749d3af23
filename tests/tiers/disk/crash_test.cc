// A process that works on G3 and a volume is killed at any moment; what the next one finds has its bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <utility>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {
namespace {

// A writer, and what it says.
class Writer {
 public:
  Writer(const std::string& folder, std::uint64_t seed) {
    std::array<int, 2> pipe_ends{};
    if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return;
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
    std::string program = G3_WRITER;
    std::string path = folder;
    std::string number = std::to_string(seed);
    std::array<char*, 4> arguments = {program.data(), path.data(), number.data(), nullptr};
    if (posix_spawn(&child_, program.c_str(), &actions, nullptr, arguments.data(), environ) != 0) child_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(pipe_ends[1]);
    said_ = pipe_ends[0];
  }
  ~Writer() {
    if (said_ >= 0) close(said_);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  bool started() const { return child_ > 0; }
  // False when it ended without a word.
  bool wait_for_a_word() {
    std::array<char, 256> word{};
    const ssize_t got = read(said_, word.data(), word.size());
    if (got > 0) text_.append(word.data(), static_cast<std::size_t>(got));
    return got > 0;
  }
  // How it ended.
  int kill() {
    ::kill(child_, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    while (wait_for_a_word()) {
    }
    return status;
  }
  // Blocks that were removed, and that it did not mean to store again.
  std::set<std::pair<std::uint64_t, std::size_t>> removed() const {
    std::set<std::pair<std::uint64_t, std::size_t>> out;
    std::istringstream lines(text_);
    std::string what;
    while (lines >> what) {
      std::uint64_t number = 0;
      std::size_t block = 0;
      if (what == "ready" || !(lines >> number >> block)) continue;
      if (what == "-") out.insert({number, block});
      if (what == "+")
        for (std::size_t i = 0; i < block; ++i) out.erase({number, i});
    }
    return out;
  }

 private:
  pid_t child_ = -1;
  int said_ = -1;
  std::string text_;
};

TEST(CrashTest, WhatIsFoundAfterAKillHasItsBytes) {
  const ScratchFolder folder;
  Random random(5);
  const testing::TimeBox box(2);
  int kills = 0;
  std::size_t found = 0;
  std::size_t from_volume = 0;
  std::size_t stayed_away = 0;
  // On a busy machine a writer may die before it has done anything worth looking at: more of them, then.
  const auto seen_enough = [&] { return kills >= 5 && found > 0 && stayed_away > 0; };
  while (seen_enough() ? !box.over() : kills < 1000) {
    Writer writer(folder.path(), random.next());
    ASSERT_TRUE(writer.started());
    // Some die while they open what the one before left.
    if (random.below(4) != 0) {
      ASSERT_TRUE(writer.wait_for_a_word()) << "the writer did not start";
    }
    std::this_thread::sleep_for(
        std::chrono::microseconds(random.below(40'000)));  // the moment of death, not a wait
    const int status = writer.kill();
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself with " << WEXITSTATUS(status);
    ++kills;
    auto kv = KvBlockManager::create(KvWorkload::options_in(folder.path()));
    ASSERT_TRUE(kv) << kv.error();
    KvWorkload workload(**kv);
    for (const auto& [number, block] : writer.removed()) {
      const auto hash = KvWorkload::sequence(number, block + 1).back();
      const auto runs = (*kv)->find(std::span(&hash, 1));
      EXPECT_TRUE(runs.empty()) << "it was removed, and tier " << unsigned{runs[0].tier.value()} << " has it";
      ++stayed_away;
    }
    for (std::uint64_t number = 0; number < 12; ++number) {
      const auto hashes = KvWorkload::sequence(number, 6);
      const auto runs = (*kv)->find(hashes);
      std::size_t known = 0;
      for (const TierRun& run : runs) known += run.count;
      const OnboardHandle handle = (*kv)->onboard_async(hashes).value();
      const OnboardTable table = handle.wait().value();
      ASSERT_EQ(table.size(), known) << "everything that is found can be read; this is "
                                     << to_string(handle.blocks()[table.size()].miss) << " of tier "
                                     << unsigned{runs.back().tier.value()};
      ASSERT_TRUE(workload.right(table, hashes));
      found += table.size();
    }
    EXPECT_EQ((*kv)->status().g3->damaged, 0u);
    EXPECT_EQ((*kv)->status().g4->damaged, 0u);
    from_volume += (*kv)->status().g4->onboarded;
    // A put that is on its way when a manager goes may arrive behind a removal of the next writer.
    ASSERT_TRUE((*kv)->drain());
  }
  EXPECT_GT(found, 0u);
  RecordProperty("from_volume", static_cast<int>(from_volume));
  EXPECT_GT(stayed_away, 0u);
  RecordProperty("kills", kills);
}

}  // namespace
}  // namespace ashlar::tiers
