// Two managers of different tiers on one registry, in lockstep with their naive models: random operations on
// few hashes and few blocks, everything observable compared after each step.
//
// A failure prints the seed and the operations; the seed goes into kSeeds, which always run.
#include <gtest/gtest.h>

#include <string>
#include <tuple>

#include "ashlar/base/random.h"
#include "ashlar/block/eviction.h"
#include "ashlar/testing/time_box.h"
#include "block/property/side.h"
#include "block/property/trace.h"
#include "block/property/world.h"
#include "support/rounds.h"

namespace ashlar::block::property {
namespace {

constexpr std::uint64_t kSeeds = 12;  // 1 … kSeeds always run
constexpr std::size_t kSteps = 400;

using Parameters =
    std::tuple<std::string, DuplicatePolicy, std::uint32_t>;  // backend, duplicates, block size

class ManagerPropertyTest : public ::testing::TestWithParam<Parameters> {
 protected:
  static SideOptions random_side(Random& random, std::uint8_t tier) {
    const auto& [backend, duplicates, block_size] = GetParam();
    SideOptions side;
    side.backend = backend;
    // What is used in one tier is refreshed in the other, which the model leaves out; first in, first out
    // does too.
    side.order_is_known = backend == "hashmap_fifo";
    side.model.tier = tier;
    side.model.duplicates = duplicates;
    side.model.block_count = static_cast<Id>(random.chance(0.3) ? 1 + random.below(4) : 1 + random.below(40));
    side.model.last_in_first_out = random.chance(0.3);
    side.model.default_reset_on_release = random.chance(0.15);
    side.model.max_pins = 1 + random.below(6);
    if (random.chance(0.7)) {
      side.model.watermarks.high = 1 + random.below(side.model.block_count);
      side.model.watermarks.low = random.below(side.model.watermarks.high + 1);
    }
    return side;
  }

  // True when the manager and the model agreed to the end.
  static bool run(std::uint64_t seed) {
    const auto& [backend, duplicates, block_size] = GetParam();
    Trace trace("seed " + std::to_string(seed) + ", " + backend + ", blocks of " +
                std::to_string(block_size));
    const TraceOnAbort on_abort(trace);
    Random random(seed);
    World world(block_size, random.fork(), trace);
    Side<events::G1> g1(random_side(random, 0), world);
    Side<events::G2> g2(random_side(random, 1), world);
    for (std::size_t step = 0; step < kSteps && !trace.failed(); ++step) {
      const std::uint64_t who = random.below(20);
      bool pools = true;
      if (who < 11) {
        g1.step();
      } else if (who < 17) {
        g2.step();
      } else if (who < 19) {
        world.step();
      } else {
        // Pins whose time is over are left to be noticed by the next operation.
        const Clock::TimePoint before = world.clock().now();
        world.advance();
        g1.advance_model(world.clock().now() - before);
        g2.advance_model(world.clock().now() - before);
        pools = false;
      }
      if (!trace.failed()) g1.compare(pools);
      if (!trace.failed()) g2.compare(pools);
      if (!trace.failed()) world.compare();
    }
    if (!trace.failed()) g1.drop_everything();
    if (!trace.failed()) g2.drop_everything();
    if (!trace.failed()) world.drop_handles();
    if (!trace.failed()) world.compare();
    EXPECT_FALSE(trace.failed()) << trace.report();
    return !trace.failed();
  }
};

TEST_P(ManagerPropertyTest, ManagerAndModelAgreeOnKnownSeeds) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(kSeeds); ++seed) ASSERT_TRUE(run(seed));
}

TEST_P(ManagerPropertyTest, ManagerAndModelAgreeOnNewSeeds) {
  const testing::TimeBox box(0.5);
  std::uint64_t seed = kSeeds;
  while (!box.over()) ASSERT_TRUE(run(++seed));
  RecordProperty("seeds", std::to_string(seed));
}

INSTANTIATE_TEST_SUITE_P(Backends, ManagerPropertyTest,
                         ::testing::Combine(::testing::ValuesIn(eviction_names()),
                                            ::testing::Values(DuplicatePolicy::kAllow,
                                                              DuplicatePolicy::kReject),
                                            ::testing::Values(2u, 16u)),
                         [](const auto& tested) {
                           return std::get<0>(tested.param) +
                                  (std::get<1>(tested.param) == DuplicatePolicy::kAllow ? "_Allow_"
                                                                                        : "_Reject_") +
                                  std::to_string(std::get<2>(tested.param));
                         });

TEST(WorldTest, BlocksOfTwoTokensHaveHashCollisions) {
  Trace trace("world");
  const World world(2, Random(1), trace);
  EXPECT_GE(world.collisions(), 1u);
}

}  // namespace
}  // namespace ashlar::block::property
