// RouteCore and Router: costs, claims, loads, determinism.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ashlar/base/random.h"
#include "ashlar/service/router.h"
#include "service/route/random_routes.h"
#include "service/route/route_core.h"
#include "service/route/seen_blocks.h"

namespace ashlar::service {
namespace {

using events::BlockName;
using events::StorageTier;
using events::Worker;
using events::WorkerId;
using tokens::LocalHash;

constexpr std::uint32_t kBlock = 16;

std::vector<LocalHash> chain(std::uint64_t first, std::size_t count) {
  std::vector<LocalHash> locals;
  for (std::size_t i = 0; i < count; ++i) locals.emplace_back(first * 1000 + i);
  return locals;
}

class RouteTest : public ::testing::Test {
 protected:
  Worker add(std::uint64_t id, bool has_events = true, std::uint32_t max_running = 0,
             std::string group = "m") {
    router_.add_worker({.id = WorkerId(id),
                        .group = std::move(group),
                        .max_running = max_running,
                        .has_events = has_events});
    const Worker worker{.id = WorkerId(id)};
    router_.set_state(worker, has_events ? WorkerState::kExact : WorkerState::kFallback);
    return worker;
  }
  void store(const Worker& worker, const std::vector<LocalHash>& locals,
             StorageTier tier = StorageTier::kDevice) {
    std::vector<events::StoredBlock> blocks;
    for (const LocalHash local : locals) blocks.push_back({.local = local, .name = BlockName(local.value())});
    events::BlocksStored event;
    event.worker = worker;
    event.tier = tier;
    event.blocks = blocks;
    ASSERT_EQ(router_.sink().store(event), events::StoreVerdict::kApplied);
  }
  Result<Decision> choose(const std::vector<LocalHash>& locals, RouteRequest request = {}) {
    request.group = "m";
    request.locals = locals;
    if (request.prompt_tokens == 0) request.prompt_tokens = locals.size() * kBlock + 5;
    request.block_size = kBlock;
    return router_.choose(request);
  }

  ManualClock clock_;
  Router router_{{}, nullptr, clock_};
};

TEST_F(RouteTest, ThePrefixDecides) {
  add(1);
  const Worker two = add(2);
  add(3);
  store(two, chain(7, 10));
  const Decision decision = choose(chain(7, 12)).value();
  EXPECT_EQ(decision.choice().worker, two);
  EXPECT_EQ(decision.cached_tokens, 10u * kBlock);
  EXPECT_EQ(decision.available_tokens, 10u * kBlock);
  ASSERT_EQ(decision.candidates.size(), 3u);
  EXPECT_EQ(decision.choice().prefill_cost, (12 * kBlock + 5) * 1000 / kBlock - 10'000);
  router_.release(decision.id);
}

TEST_F(RouteTest, AnEngineAlwaysComputesTheLastToken) {
  const Worker one = add(1);
  store(one, chain(7, 4));
  EXPECT_EQ(choose(chain(7, 4), {.prompt_tokens = 4 * kBlock})->cached_tokens, 3u * kBlock);
  EXPECT_EQ(choose(chain(7, 4), {.prompt_tokens = 4 * kBlock + 1})->cached_tokens, 4u * kBlock);
}

TEST_F(RouteTest, LoadOutweighsASmallPrefix) {
  const Worker one = add(1);
  const Worker two = add(2);
  store(one, chain(7, 2));
  std::vector<DecisionId> held;
  for (std::uint64_t i = 0; i < 8; ++i) {
    const Decision other = choose(chain(100 + i, 50), {.tried = std::span(&two, 1)}).value();
    ASSERT_EQ(other.choice().worker, one);
    held.push_back(other.id);
  }
  const Decision loaded = choose(chain(7, 4)).value();
  EXPECT_EQ(loaded.choice().worker, two);
  EXPECT_EQ(loaded.cached_tokens, 0u);
  EXPECT_EQ(loaded.available_tokens, 2u * kBlock) << "what routing gave up is said";
  router_.release(loaded.id);
  for (const DecisionId id : held) router_.release(id);
  clock_.advance(std::chrono::seconds(6));  // what the second was expected to hold
  EXPECT_EQ(choose(chain(7, 4))->choice().worker, one);
}

TEST_F(RouteTest, AWorkerWhoseEventsAreNotReadIsNotExact) {
  const Worker one = add(1);
  const Worker two = add(2);
  EXPECT_TRUE(router_.beat(one, std::chrono::seconds(2)));
  clock_.advance(std::chrono::seconds(1));
  EXPECT_EQ(choose(chain(7, 4))->candidates[0].state, WorkerState::kExact);
  EXPECT_TRUE(router_.beat(one, std::chrono::seconds(2)));
  clock_.advance(std::chrono::seconds(2));
  EXPECT_EQ(router_.loads()[0].state, WorkerState::kDegraded);
  const Decision late = choose(chain(7, 4)).value();
  EXPECT_EQ(late.candidates[0].state, WorkerState::kDegraded);
  EXPECT_EQ(late.candidates[1].state, WorkerState::kExact) << "it never had a beat";
  EXPECT_FALSE(router_.beat(one, std::chrono::seconds(2))) << "too late";
  router_.set_state(one, WorkerState::kExact);
  EXPECT_EQ(choose(chain(7, 4))->candidates[0].state, WorkerState::kExact);
  // Nobody has asked before the beat that is late.
  clock_.advance(std::chrono::seconds(2));
  EXPECT_FALSE(router_.beat(one, std::chrono::seconds(2)));
  EXPECT_EQ(choose(chain(7, 4))->candidates[0].state, WorkerState::kDegraded);
  router_.remove_worker(one.id);
  EXPECT_FALSE(router_.is_late(one));
  EXPECT_FALSE(router_.is_late(two));
}

TEST_F(RouteTest, LowerTiersHaveLessCredit) {
  const Worker one = add(1);
  const Worker two = add(2);
  store(one, chain(7, 8), StorageTier::kDisk);
  store(two, chain(7, 8), StorageTier::kHost);
  const Decision decision = choose(chain(7, 9)).value();
  EXPECT_EQ(decision.choice().worker, two);
  EXPECT_EQ(decision.choice().blocks[static_cast<std::size_t>(StorageTier::kHost)], 8u);
}

TEST_F(RouteTest, PredictionsSteerButAreNotClaimed) {
  add(1);
  add(2);
  const Decision first = choose(chain(7, 20)).value();
  router_.first_byte(first.id);
  const Decision second = choose(chain(7, 20)).value();
  EXPECT_EQ(second.choice().worker, first.choice().worker);
  EXPECT_EQ(second.choice().predicted, 20u);
  EXPECT_EQ(second.choice().depth, 0u);
  EXPECT_EQ(second.cached_tokens, 0u) << "no event said so";
  router_.release(first.id);
  router_.release(second.id);
  clock_.advance(std::chrono::seconds(6));
  EXPECT_EQ(choose(chain(7, 20))->choice().predicted, 0u);
}

TEST_F(RouteTest, WithoutEventsThePredictionIsTheClaimAndTheStateSaysSo) {
  add(1, false);
  router_.release(choose(chain(7, 20))->id);
  clock_.advance(std::chrono::seconds(60));
  const Decision second = choose(chain(7, 20)).value();
  EXPECT_EQ(second.cached_tokens, 20u * kBlock);
  EXPECT_EQ(second.choice().state, WorkerState::kFallback);
  clock_.advance(std::chrono::seconds(121));
  EXPECT_EQ(choose(chain(7, 20))->cached_tokens, 0u);
}

TEST_F(RouteTest, AClearEndsWhatWasExpectedToo) {
  const Worker one = add(1);
  router_.release(choose(chain(7, 20))->id);
  store(one, chain(7, 5));
  router_.sink().clear(one);
  const Decision decision = choose(chain(7, 20)).value();
  EXPECT_EQ(decision.choice().predicted, 0u);
  EXPECT_EQ(decision.changes, (WorkerChanges{.stored = 5, .removed = 0, .cleared = 1}));
}

TEST_F(RouteTest, WhatAnEarlierRouterSaysIsExpectedUntilTheWorkerIsExact) {
  const Worker one = add(1);
  router_.set_state(one, WorkerState::kDegraded);
  router_.expect(one, chain(7, 9));
  const Decision decision = choose(chain(7, 9)).value();
  EXPECT_EQ(decision.choice().predicted, 9u);
  EXPECT_EQ(decision.cached_tokens, 0u);
  router_.release(decision.id);
  clock_.advance(std::chrono::seconds(6));
  router_.set_state(one, WorkerState::kExact);
  EXPECT_EQ(choose(chain(7, 9))->choice().predicted, 0u);
  router_.expect(one, chain(8, 9));
  EXPECT_EQ(choose(chain(8, 9))->choice().predicted, 0u) << "it is known what it holds";
}

TEST_F(RouteTest, FullDownAndTriedWorkersAreLeftOutWithTheirReason) {
  const Worker one = add(1, true, 1);
  const Worker two = add(2, true, 1);
  const Worker three = add(3);
  router_.set_up(three.id, false);
  const Decision a = choose(chain(7, 2)).value();
  const Decision b = choose(chain(7, 2)).value();
  EXPECT_NE(a.choice().worker, b.choice().worker);
  EXPECT_EQ(choose(chain(7, 2)).error().code(), ErrorCode::kCapacity);
  router_.release(a.id);
  const Decision c = choose(chain(7, 2)).value();
  EXPECT_EQ(c.choice().worker, a.choice().worker);
  router_.release(b.id);
  router_.release(c.id);
  const std::vector<Worker> tried = {one, two};
  const auto none = choose(chain(7, 2), {.tried = tried});
  EXPECT_EQ(none.error().code(), ErrorCode::kUnavailable);
  router_.set_up(three.id, true);
  const Decision last = choose(chain(7, 2), {.tried = tried}).value();
  EXPECT_EQ(last.choice().worker, three);
  EXPECT_EQ(last.candidates[0].exclusion, Exclusion::kTried);
}

TEST_F(RouteTest, EqualWorkersTakeTurns) {
  for (std::uint64_t id = 1; id <= 4; ++id) add(id);
  std::multiset<std::uint64_t> seen;
  for (std::uint64_t i = 0; i < 40; ++i) {
    const Decision decision = choose({}, {.prompt_tokens = 3}).value();
    seen.insert(decision.choice().worker.id.value());
    router_.release(decision.id);
  }
  for (std::uint64_t id = 1; id <= 4; ++id) EXPECT_EQ(seen.count(id), 10u);
}

// Never seen, evicted, elsewhere, behind a gap: see MissReason.
TEST_F(RouteTest, SaysWhyBlocksAreMissing) {
  const Worker one = add(1);
  const Worker two = add(2);
  const auto missed = [&](const std::vector<LocalHash>& locals) {
    const Decision decision = choose(locals, {.tried = std::span(&two, 1)}).value();
    EXPECT_EQ(decision.choice().worker, one);
    router_.release(decision.id);
    return decision.missed;
  };
  EXPECT_THAT(missed(chain(7, 10)), ::testing::ElementsAre(10, 0, 0, 0));
  store(one, chain(7, 10));
  store(two, chain(7, 12));
  EXPECT_THAT(missed(chain(7, 10)), ::testing::ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(missed(chain(7, 14)), ::testing::ElementsAre(2, 0, 2, 0)) << "two more have come with a hit";
  // The sixth goes: what is behind it is behind a gap, but for what the other worker has as well.
  const BlockName sixth[] = {BlockName(7005)};
  router_.sink().remove(one, StorageTier::kDevice, sixth);
  EXPECT_THAT(missed(chain(7, 10)), ::testing::ElementsAre(0, 0, 1, 4));
  router_.sink().clear(two);
  EXPECT_THAT(missed(chain(7, 10)), ::testing::ElementsAre(0, 1, 0, 4));
  router_.sink().clear(one);
  EXPECT_THAT(missed(chain(7, 14)), ::testing::ElementsAre(0, 14, 0, 0));
  // The same block behind others is another one.
  std::vector<LocalHash> other = chain(8, 2);
  other.push_back(LocalHash(7002));
  EXPECT_THAT(missed(other), ::testing::ElementsAre(3, 0, 0, 0));
  // Nobody knows what a worker without events holds.
  router_.set_state(one, WorkerState::kFallback);
  EXPECT_THAT(missed(chain(9, 3)), ::testing::ElementsAre(0, 0, 0, 0));
  router_.set_state(one, WorkerState::kExact);
  EXPECT_THAT(missed(chain(9, 3)), ::testing::ElementsAre(3, 0, 0, 0));
}

TEST(SeenBlocks, RememberTheYoungest) {
  SeenBlocks seen;
  constexpr std::uint64_t kNames = 3 * SeenBlocks::kSets;
  std::uint64_t known = 0;
  for (std::uint64_t i = 0; i < kNames; ++i) known += seen.add(spread_bits(i)) ? 0 : 1;
  EXPECT_EQ(known, 0u) << "names that came for the first time";
  const auto known_of_the_last = [&](std::uint64_t count) {
    SeenBlocks copy;  // asking remembers too
    for (std::uint64_t i = 0; i < kNames; ++i) copy.add(spread_bits(i));
    std::uint64_t sum = 0;
    for (std::uint64_t i = kNames - count; i < kNames; ++i) sum += copy.add(spread_bits(i)) ? 0 : 1;
    return sum;
  };
  EXPECT_GT(known_of_the_last(500'000), 499'000u);
}

TEST_F(RouteTest, ASessionIsAHintNotARule) {
  const Worker one = add(1);
  const Worker two = add(2);
  const Decision first = choose({}, {.prompt_tokens = 8, .session = 5}).value();
  ASSERT_EQ(first.choice().worker, one);
  router_.release(first.id);
  router_.release(choose({}, {.prompt_tokens = 8, .session = 6})->id);
  const Decision again = choose({}, {.prompt_tokens = 8, .session = 5}).value();
  EXPECT_EQ(again.choice().worker, one);
  EXPECT_LT(again.choice().session_cost, 0);
  for (int i = 0; i < 4; ++i) choose({}, {.prompt_tokens = 800, .tried = std::span(&two, 1)}).value();
  EXPECT_NE(choose({}, {.prompt_tokens = 8, .session = 5})->choice().worker, one) << "it is busy";
}

TEST_F(RouteTest, PoliciesAndChanceAreReproducible) {
  for (std::uint64_t id = 1; id <= 3; ++id) add(id);
  store({.id = WorkerId(2)}, chain(7, 8));
  std::multiset<std::uint64_t> turns;
  for (int i = 0; i < 9; ++i)
    turns.insert(choose(chain(7, 8), {.policy = Policy::kRoundRobin})->choice().worker.id.value());
  for (std::uint64_t id = 1; id <= 3; ++id) EXPECT_EQ(turns.count(id), 3u);
  std::set<std::uint64_t> random;
  std::set<std::uint64_t> warm;
  CostWeights weights;
  weights.temperature = 2000;
  while (random.size() < 3 || warm.size() < 3) {
    const Decision decision = choose(chain(7, 8), {.policy = Policy::kRandom}).value();
    EXPECT_NE(decision.draw, 0u);
    random.insert(decision.choice().worker.id.value());
    warm.insert(choose(chain(7, 8), {.weights = weights})->choice().worker.id.value());
  }
  EXPECT_EQ(choose(chain(7, 8), {.policy = Policy::kLeastLoaded})->choice().session_cost, 0);
}

TEST_F(RouteTest, OnlyThePrefixPolicyHesitates) {
  for (std::uint64_t id = 1; id <= 3; ++id) add(id);
  // The blocks are expected at all of them, and reported by none.
  for (int i = 0; i < 3; ++i) choose(chain(7, 8), {.policy = Policy::kRoundRobin}).value();
  EXPECT_EQ(choose(chain(7, 8), {.hesitates = true}).error().code(), ErrorCode::kNotReady);
  std::vector<std::uint64_t> turns;
  for (int i = 0; i < 6; ++i)
    turns.push_back(
        choose(chain(7, 8), {.policy = Policy::kRoundRobin, .hesitates = true})->choice().worker.id.value());
  EXPECT_THAT(turns, ::testing::ElementsAre(1, 2, 3, 1, 2, 3)) << "nobody loses a turn";
  for (const Policy policy : {Policy::kRandom, Policy::kLeastLoaded})
    EXPECT_TRUE(choose(chain(7, 8), {.policy = policy, .hesitates = true}).has_value());
}

TEST_F(RouteTest, RanksAreWorkersOfTheirOwn) {
  router_.add_worker({.id = WorkerId(1), .group = "m", .ranks = 4, .has_events = true});
  const Worker third{.id = WorkerId(1), .rank = 2};
  router_.set_state(third, WorkerState::kExact);
  store(third, chain(7, 8));
  EXPECT_EQ(choose(chain(7, 9))->choice().worker, third);
  const Decision pinned = choose(chain(7, 9), {.rank = 1}).value();
  EXPECT_EQ(pinned.choice().worker.rank, 1u);
  EXPECT_EQ(pinned.candidates[2].exclusion, Exclusion::kOtherRank);
}

TEST_F(RouteTest, AWorkerThatComesBackCarriesNothingOfItsFormerLife) {
  const Worker one = add(1);
  store(one, chain(7, 8));
  const Decision before = choose(chain(7, 9)).value();
  router_.remove_worker(one.id);
  EXPECT_EQ(choose(chain(7, 9)).error().code(), ErrorCode::kNotFound);
  add(1);
  EXPECT_EQ(choose(chain(7, 9))->cached_tokens, 0u);
  router_.release(before.id);
  ASSERT_EQ(router_.loads().size(), 1u);
  EXPECT_EQ(router_.loads()[0].requests, 1u) << "the release of the former life changes nothing";
  add(1, true, 0, "other");
  EXPECT_EQ(choose(chain(7, 9)).error().code(), ErrorCode::kNotFound);
}

TEST_F(RouteTest, UnknownWorkersAndGroupsAreRefused) {
  const Worker nobody{.id = WorkerId(9)};
  const std::vector<events::StoredBlock> blocks = {{.local = LocalHash(1), .name = BlockName(1)}};
  events::BlocksStored event;
  event.worker = nobody;
  event.blocks = blocks;
  EXPECT_EQ(router_.sink().store(event), events::StoreVerdict::kFull);
  router_.sink().clear(nobody);
  router_.set_state(nobody, WorkerState::kExact);
  router_.set_up(nobody.id, false);
  EXPECT_TRUE(router_.look_up("m", chain(1, 1)).empty());
  EXPECT_EQ(choose(chain(1, 1)).error().code(), ErrorCode::kNotFound);
}

// Loads are a function of the reservations that are open; a model counts them.
TEST(RouteLoads, FollowAModelOfOpenReservations) {
  RandomRoutes routes(3);
  routes.run(2000);
  EXPECT_GT(routes.refused(), 0u);
  EXPECT_GT(routes.chosen(), 200u);
}

// Two cores that hear the same calls choose the same; byte by byte is the journal's test.
TEST(RouteLoads, EqualCallsGiveEqualChoices) {
  RandomRoutes a(11);
  RandomRoutes b(11);
  a.run(1500);
  b.run(1500);
  EXPECT_EQ(a.decisions(), b.decisions());
}

// What is ended early would have been ended first.
TEST(RouteLoads, TidyingChangesNoChoice) {
  RandomRoutes tidied(12);
  RandomRoutes left_alone(12);
  for (int i = 0; i < 1500; ++i) {
    tidied.run(1);
    tidied.router().tidy();
    left_alone.run(1);
  }
  EXPECT_GT(tidied.chosen(), 200u);
  EXPECT_EQ(tidied.decisions(), left_alone.decisions());
}

// The same where prompts are long, in several steps.
TEST(RouteLoads, TidyingOfLongPromptsChangesNoChoice) {
  const RouterOptions options{.prediction_ttl = std::chrono::seconds(1),
                              .fallback_ttl = std::chrono::seconds(3),
                              .seed = 5,
                              .max_sessions = 4,
                              .max_predicted_blocks = 150,
                              .max_predictions = 1000};
  RandomRoutes tidied(13, nullptr, options, 200);
  RandomRoutes left_alone(13, nullptr, options, 200);
  std::size_t ended = 0;
  std::size_t most = 0;
  for (int i = 0; i < 1500; ++i) {
    tidied.run(1);
    const std::size_t before = tidied.router().sizes("m").predicted;
    tidied.router().tidy();
    const std::size_t here = before - tidied.router().sizes("m").predicted;
    ended += here;
    most = std::max(most, here);
    left_alone.run(1);
  }
  EXPECT_GT(ended, 10'000u);
  EXPECT_GT(most, 256u) << "more than a step";
  EXPECT_GT(tidied.router().sizes("m").predictions_evicted, 0u) << "the limit was reached too";
  EXPECT_GT(tidied.chosen(), 200u);
  EXPECT_EQ(tidied.decisions(), left_alone.decisions());
}

TEST_F(RouteTest, TidyingEndsWhatIsOverWithoutAChoice) {
  add(1, false);
  for (std::uint64_t prompt = 1; prompt <= 20; ++prompt) router_.release(choose(chain(prompt, 100))->id);
  clock_.advance(std::chrono::seconds(60));
  router_.release(choose(chain(1, 100))->id);
  router_.tidy();
  EXPECT_EQ(router_.sizes("m").predicted, 2000u) << "nothing is over";
  clock_.advance(std::chrono::seconds(61));
  router_.tidy();
  EXPECT_EQ(router_.sizes("m").predicted, 100u) << "but what was expected again";
  clock_.advance(std::chrono::seconds(61));
  router_.tidy();
  EXPECT_EQ(router_.sizes("m").predicted, 0u);
}

TEST(RouteLimits, OfPredictionsOfOneRequestAndOfAll) {
  ManualClock clock;
  Router router({.max_predicted_blocks = 8, .max_predictions = 20}, nullptr, clock);
  for (const std::uint64_t id : {1, 2}) router.add_worker({.id = events::WorkerId(id), .group = "m"});
  const auto route = [&](std::uint64_t first, std::size_t blocks) {
    std::vector<tokens::LocalHash> locals;
    for (std::size_t i = 0; i < blocks; ++i) locals.emplace_back(first * 1000 + i);
    const Decision decision =
        router.choose({.group = "m", .locals = locals, .prompt_tokens = blocks * 16 + 1, .block_size = 16})
            .value();
    router.release(decision.id);
    return decision.available_tokens / 16;
  };
  EXPECT_EQ(route(1, 5), 0u);
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(route(2, 30), 0u);
  clock.advance(std::chrono::seconds(1));
  EXPECT_EQ(route(2, 30), 8u) << "the others are not expected";
  EXPECT_EQ(router.sizes("m").predictions_cut, 22u);
  EXPECT_EQ(route(3, 8), 0u);
  EXPECT_EQ(router.sizes("m").predictions_evicted, 5u);
  EXPECT_EQ(route(1, 5), 0u) << "the oldest";
  EXPECT_LE(router.sizes("m").predicted, 20u);
  EXPECT_FALSE((RouterOptions{.max_predicted_blocks = 9, .max_predictions = 8}).validate());
}

}  // namespace
}  // namespace ashlar::service
