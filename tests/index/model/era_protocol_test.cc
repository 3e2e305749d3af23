// The reclamation protocol in every execution of a set of scenarios, and the same scenarios against mutants
// of it.
//
// A mutant weakens one order or breaks one rule; some scenario must notice. With ASHLAR_TEST_SECONDS of 60 or
// more also longer programs are explored: every sequence of writes up to a length, and readers that walk
// twice.
#include "index/model/era_protocol_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/explorer.h"

namespace ashlar::index::model {
namespace {

using exploration::explore;
using exploration::Outcome;
using enum Write;

constexpr std::size_t kMaxStates = 20'000'000;

bool long_run() {
  const char* seconds = std::getenv("ASHLAR_TEST_SECONDS");  // NOLINT(concurrency-mt-unsafe): nothing sets it
  return seconds != nullptr && std::atoi(seconds) >= 60;
}

std::vector<Scenario> scenarios() {
  return {
      {"ANodeIsReplaced", {kReplaceNode, kScan}, {1, 1}},
      {"AChildIsReplaced", {kReplaceChild, kScan}, {1, 1}},
      // The link of the first node leads to the first child after both are retired.
      {"ARetiredNodeLeadsToARetiredChild", {kReplaceNode, kReplaceChild, kScan}, {1, 1}},
      {"TheChildOfARetiredNodeRetiresLater", {kReplaceNode, kScan, kReplaceChild, kScan}, {1, 0}},
      // The first node gets a child younger than itself and retires with it: a reader of the first era holds
      // the node and not the child.
      {"ARetiredNodeLeadsToAYoungerChild",
       {kAdvance, kReplaceChild, kReplaceNode, kReplaceChild, kScan},
       {1, 0}},
      {"AYoungerNodeIsReplaced", {kAdvance, kReplaceNode, kReplaceNode, kScan}, {1, 0}},
      {"AYoungerChildIsFreedWhileItsNodeIsHeld",
       {kScan, kReplaceChild, kReplaceNode, kScan, kReplaceChild, kScan},
       {1, 0}},
      {"AChildGoesAndComesBack", {kUnlinkChild, kScan, kLinkChild, kUnlinkChild, kScan}, {1, 0}},
      {"AReaderComesBack", {kReplaceNode, kScan, kReplaceNode, kScan}, {2, 0}},
      {"ReadersComeWithNewLines", {kReplaceNode, kScan}, {1, 1}, true},
      {"TheSecondLineIsKnownBeforeTheFirst", {kReplaceChild, kScan, kReplaceChild, kScan}, {0, 2}, true},
  };
}

// The same with two readers throughout.
std::vector<Scenario> long_scenarios() {
  std::vector<Scenario> all = scenarios();
  for (Scenario& scenario : all) {
    for (int& walks : scenario.walks) walks = std::max(walks, 1);
    if (scenario.writes.size() < 3) scenario.walks = {2, 1};
  }
  return all;
}

std::string story(const Scenario& scenario, const Outcome& outcome) {
  std::string text = scenario.name + ": " + outcome.violation.value_or("no violation") + " after " +
                     std::to_string(outcome.states) + " states\n";
  for (const std::string& line : outcome.trace) text += "  " + line + "\n";
  return text;
}

// Returns: the number of states.
std::size_t expect_holds(const Scenario& scenario, const Orders& orders = {}, const Rules& rules = {}) {
  const Outcome outcome = explore(EraProtocol(scenario, orders, rules), {.max_states = kMaxStates});
  EXPECT_FALSE(outcome.violation.has_value()) << story(scenario, outcome);
  EXPECT_TRUE(outcome.exhausted) << story(scenario, outcome);
  return outcome.states;
}

class EraProtocolScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(EraProtocolScenario, HoldsInEveryExecution) {
  const std::size_t states = expect_holds(GetParam());
  std::printf("%-40s %9zu states\n", GetParam().name.c_str(), states);
}

constexpr auto kName = [](const auto& info) { return info.param.name; };
INSTANTIATE_TEST_SUITE_P(Short, EraProtocolScenario, ::testing::ValuesIn(scenarios()), kName);

class LongEraProtocolScenario : public ::testing::TestWithParam<Scenario> {};

TEST_P(LongEraProtocolScenario, HoldsInEveryExecution) {
  if (!long_run()) GTEST_SKIP() << "set ASHLAR_TEST_SECONDS to 60 or more";
  const std::size_t states = expect_holds(GetParam());
  std::printf("%-40s %9zu states\n", GetParam().name.c_str(), states);
}

INSTANTIATE_TEST_SUITE_P(Long, LongEraProtocolScenario, ::testing::ValuesIn(long_scenarios()), kName);

// Calls fn for every sequence of `length` writes that the model can run.
template <class F>
void for_each_script(std::size_t length, std::vector<Write>& writes, int made, bool linked, F&& fn) {
  if (writes.size() == length) return fn(writes);
  for (const Write write : {kReplaceNode, kReplaceChild, kUnlinkChild, kLinkChild, kAdvance, kScan}) {
    const bool makes = write == kReplaceNode || write == kReplaceChild || write == kLinkChild;
    const bool needs_child = write == kReplaceChild || write == kUnlinkChild;
    if ((makes && made == EraProtocol::kObjects) || (needs_child && !linked) ||
        (write == kLinkChild && linked))
      continue;
    writes.push_back(write);
    for_each_script(length, writes, made + (makes ? 1 : 0),
                    write == kUnlinkChild ? false : linked || write == kLinkChild, fn);
    writes.pop_back();
  }
}

TEST(EraProtocol, HoldsForOneReaderBesideEverySequenceOfWrites) {
  std::size_t scripts = 0;
  std::size_t states = 0;
  std::vector<Write> writes;
  for_each_script(long_run() ? 6 : 4, writes, 2, true, [&](const std::vector<Write>& script) {
    Scenario scenario{"Script", script, {1, 0}};
    for (const Write write : script) scenario.name += std::to_string(static_cast<int>(write));
    states += expect_holds(scenario);
    ++scripts;
  });
  std::printf("%zu scripts, %zu states\n", scripts, states);
}

TEST(EraProtocol, TakingUnnoticedStepsAtOnceReachesTheSameEnds) {
  for (const Scenario& scenario : scenarios()) {
    if (scenario.walks == std::array<int, 2>{1, 1} && !long_run()) continue;
    const Outcome reduced = explore(EraProtocol(scenario), {.max_states = kMaxStates});
    const Outcome full = explore(EraProtocol(scenario), {.max_states = kMaxStates, .reduce = false});
    EXPECT_TRUE(full.exhausted) << story(scenario, full);
    EXPECT_FALSE(full.violation.has_value()) << story(scenario, full);
    EXPECT_EQ(reduced.ends, full.ends) << scenario.name;
    EXPECT_LT(reduced.states, full.states) << scenario.name;
  }
}

// A change to the protocol that must not go unnoticed: in `scenario` a reader looks at memory that is freed,
// or at memory that is not ordered with its making or freeing.
struct Mutant {
  std::string name;
  std::string scenario;
  void (*apply)(Orders& orders, Rules& rules);
};

void PrintTo(const Mutant& mutant, std::ostream* out) {
  *out << mutant.name;
}

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;
using EraOver = Rules::EraOver;

// What is relaxed has nothing to weaken: that relaxed is enough is what the scenarios show.
static_assert(detail::kOrderStill == kRelaxed && detail::kOrderGuess == kRelaxed);

std::vector<Mutant> weakened_orders() {
  return {
      {"Link", "AChildIsReplaced", [](Orders& o, Rules&) { o.link = kRelaxed; }},
      {"Follow", "AChildIsReplaced", [](Orders& o, Rules&) { o.follow = kRelaxed; }},
      {"Announce", "ANodeIsReplaced", [](Orders& o, Rules&) { o.announce = kRelease; }},
      {"Confirm", "ANodeIsReplaced", [](Orders& o, Rules&) { o.confirm = kAcquire; }},
      {"Advance", "ANodeIsReplaced", [](Orders& o, Rules&) { o.advance = kRelease; }},
      {"Scan", "ANodeIsReplaced", [](Orders& o, Rules&) { o.scan = kAcquire; }},
      {"Leave", "ANodeIsReplaced", [](Orders& o, Rules&) { o.leave = kRelaxed; }},
      {"RaiseLines", "ReadersComeWithNewLines",
       [](Orders& o, Rules&) { o.raise_lines = std::memory_order_acq_rel; }},
      {"ReadLines", "ReadersComeWithNewLines", [](Orders& o, Rules&) { o.read_lines = kAcquire; }},
  };
}

std::vector<Mutant> broken_rules() {
  return {
      {"AnnouncementIsNotConfirmed", "ANodeIsReplaced", [](Orders&, Rules& r) { r.confirms = false; }},
      {"RootIsFollowedInALaterEra", "AYoungerNodeIsReplaced",
       [](Orders&, Rules& r) { r.still_after_root = false; }},
      {"LinkIsFollowedInALaterEra", "ARetiredNodeLeadsToAYoungerChild",
       [](Orders&, Rules& r) { r.still_after_link = false; }},
      {"ReaderMovesOnToTheNextEra", "ARetiredNodeLeadsToAYoungerChild",
       [](Orders&, Rules& r) { r.era_over = EraOver::kMovesOn; }},
      {"ReaderExtendsItsEras", "AYoungerChildIsFreedWhileItsNodeIsHeld",
       [](Orders&, Rules& r) { r.era_over = EraOver::kExtends; }},
      {"BirthEraDoesNotHold", "AChildIsReplaced", [](Orders&, Rules& r) { r.birth_era_holds = false; }},
      {"RetireEraDoesNotHold", "AChildIsReplaced", [](Orders&, Rules& r) { r.retire_era_holds = false; }},
      {"EraBeginsAfterTheScan", "ANodeIsReplaced", [](Orders&, Rules& r) { r.advances_before_scan = false; }},
      {"ReaderLeavesBeforeItReads", "AChildIsReplaced", [](Orders&, Rules& r) { r.leaves_last = false; }},
      {"LinesAreRaisedAfterTheAnnouncement", "ReadersComeWithNewLines",
       [](Orders&, Rules& r) { r.raises_lines_first = false; }},
  };
}

class EraProtocolMutant : public ::testing::TestWithParam<Mutant> {};

TEST_P(EraProtocolMutant, IsNoticed) {
  const Mutant& mutant = GetParam();
  Orders orders;
  Rules rules;
  mutant.apply(orders, rules);
  for (const Scenario& scenario : scenarios()) {
    if (scenario.name != mutant.scenario) continue;
    const Outcome outcome = explore(EraProtocol(scenario, orders, rules), {.max_states = kMaxStates});
    ASSERT_TRUE(outcome.violation.has_value()) << scenario.name;
    EXPECT_TRUE(outcome.violation->starts_with("data race") ||
                outcome.violation->starts_with("a reader read"))
        << story(scenario, outcome);
    return;
  }
  FAIL() << "no scenario " << mutant.scenario;
}

INSTANTIATE_TEST_SUITE_P(Weakened, EraProtocolMutant, ::testing::ValuesIn(weakened_orders()), kName);
INSTANTIATE_TEST_SUITE_P(Broken, EraProtocolMutant, ::testing::ValuesIn(broken_rules()), kName);

}  // namespace
}  // namespace ashlar::index::model
