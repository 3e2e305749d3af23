// Many threads on one manager, with an oracle at every rest.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "ashlar/testing/time_box.h"
#include "block/stress/manager_stress.h"
#include "block/stress/yielding_hook.h"

namespace ashlar::block::stress {
namespace {

using Parameters = std::tuple<std::size_t, DuplicatePolicy>;

class ManagerStressTest : public ::testing::TestWithParam<Parameters> {};

TEST_P(ManagerStressTest, WhatThreadsHoldAddsUpToWhatTheManagerSays) {
  const testing::TimeBox box(1);
  const YieldingHook hook;
  std::uint64_t seed = 0;
  std::uint64_t operations = 0;
  ManagerCounters total;
  do {
    StressOptions options;
    options.threads = std::get<0>(GetParam());
    options.duplicates = std::get<1>(GetParam());
    options.seed = ++seed;
    // Few blocks for many names, then names for every block: evictions, then duplicates and shared blocks.
    options.blocks = seed % 2 == 0 ? 16 : 48;
    options.hashes = seed % 2 == 0 ? 40 : 12;
    options.backend = seed % 4 < 2 ? "lru" : "hashmap_fifo";
    SCOPED_TRACE("seed " + std::to_string(seed));
    ManagerStress stress(options);
    for (int round = 0; round < 8; ++round) {
      stress.run_round(400);
      stress.check();
    }
    stress.finish();
    operations += stress.operations();
    const ManagerCounters counters = stress.counters();
    total.evictions += counters.evictions;
    total.revivals += counters.revivals;
    total.late_releases += counters.late_releases;
    total.match_blocks_returned += counters.match_blocks_returned;
    // Two seeds at least, one of each kind, however slow the machine.
  } while ((seed < 2 || !box.over()) && !HasFailure());
  RecordProperty("operations", std::to_string(operations));
  RecordProperty("late_releases", std::to_string(total.late_releases));
  EXPECT_GT(total.evictions, 0u);
  EXPECT_GT(total.revivals, 0u);
  EXPECT_GT(total.match_blocks_returned, 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, ManagerStressTest,
                         ::testing::Combine(::testing::Values(2, 4, 8),
                                            ::testing::Values(DuplicatePolicy::kAllow,
                                                              DuplicatePolicy::kReject)),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) +
                                  (std::get<1>(tested.param) == DuplicatePolicy::kAllow ? "_Allow"
                                                                                        : "_Reject");
                         });

}  // namespace
}  // namespace ashlar::block::stress
