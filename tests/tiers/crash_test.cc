// A process that works on G3 and a volume is killed at any moment; what the next one finds has its bytes.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <string>
#include <thread>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {
namespace {

// Starts the writer and waits for its first word.
pid_t start_writer(const std::string& folder, std::uint64_t seed) {
  std::array<int, 2> pipe_ends{};
  if (pipe2(pipe_ends.data(), O_CLOEXEC) != 0) return -1;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, pipe_ends[1], STDOUT_FILENO);
  std::string program = G3_WRITER;
  std::string path = folder;
  std::string number = std::to_string(seed);
  std::array<char*, 4> arguments = {program.data(), path.data(), number.data(), nullptr};
  pid_t child = -1;
  const int error = posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe_ends[1]);
  std::array<char, 8> word{};
  const bool ready = error == 0 && read(pipe_ends[0], word.data(), word.size()) > 0;
  close(pipe_ends[0]);
  return ready ? child : -1;
}

TEST(CrashTest, WhatIsFoundAfterAKillHasItsBytes) {
  const ScratchFolder folder;
  Random random(5);
  const testing::TimeBox box(3);
  int kills = 0;
  std::size_t found = 0;
  std::size_t from_volume = 0;
  while (kills < 5 || !box.over()) {
    const pid_t child = start_writer(folder.path(), random.next());
    ASSERT_GT(child, 0) << "the writer did not start";
    std::this_thread::sleep_for(
        std::chrono::microseconds(random.below(40'000)));  // the moment of death, not a wait
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself with " << WEXITSTATUS(status);
    ++kills;
    auto kv = KvBlockManager::create(KvWorkload::options_in(folder.path()));
    ASSERT_TRUE(kv) << kv.error();
    KvWorkload workload(**kv);
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
  }
  EXPECT_GT(found, 0u);
  RecordProperty("from_volume", static_cast<int>(from_volume));
  RecordProperty("kills", kills);
}

}  // namespace
}  // namespace ashlar::tiers
