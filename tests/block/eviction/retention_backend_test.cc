#include "block/eviction/retention_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "support/block_fixture.h"
#include "support/eviction_cases.h"

namespace ashlar::block {
namespace {

using namespace std::chrono_literals;
using support::drained;
using support::EvictionWorld;
using support::name_of;
using support::peeked;
using support::value_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(RetentionOptionsTest, TheDefaultsAndTheLimitsAreValid) {
  EXPECT_TRUE(RetentionOptions{}.validate());
  EXPECT_TRUE((RetentionOptions{.default_priority = 0, .retained_share = 0, .half_life = 0s}).validate());
  EXPECT_TRUE((RetentionOptions{.default_priority = 100, .retained_share = 1}).validate());
  EXPECT_TRUE((RetentionOptions{.half_life = Clock::Duration::max()}).validate());
}

TEST(RetentionOptionsTest, OthersAreRefusedWithNameAndValue) {
  const auto message = [](const RetentionOptions& options) {
    const auto refused = options.validate();
    EXPECT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    return std::string(refused.error().message());
  };
  EXPECT_THAT(message({.default_priority = 101}), HasSubstr("default_priority is 101"));
  EXPECT_THAT(message({.retained_share = -0.25}), HasSubstr("retained_share is -0.25"));
  EXPECT_THAT(message({.retained_share = 1.5}), HasSubstr("retained_share is 1.5"));
  EXPECT_THAT(message({.retained_share = std::numeric_limits<double>::quiet_NaN()}), HasSubstr("nan"));
  EXPECT_THAT(message({.half_life = -5ns}), HasSubstr("half_life is -5 ns"));
  EXPECT_FALSE(RetentionBackend::create(EvictionContext{4, support::make_registry()}, {.retained_share = 2}));
  EXPECT_FALSE(support::builder_of(4).with_retention_backend({.retained_share = 2}).build());
  EXPECT_TRUE(support::builder_of(4).with_retention_backend().build());
}

class RetentionBackendTest : public ::testing::Test {
 protected:
  void use(const RetentionOptions& options) {
    backend_ = value_of(RetentionBackend::create(world_.context, options));
  }
  void insert(std::uint32_t id) { backend_.insert(BlockId(id), name_of(0, id)); }
  // With a retention, for a time from now.
  void insert(std::uint32_t id, std::uint8_t priority, std::optional<Clock::Duration> time = {}) {
    speak(id, priority, time);
    insert(id);
  }
  void speak(std::uint32_t id, std::uint8_t priority, std::optional<Clock::Duration> time = {}) {
    const BlockRetention retention{priority, time ? world_.clock.now() + *time : BlockRetention::kForever};
    world_.facts->set_retention(BlockId(id), retention);
  }
  // Where the block stands among markers of ascending priorities: the largest that goes before it.
  int priority_of(std::uint32_t id) {
    const auto order = peeked(backend_);
    const auto at = static_cast<std::size_t>(std::ranges::find(order, id) - order.begin());
    return at == 0 ? -1 : static_cast<int>(order[at - 1]) - 100;
  }

  EvictionWorld world_{300};
  RetentionBackend backend_ = value_of(RetentionBackend::create(world_.context));
};

TEST_F(RetentionBackendTest, ThePriorityDecidesFirstAndTheDefaultStandsBetween) {
  insert(0, 90);
  insert(1, 10);
  insert(2);
  insert(3, 36);
  insert(4, 34);
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 4u, 2u, 3u, 0u));
}

TEST_F(RetentionBackendTest, OfEqualPrioritiesTheOneReleasedOrTouchedLongestAgoGoesFirst) {
  for (const std::uint32_t id : {0u, 1u, 2u}) insert(id);
  for (const std::uint32_t id : {3u, 4u, 5u}) insert(id, 70);
  backend_.touch(BlockId(0));
  backend_.touch(BlockId(3));
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 2u, 0u, 4u, 5u, 3u));
}

TEST_F(RetentionBackendTest, ABlockThatWasNeverHitGoesBeforeAllOfItsPriorityThatWere) {
  use({.never_hit_first = true});
  world_.facts->set_hit(BlockId(0));
  world_.facts->set_hit(BlockId(3));
  insert(0);
  insert(1);
  insert(2, 70);
  insert(3, 70);
  insert(4, 70);
  EXPECT_THAT(peeked(backend_), ElementsAre(1u, 0u, 2u, 4u, 3u));
  world_.facts->set_hit(BlockId(1));
  backend_.touch(BlockId(1));
  EXPECT_THAT(drained(backend_), ElementsAre(0u, 1u, 2u, 4u, 3u));
}

TEST_F(RetentionBackendTest, HitsCountForNothingWhenTheOptionIsOff) {
  world_.facts->keep_hits();
  world_.facts->set_hit(BlockId(0));
  insert(0);
  insert(1);
  EXPECT_THAT(drained(backend_), ElementsAre(0u, 1u));
}

TEST_F(RetentionBackendTest, ThePriorityHoldsUntilItsTimeAndThenHalvesItsDistance) {
  for (std::uint32_t priority = 0; priority <= 100; ++priority) {
    // Markers; id 100 + priority. All are older than the block, so the last before it has its priority.
    if (priority != 35) insert(100 + priority, static_cast<std::uint8_t>(priority));
  }
  insert(135);
  insert(0, 99, 10s);
  const auto expect = [&](int priority) { EXPECT_EQ(priority_of(0), priority); };
  expect(99);
  world_.clock.advance(10s);
  expect(99);
  world_.clock.advance(30s - 1us);
  expect(99);
  for (const int priority : {67, 51, 43, 39, 37, 36, 35}) {
    world_.clock.advance(1us);
    expect(priority);
    world_.clock.advance(30s - 1us);
    expect(priority);
  }
  world_.clock.advance(24h);
  expect(35);
}

TEST_F(RetentionBackendTest, ALowPriorityRisesToTheDefaultInTheSameWay) {
  for (std::uint32_t priority = 0; priority <= 35; ++priority) {
    if (priority != 35) insert(100 + priority, static_cast<std::uint8_t>(priority));
  }
  insert(135);
  insert(0, 0, 1s);
  world_.clock.advance(1s);
  for (const int priority : {0, 18, 27, 31, 33, 34, 35, 35}) {
    EXPECT_EQ(priority_of(0), priority);
    world_.clock.advance(30s);
  }
}

TEST_F(RetentionBackendTest, ManyHalfLivesAtOnceAreAsGoodAsOneByOne) {
  insert(0, 99, 10s);
  insert(1, 50);
  insert(2, 60);
  insert(3);
  world_.clock.advance(10s + 61s);  // two half-lives: 51
  EXPECT_THAT(peeked(backend_), ElementsAre(3u, 1u, 0u, 2u));
  world_.clock.advance(1h);
  EXPECT_THAT(drained(backend_), ElementsAre(0u, 3u, 1u, 2u)) << "as old as it is, at the default";
}

TEST_F(RetentionBackendTest, WithoutAHalfLifeThePriorityIsTheDefaultWhenItsTimeIsOver) {
  use({.half_life = 0s});
  insert(0, 99, 10s);
  insert(1, 5, 10s);
  insert(2);
  EXPECT_THAT(peeked(backend_), ElementsAre(1u, 2u, 0u));
  world_.clock.advance(10s - 1us);
  EXPECT_THAT(peeked(backend_), ElementsAre(1u, 2u, 0u));
  world_.clock.advance(1us);
  EXPECT_THAT(drained(backend_), ElementsAre(0u, 1u, 2u));
}

TEST_F(RetentionBackendTest, ARetentionThatIsOverBeforeTheBlockComesHasFadedByThen) {
  speak(0, 99, 1s);
  insert(1, 60);
  world_.clock.advance(1s + 60s);
  insert(0);  // 51
  insert(2);
  EXPECT_THAT(drained(backend_), ElementsAre(2u, 0u, 1u));
}

TEST_F(RetentionBackendTest, ARetentionForEverDoesNotFade) {
  insert(0, 36);
  insert(1, 34);
  insert(2);
  world_.clock.advance(24h * 365);
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 2u, 0u));
}

TEST_F(RetentionBackendTest, AHalfLifeLongerThanTimeNeverEnds) {
  use({.half_life = Clock::Duration::max()});
  insert(0, 99, 1s);
  insert(1);
  world_.clock.advance(24h * 365);
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 0u));
}

TEST_F(RetentionBackendTest, BeyondTheCapTheFirstRetainedBlockIsDemoted) {
  use({.retained_share = 0.01});  // three of 300
  insert(9);
  insert(0, 80);
  insert(1, 60);
  insert(2, 70);
  EXPECT_THAT(peeked(backend_), ElementsAre(9u, 1u, 2u, 0u));
  insert(8);
  insert(3, 90);  // 1 has the default priority now; it was released before 8
  EXPECT_THAT(peeked(backend_), ElementsAre(9u, 1u, 8u, 2u, 0u, 3u));
  insert(4, 40);  // the lowest of them all is the newcomer itself
  EXPECT_THAT(peeked(backend_), ElementsAre(9u, 1u, 8u, 4u, 2u, 0u, 3u));
}

TEST_F(RetentionBackendTest, ADemotedBlockStaysSoUntilItIsTouched) {
  use({.retained_share = 0.01});
  insert(0, 50, 1h);
  for (const std::uint32_t id : {1u, 2u, 3u}) insert(id, 60);
  insert(9);
  for (const std::uint32_t id : {1u, 2u, 3u}) backend_.remove(BlockId(id));
  EXPECT_THAT(peeked(backend_), ElementsAre(0u, 9u)) << "room alone does not lift it";
  backend_.touch(BlockId(0));
  EXPECT_THAT(peeked(backend_), ElementsAre(9u, 0u));
  for (const std::uint32_t id : {1u, 2u, 3u}) insert(id, 60);
  backend_.touch(BlockId(0));
  EXPECT_THAT(peeked(backend_), ElementsAre(9u, 0u, 1u, 2u, 3u)) << "demoted again at once";
}

TEST_F(RetentionBackendTest, WhatHasFadedMakesRoomUnderTheCap) {
  use({.retained_share = 0.01, .half_life = 0s});
  for (const std::uint32_t id : {0u, 1u, 2u}) insert(id, 40, 10s);
  world_.clock.advance(10s);
  insert(3, 36);
  insert(4);
  EXPECT_THAT(drained(backend_), ElementsAre(0u, 1u, 2u, 4u, 3u));
}

TEST_F(RetentionBackendTest, NoShareMeansNoBlockIsRetainedButLowPrioritiesStillGoFirst) {
  use({.retained_share = 0});
  insert(0, 90);
  insert(1, 10);
  insert(2);
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 0u, 2u));
}

TEST_F(RetentionBackendTest, EvenTheWorthiestBlockIsAVictimInTheEnd) {
  use({.retained_share = 1});
  for (std::uint32_t id = 0; id < 300; ++id) insert(id, 100);
  EXPECT_EQ(drained(backend_).size(), 300u);
}

TEST_F(RetentionBackendTest, PeekForetellsPopAtEveryMomentOfADecay) {
  for (int round = 0; round < 12; ++round) {
    for (std::uint32_t id = 0; id < 20; ++id) insert(id, static_cast<std::uint8_t>(5 * id), 1s * (id % 7));
    world_.clock.advance(13s * round);
    const auto foretold = peeked(backend_);
    EXPECT_EQ(drained(backend_), foretold);
  }
}

TEST_F(RetentionBackendTest, AsksForTheFactsItReads) {
  EXPECT_TRUE(world_.facts->keeps_retentions());
  EXPECT_FALSE(world_.facts->keeps_hits());
  EXPECT_FALSE(world_.facts->keeps_acquisitions());
  EXPECT_FALSE(world_.facts->keeps_parents());
  use({.never_hit_first = true});
  EXPECT_TRUE(world_.facts->keeps_hits());
}

TEST_F(RetentionBackendTest, BlocksOfAPlanGoInTheOrderOfItsPriorities) {
  RetentionPlan plan;
  plan.prompt = {{0, 8, 90, {}}};
  plan.decode_priority = 20;
  for (std::uint32_t id = 0; id < 6;
       ++id) {  // blocks of 4 tokens: prompt up to token 16, then generated ones
    const auto asked = plan.of_block(id * 4, id * 4 + 4, 16, world_.clock.now());
    if (asked) world_.facts->set_retention(BlockId(id), *asked);
    insert(id);
  }
  EXPECT_THAT(drained(backend_), ElementsAre(4u, 5u, 2u, 3u, 0u, 1u));
}

}  // namespace
}  // namespace ashlar::block
