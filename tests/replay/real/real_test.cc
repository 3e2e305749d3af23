// Real managers with bytes find what the simulation says, block for block, and every byte is right.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ashlar/block/eviction.h"
#include "ashlar/replay/real.h"
#include "replay/real/kv_cache.h"
#include "replay/simulate/pool_cache.h"
#include "replay/simulate/random_trace.h"
#include "replay/simulate/replay_run.h"
#include "support/scratch_folder.h"

namespace ashlar::replay {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

using TierHits = std::array<std::uint32_t, kReplayTiers>;

std::vector<TierHits> hits_of(ReplayRun& run) {
  std::vector<TierHits> hits;
  const auto outcome =
      run.run({}, [&](std::uint32_t, const CacheChange& change) { hits.push_back(change.hits); });
  EXPECT_TRUE(outcome) << outcome.error();
  return hits;
}

// The same hits, request by request and tier by tier.
void expect_same_hits(const TraceTable& trace, const ReplayConfig& config) {
  const ScratchFolder folder;
  ReplayRun simulated(trace, config);
  ReplayRun real(trace, config);
  std::uint64_t verified = 0;
  for (std::uint32_t worker = 0; worker < config.workers; ++worker) {
    simulated.add_cache(make_pool_cache(trace, config, simulated.presence(), worker).value());
    real.add_cache(make_kv_cache(trace, config, {}, folder.file("g3-" + std::to_string(worker)),
                                 real.presence(), worker, verified)
                       .value());
  }
  const auto expected = hits_of(simulated);
  const auto found = hits_of(real);
  const auto& shape = config.tier_blocks;
  ASSERT_EQ(found.size(), expected.size());
  for (std::size_t i = 0; i < found.size(); ++i)
    ASSERT_EQ(found[i], expected[i]) << "request " << i << ", " << config.policy << ", G2 of " << shape[1]
                                     << ", G3 of " << shape[2];
  // Every tier was of use, and had to evict.
  ASSERT_GT(trace.distinct(), config.workers * std::max(shape[0], std::max(shape[1], shape[2])));
  std::uint64_t all = 0;
  for (std::size_t tier = 0; tier < kReplayTiers && shape[tier] != 0; ++tier) {
    std::uint64_t hits = 0;
    for (const TierHits& each : found) hits += each[tier];
    EXPECT_GT(hits, 0u) << "tier " << tier << " of " << shape[0] << " " << shape[1] << " " << shape[2];
    all += hits;
  }
  EXPECT_EQ(verified, all);
}

TEST(RealReplayTest, FindsWhatTheSimulationSaysBlockForBlock) {
  // Batches hold a sixteenth of a tier, 8 blocks or more, and requests are no longer.
  for (const std::array<std::uint32_t, 3> shape :
       {std::array<std::uint32_t, 3>{128, 0, 0}, {128, 200, 0}, {128, 160, 400}})
    expect_same_hits(random_trace(shape[1] + 1, 1'000, 8, 800),
                     {.workers = 2, .tier_blocks = shape, .routing = Routing::kPrefix});
}

// Of several batches on the way down and up.
TEST(RealReplayTest, FindsTheSameOfLongRequests) {
  expect_same_hits(random_trace(5, 400, 60, 300), {.tier_blocks = {128, 160, 400}});
}

TEST(RealReplayTest, FindsTheSameWithEveryPolicy) {
  const TraceTable trace = random_trace(77, 450, 30, 400);
  for (const std::string& policy : block::eviction_names())
    expect_same_hits(trace, {.tier_blocks = {128, 160, 300}, .policy = policy});
}

TEST(RealReplayTest, ComparesEveryHitInEveryTier) {
  const TraceTable trace = random_trace(4, 400, 16);
  const ReplayConfig config{.tier_blocks = {32, 48, 400}, .policy = "s3_fifo"};
  const auto outcome = replay_real(trace, config).value();
  EXPECT_TRUE(outcome.is_real);
  EXPECT_EQ(outcome.verified, outcome.total.hit_blocks());
  for (const std::uint64_t hits : outcome.total.hits) EXPECT_GT(hits, 0u);
  EXPECT_GT(outcome.total.written[2], 0u);
}

TEST(RealReplayTest, LeavesTheFolderItIsGivenAsItWas) {
  const ScratchFolder folder;
  const TraceTable trace = random_trace(2, 100, 8);
  const ReplayConfig config{.tier_blocks = {16, 16, 64}};
  const std::string mine = folder.file("worker-0.g3");
  std::ofstream(mine) << "kept";
  std::vector<std::string> seen;
  const auto names = [&] {
    std::vector<std::string> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder.path()))
      found.push_back(entry.path().filename().string());
    return found;
  };
  const auto once = replay_real(trace, config, {.folder = folder.path()}, [&](std::uint64_t, std::uint64_t) {
                      seen = names();
                      return true;
                    }).value();
  EXPECT_THAT(seen, UnorderedElementsAre("worker-0.g3", HasSubstr("ashlar_replay_")));
  EXPECT_THAT(names(), ElementsAre("worker-0.g3"));
  EXPECT_EQ(std::filesystem::file_size(mine), 4u);
  // A second run begins with empty tiers.
  const auto again = replay_real(trace, config, {.folder = folder.path()}).value();
  EXPECT_EQ(once.total.hits, again.total.hits);
  EXPECT_THAT(replay_real(trace, config, {.folder = folder.file("absent")}).error().message(),
              HasSubstr("absent"));
  EXPECT_THAT(replay_real(trace, config, {.block_bytes = 100}).error().message(), HasSubstr("4096"));
}

}  // namespace
}  // namespace ashlar::replay
