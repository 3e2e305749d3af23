// The slot-word protocol in every execution of a set of scenarios, and the same scenarios against mutants of
// it.
//
// A mutant weakens one order or breaks one rule and names the scenarios that notice. A run checks the first
// of them, and what it comes to; with ASHLAR_TEST_SECONDS of 60 or more it checks that exactly those notice,
// and explores longer programs.
#include "block/model/slot_protocol_model.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/explorer.h"

namespace ashlar::block::model {
namespace {

using exploration::explore;
using exploration::Outcome;

constexpr std::size_t kMaxStates = 6'000'000;

bool long_run() {
  const char* seconds = std::getenv("ASHLAR_TEST_SECONDS");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return seconds != nullptr && std::atoi(seconds) >= 60;
}

Start owned_by(int thread) {
  return {Start::Kind::kOwned, 0, {thread}};
}
Start inactive(std::uint8_t hash) {
  return {Start::Kind::kInactive, hash, {}};
}
Start held_by(std::vector<int> threads, std::uint8_t hash) {
  return {Start::Kind::kReferenced, hash, std::move(threads)};
}

// The names start with the number that mutants and docs/slot_word.md use.
std::vector<Scenario> scenarios() {
  return {
      // Nobody evicts, so the hash stays registered and no match may miss it.
      {"S1LastDropMeetsTwoMatches",
       {held_by({0}, 1), {}},
       {{read(), drop()}, {must_match(1), read(), drop()}, {must_match(1), copy(), drop(), drop()}}},
      {"S2DropMeetsMatchMeetsRecycling",
       {held_by({0}, 1), owned_by(0)},
       {{read(), drop()},
        {match(1), drop(), match(1), drop()},
        {allocate(), allocate(), fill(2), enroll(2), drop(), allocate(), fill(1), enroll(1)}}},
      {"S3TwoDropsMeetEvict",
       {held_by({0, 1}, 1), owned_by(0)},
       {{read(), drop()}, {read(), drop()}, {allocate(), allocate(), allocate(), fill(2), enroll(2)}}},
      // T1 moves H1 from slot 0 to slot 1 and puts H2 in slot 0.
      {"S4StaleIndexEntryLeadsToRecycledSlot",
       {inactive(1), owned_by(1)},
       {{match(1), drop(), match(1), drop()},
        {allocate(1), fill(2, 1), enroll(2, 1), fill(1), enroll(1), drop(), drop()},
        {match(2), drop()}}},
      {"S5WeakUpgradeMeetsDropMeetsEvict",
       {held_by({0}, 1), owned_by(0)},
       {{read(), drop()},
        {upgrade(0, 1), read(), drop(), upgrade(0, 1), drop()},
        {allocate(), allocate(), fill(2), enroll(2), drop(), allocate(), fill(1), enroll(1), drop()}}},
      {"S6CopiesMeetDropsMeetEvict",
       {held_by({0, 1}, 1), owned_by(0)},
       {{copy(), read(), drop(), read(), drop()},
        {copy(), drop(), read(), drop()},
        {allocate(), allocate(), allocate(), fill(2), enroll(2)}}},
      // T0 holds H1 from before the start until after the end; slot 1 is recycled beside it.
      {"S7HeldHashIsNeverMissed",
       {held_by({0}, 1), inactive(2)},
       {{copy(), read(), drop(), match(2), drop()},
        {must_match(1), drop(), must_match(1), drop()},
        {must_match(1), drop(), allocate(), fill(3), enroll(3)}}},
      {"S8TwoThreadsRegisterOneHash",
       {owned_by(0), owned_by(1)},
       {{fill(1), enroll(1), discard(), drop()},
        {fill(1), enroll(1), discard(), drop()},
        {match(1), drop(), allocate(), fill(2)}}},
      // The slot goes from H1 to H2 to H3; a half of each of the last two makes H1.
      {"S9TornHash",
       {inactive(1), owned_by(2)},
       {{match(1), drop()},
        {allocate(), fill(2), enroll(2), drop(), allocate(), fill(3), enroll(3)},
        {match(3), drop()}}},
      // T1 recycles the slot for H2, which nobody looks for, drops it and wants it back. Whoever looks for H1
      // may find the slot, and must not count itself on it.
      {"S10StrayMatchesDoNotMakeAnAllocationFail",
       {inactive(1), owned_by(2)},
       {{match(1), drop()},
        {allocate_or_end(), fill(2), enroll(2), drop(), must_allocate()},
        {match(1), drop()}}},
      // T0 has a weak handle of the slot's next life, as if it had come over a relaxed store.
      {"S11WeakHandleComesWithoutSynchronisation",
       {inactive(1), owned_by(2)},
       {{upgrade(0, 2), read(), drop()},
        {allocate_or_end(), fill(2), enroll(2), drop()},
        {match(2), drop()}}},
      // Whichever of its two blocks goes first, H1 is there all the while.
      {"S12PrimaryGivesWayToItsDuplicate",
       {held_by({0}, 1), owned_by(1)},
       {{read(), drop()},
        {fill(1), enroll_beside(1), read(), drop()},
        {must_match(1), drop(), must_match(1), drop()}}},
      {"S13CandidateTakesThePlaceOfAPrimary",
       {held_by({0}, 1), owned_by(1)},
       {{read(), drop()},
        {fill(1), enroll_over(1), read(), drop()},
        {must_match(1), drop(), must_match(1), drop()}}},
      {"S14CandidateTakesThePlaceOfAnInactivePrimary",
       {inactive(1), owned_by(1)},
       {{must_match(1), read(), drop()},
        {fill(1), enroll_over(1), drop()},
        {must_match(1), drop(), must_match(1), drop()}}},
      // The block that was emptied is handed out and written.
      {"S15EmptiedBlockIsRecycled",
       {held_by({0, 2}, 1), owned_by(1)},
       {{read(), drop(), match(1), drop()},
        {fill(1), enroll_over(1), drop()},
        {read(), drop(), allocate(), fill(2), enroll(2), drop()}}},
      // T2 has weak handles to both blocks, as if they had come over relaxed stores.
      {"S16WeakHandlesToBothBlocks",
       {held_by({0}, 1), owned_by(1)},
       {{read(), drop()},
        {fill(1), enroll_over(1), drop()},
        {upgrade(1, 1), read(), upgrade(0, 1), drop(), drop()}}},
  };
}

// Those that a test may go through several times.
std::vector<Scenario> repeated_scenarios() {
  std::vector<Scenario> all = scenarios();
  if (!long_run()) std::erase_if(all, [](const Scenario& s) { return s.name.starts_with("S7"); });
  return all;
}

std::vector<Scenario> long_scenarios() {
  return {
      {"L1ThreeThreadsDropAndMatchAgain",
       {held_by({0}, 1), {}},
       {{read(), drop(), must_match(1), drop()},
        {must_match(1), read(), drop(), must_match(1), drop()},
        {must_match(1), copy(), drop(), drop()}}},
      {"L2MatchersMeetTwoRecyclings",
       {held_by({0}, 1), owned_by(0)},
       {{read(), drop(), match(2), drop()},
        {match(1), drop(), match(1), drop()},
        {allocate(), allocate(), fill(2), enroll(2), drop(), allocate(), fill(1), enroll(1)}}},
      {"L4TwoStaleMatchersTwoSlots",
       {inactive(1), owned_by(1)},
       {{match(1), drop(), match(1), drop()},
        {allocate(1), fill(2, 1), enroll(2, 1), fill(1), enroll(1), drop(), drop()},
        {match(2), drop(), match(1), drop()}}},
      {"L5TwoUpgradersMeetRecycling",
       {held_by({0}, 1), owned_by(0)},
       {{read(), drop(), upgrade(0, 1), drop()},
        {upgrade(0, 1), read(), drop(), upgrade(0, 1), drop()},
        {allocate(), allocate(), fill(2), enroll(2), drop(), allocate(), fill(1), enroll(1), drop()}}},
      {"L7HeldHashBesideTwoEvictors",
       {held_by({0}, 1), inactive(2)},
       {{copy(), read(), drop(), allocate(), fill(3), enroll(3), drop()},
        {must_match(1), drop(), must_match(1), drop()},
        {must_match(1), drop(), allocate(), fill(2), enroll(2)}}},
      {"L9TornHashTwice",
       {inactive(1), owned_by(2)},
       {{match(1), drop(), match(1), drop()},
        {allocate(), fill(2), enroll(2), drop(), allocate(), fill(3), enroll(3)},
        {match(3), drop(), match(2), drop()}}},
  };
}

std::string story(const Scenario& scenario, const Outcome& outcome) {
  std::string text = scenario.name + ": " + outcome.violation.value_or("no violation") + " after " +
                     std::to_string(outcome.states) + " states\n";
  for (const std::string& line : outcome.trace) text += "  " + line + "\n";
  return text;
}

void expect_holds(const Scenario& scenario, const Orders& orders = {}, const Rules& rules = {}) {
  const Outcome outcome = explore(SlotProtocol(scenario, orders, rules), {.max_states = kMaxStates});
  EXPECT_FALSE(outcome.violation.has_value()) << story(scenario, outcome);
  EXPECT_TRUE(outcome.exhausted) << story(scenario, outcome);
  std::printf("%-44s %9zu states %9zu transitions %3zu ends\n", scenario.name.c_str(), outcome.states,
              outcome.transitions, outcome.ends);
}

class SlotProtocolScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(SlotProtocolScenario, HoldsInEveryExecution) {
  expect_holds(GetParam());
}

constexpr auto kScenarioName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Short, SlotProtocolScenario, ::testing::ValuesIn(scenarios()), kScenarioName);

class LongSlotProtocolScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(LongSlotProtocolScenario, HoldsInEveryExecution) {
  if (!long_run()) GTEST_SKIP() << "set ASHLAR_TEST_SECONDS to 60 or more";
  expect_holds(GetParam());
}

INSTANTIATE_TEST_SUITE_P(Long, LongSlotProtocolScenario, ::testing::ValuesIn(long_scenarios()),
                         kScenarioName);

TEST(SlotProtocol, TakingLocalStepsFirstReachesTheSameEnds) {
  for (const Scenario& scenario : repeated_scenarios()) {
    const Outcome reduced = explore(SlotProtocol(scenario), {.max_states = kMaxStates});
    const Outcome full = explore(SlotProtocol(scenario), {.max_states = kMaxStates, .reduce = false});
    EXPECT_TRUE(full.exhausted) << story(scenario, full);
    EXPECT_EQ(reduced.ends, full.ends) << scenario.name;
    EXPECT_LT(reduced.states, full.states) << scenario.name;
  }
}

// A change to the protocol that must not go unnoticed. `noticed_by` lists scenarios by number; the first
// of them must come to each of the `violations`, by the beginning of its text.
struct Mutant {
  std::string name;
  std::string noticed_by;
  std::vector<std::string> violations;
  void (*apply)(Orders& orders, Rules& rules);
};

void PrintTo(const Mutant& mutant, std::ostream* out) {
  *out << mutant.name;
}

constexpr auto kRelaxed = std::memory_order_relaxed;
using Comparison = Rules::Comparison;

// The constants that are relaxed have nothing to weaken: that relaxed is enough is what the scenarios show.
static_assert(kOrderRevive == kRelaxed && kOrderCopy == kRelaxed && kOrderEvict == kRelaxed &&
              kOrderProbe == kRelaxed);

void relax_match(Orders& orders) {
  orders.match_load = orders.match_exchange = orders.match_retry = orders.upgrade = kRelaxed;
}

std::vector<Mutant> weakened_orders() {
  return {
      {"Publish",
       "2 4 5 7 8 9 10 11",
       {"data race", "wrong block"},
       [](Orders& o, Rules&) { o.publish = kRelaxed; }},
      {"Match", "2 4 5 7 8 9 10 11", {"data race", "wrong block"}, [](Orders& o, Rules&) { relax_match(o); }},
      {"MatchLoad", "2 4 7 9 10", {"wrong block"}, [](Orders& o, Rules&) { o.match_load = kRelaxed; }},
      {"MatchRetry", "2 9 10", {"wrong block"}, [](Orders& o, Rules&) { o.match_retry = kRelaxed; }},
      {"Upgrade", "11 5", {"data race"}, [](Orders& o, Rules&) { o.upgrade = kRelaxed; }},
      {"Drop", "3 2 5 6 10", {"data race"}, [](Orders& o, Rules&) { o.drop = kRelaxed; }},
      {"Settle", "3 2 5 6 10", {"data race"}, [](Orders& o, Rules&) { o.settle = kRelaxed; }},
      {"Unlock",
       "1 2 3 4 5 6 7 8 9 10 11",
       {"data race"},
       [](Orders& o, Rules&) { o.mutex_releases = false; }},
  };
}

std::vector<Mutant> broken_rules() {
  return {
      {"MatchDoesNotCompareTheHash",
       "2 4 7 9 10",
       {"wrong block"},
       [](Orders&, Rules& r) { r.match_compares_hash = Comparison::kNever; }},
      {"MatchComparesTheHashAfterTheExchange",
       "10 2 4 7 9",
       {"the count differs", "allocate found nothing"},
       [](Orders&, Rules& r) { r.match_compares_hash = Comparison::kAfter; }},
      {"MatchTriesAgainWithoutComparing",
       "2 9 10",
       {"wrong block"},
       [](Orders&, Rules& r) { r.match_compares_hash = Comparison::kBeforeTheFirst; }},
      {"FastMatchTakesACountFromZero",
       "2 1 4 5 7 8 9 10 11",
       {"a listed slot", "data race"},
       [](Orders&, Rules& r) { r.match_needs_a_reference = false; }},
      {"SlowMatchTakesAHintThatIsNotPrimary",
       "9 2 4 5 7 10 11",
       {"the slow path counted"},
       [](Orders&, Rules& r) { r.hint_needs_a_primary = false; }},
      {"SlowMatchTakesAHintOfAnotherHash",
       "4 2 5 7 9 10 11",
       {"wrong block"},
       [](Orders&, Rules& r) { r.hint_compares_hash = false; }},
      {"UpgradeDoesNotCompareTheHash",
       "5",
       {"wrong block"},
       [](Orders&, Rules& r) { r.upgrade_compares_hash = false; }},
      {"DropDoesNotSettle",
       "1 2 3 4 5 6 7 8 9 10 11",
       {"a slot is lost"},
       [](Orders&, Rules& r) { r.drop_settles = false; }},
      {"SettleListsWhatIsListed",
       "1 2 4 5 7 8 10 11",
       {"a slot was listed twice"},
       [](Orders&, Rules& r) { r.settle_sees_listed = false; }},
      {"SettleDoesNotLookAgain",
       "2 1 4 5 7 8 10 11",
       {"a listed slot", "data race"},
       [](Orders&, Rules& r) { r.settle_looks_again = false; }},
      {"ReviveDoesNotUnlist",
       "1 2 4 5 7 8 9 10 11",
       {"a listed slot"},
       [](Orders&, Rules& r) { r.revive_unlists = false; }},
      {"EvictLooksBeforeTheMutexOnly",
       "3 2 4 5 6 8 9 10",
       {"data race"},
       [](Orders&, Rules& r) { r.evict_looks_under_mutex = false; }},
      {"EvictGoesByTheCountNotTheList",
       "3 2 4 5 6 9 10",
       {"data race"},
       [](Orders&, Rules& r) { r.evict_picks_from_list = false; }},
      {"EvictKeepsTheGeneration",
       "2 5 9 10",
       {"wrong block"},
       [](Orders&, Rules& r) { r.evict_advances_generation = false; }},
      {"EvictLeavesTheIndexEntry",
       "2 3 4 5 6 7 8 9 10 11",
       {"an index entry"},
       [](Orders&, Rules& r) { r.evict_empties_index = false; }},
      {"RegisterStoresTheHashAfterTheWord",
       "2 4 5 7 9 10",
       {"wrong block"},
       [](Orders&, Rules& r) { r.hash_before_word = false; }},
      {"RegisterDoesNotLookForAPrimary",
       "8 4",
       {"two primaries"},
       [](Orders&, Rules& r) { r.register_looks_for_primary = false; }},
      {"PlaceIsTakenFromAPrimaryThatIsNotSettled",
       "15",
       {"data race"},
       [](Orders&, Rules& r) { r.place_is_taken_from_list = false; }},
      {"PlacePassesThroughAnEmptyIndexEntry",
       "12 13 14",
       {"match missed"},
       [](Orders&, Rules& r) { r.place_passes_in_one_store = false; }},
      {"HeirIsMadeByLoadAndStore",
       "12",
       {"the count differs"},
       [](Orders&, Rules& r) { r.heir_is_made_by_addition = false; }},
      {"PrimaryDoesNotGiveWay",
       "12",
       {"a listed slot has a duplicate"},
       [](Orders&, Rules& r) { r.primary_gives_way = false; }},
  };
}

bool comes_to(const Scenario& scenario, const Mutant& mutant, std::string_view violation) {
  Orders orders;
  Rules rules;
  mutant.apply(orders, rules);
  const Outcome outcome =
      explore(SlotProtocol(scenario, orders, rules), {.max_states = kMaxStates, .only = violation});
  return outcome.violation.has_value();
}

// Returns: the number of a scenario's name, between spaces.
std::string number_of(const Scenario& scenario) {
  const std::size_t end = scenario.name.find_first_not_of("0123456789", 1);
  return std::string(" ").append(scenario.name, 1, end - 1).append(" ");
}

class SlotProtocolMutant : public ::testing::TestWithParam<Mutant> {};

TEST_P(SlotProtocolMutant, IsNoticed) {
  const Mutant& mutant = GetParam();
  const std::string listed = " " + mutant.noticed_by + " ";
  for (const Scenario& scenario : scenarios()) {
    const std::string number = number_of(scenario);
    if (listed.starts_with(number)) {
      for (const std::string& violation : mutant.violations)
        EXPECT_TRUE(comes_to(scenario, mutant, violation)) << violation << " in " << scenario.name;
    } else if (long_run()) {
      EXPECT_EQ(comes_to(scenario, mutant, ""), listed.find(number) != std::string::npos) << scenario.name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weakened, SlotProtocolMutant, ::testing::ValuesIn(weakened_orders()), kScenarioName);
INSTANTIATE_TEST_SUITE_P(Broken, SlotProtocolMutant, ::testing::ValuesIn(broken_rules()), kScenarioName);

// The heir was published when it was registered, and the addition goes on with that.
TEST(SlotProtocol, TheAdditionThatMakesADuplicateThePrimaryMayBeRelaxed) {
  Orders orders;
  orders.promote = kRelaxed;
  for (const Scenario& scenario : scenarios()) {
    if (std::stoi(number_of(scenario)) >= 12) expect_holds(scenario, orders);
  }
}

// The load has acquired the life that the exchange goes on with.
TEST(SlotProtocol, TheExchangeOfAMatchThatSucceedsMayBeRelaxed) {
  Orders orders;
  orders.match_exchange = kRelaxed;
  for (const Scenario& scenario : repeated_scenarios()) expect_holds(scenario, orders);
}

TEST(SlotProtocol, AnExchangeThatAcquiresForTheLoadOrdersThePayloadAndNotTheComparison) {
  Orders orders;
  orders.match_load = orders.match_retry = kRelaxed;
  std::size_t wrong_blocks = 0;
  for (const Scenario& scenario : repeated_scenarios()) {
    const SlotProtocol program(scenario, orders);
    const Outcome race = explore(program, {.max_states = kMaxStates, .only = "data race"});
    EXPECT_TRUE(race.exhausted) << story(scenario, race);
    const Outcome wrong = explore(program, {.max_states = kMaxStates, .only = "wrong block"});
    if (wrong.violation) ++wrong_blocks;
  }
  EXPECT_GT(wrong_blocks, 0U);
}

// T1 recycles the slot under the hash it had. With the word stored first, an old index entry would lead T0 to
// the new life before register has stored the new one, and the next look of T0 might see the index in
// between.
TEST(SlotProtocol, AHolderFindsItsHashAgainBecauseTheIndexEntryComesBeforeTheWord) {
  const Scenario scenario = {"HolderLooksAgain",
                             {inactive(1), owned_by(2)},
                             {{match_or_end(1), must_match(1), drop(), drop()},
                              {allocate_or_end(), fill(1), enroll(1), drop()},
                              {match(1), drop()}}};
  expect_holds(scenario, {}, {});

  Rules word_first;
  word_first.index_before_word = false;
  const Outcome outcome = explore(SlotProtocol(scenario, {}, word_first), {.max_states = kMaxStates});
  EXPECT_EQ(outcome.violation, "match missed a hash that stayed registered") << story(scenario, outcome);
}

}  // namespace
}  // namespace ashlar::block::model
