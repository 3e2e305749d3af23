// The behaviours that engines expect of a prefix cache, one scenario each, through the interfaces they would
// use.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/testing/event_sinks.h"
#include "block/sequence/sequence_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using events::KvEvent;
using events::KvEventKind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tokens::MultimodalRun;
using tokens::SequenceHasher;

constexpr std::uint32_t kPlaceholder = 77;

class PrefixCachingScenariosTest : public ::testing::Test {
 protected:
  // How many tokens of a prompt a new request finds. It is gone afterwards.
  std::size_t hit(std::vector<Token> prompt, RequestOptions options = {}) {
    auto request = value_of(Request::create(manager_, std::move(prompt), std::move(options)));
    return value_of(request.match_prefix());
  }
  void run_and_release(std::vector<Token> prompt, RequestOptions options = {}) {
    prefilled(manager_, std::move(prompt), std::move(options)).release();
  }
  void decode(Request& request, std::uint32_t token) {
    EXPECT_TRUE(request.schedule_decode().has_value());
    EXPECT_TRUE(request.apply_decode(Token(token)).has_value());
  }
  static RequestOptions salted(std::string_view lora, std::string_view tenant) {
    RequestOptions options;
    options.hasher = SequenceHasher(tokens::Salt(lora, tenant));
    return options;
  }
  static RequestOptions with_items(std::vector<MultimodalRun> runs) {
    RequestOptions options;
    options.runs = std::move(runs);
    return options;
  }
  // 8 tokens of text, 8 placeholders, `text` more tokens of text.
  static std::vector<Token> illustrated(std::size_t text) {
    return joined(joined(tokens_from(0, 8), std::vector<Token>(8, Token(kPlaceholder))),
                  tokens_from(300, text));
  }

  Manager manager_ = manager_of(16);
  Sequences sequences_{manager_};
};

// ---- hit, part of a hit, miss

TEST_F(PrefixCachingScenariosTest, TheFirstRequestMisses) {
  EXPECT_EQ(hit(tokens_from(0, 10)), 0u);
}

TEST_F(PrefixCachingScenariosTest, ARepeatedPromptHitsItsFullBlocks) {
  run_and_release(tokens_from(0, 10));
  EXPECT_EQ(hit(tokens_from(0, 10)), 8u);
}

TEST_F(PrefixCachingScenariosTest, AHitDoesNotWaitForTheFirstOwnerToFinish) {
  const Request running = prefilled(manager_, tokens_from(0, 10));
  auto request = value_of(Request::create(manager_, tokens_from(0, 10)));
  EXPECT_EQ(value_of(request.match_prefix()), 8u);
  EXPECT_THAT(ids(request.block_table()), ElementsAre(0, 1));
  EXPECT_EQ(places(manager_), (Places{.reset = 13, .active = 2, .owned = 1})) << "shared, counted once";
}

TEST_F(PrefixCachingScenariosTest, AHitEndsWhereThePromptsPart) {
  run_and_release(tokens_from(0, 16));
  EXPECT_EQ(hit(joined(tokens_from(0, 8), tokens_from(50, 8))), 8u);
  EXPECT_EQ(hit(joined(tokens_from(0, 11), tokens_from(50, 8))), 8u) << "a block is equal or it is not";
  EXPECT_EQ(hit(joined(tokens_from(0, 3), tokens_from(50, 8))), 0u);
}

TEST_F(PrefixCachingScenariosTest, ALongerPromptHitsAllOfAShorterOne) {
  run_and_release(tokens_from(0, 8));
  EXPECT_EQ(hit(tokens_from(0, 40)), 8u);
}

TEST_F(PrefixCachingScenariosTest, APromptThatEndsOnABoundaryComputesItsLastBlockAgain) {
  run_and_release(tokens_from(0, 12));
  auto request = value_of(Request::create(manager_, tokens_from(0, 12)));
  EXPECT_EQ(value_of(request.match_prefix()), 8u);
  EXPECT_EQ(request.tokens_to_compute(), 4u);
  EXPECT_TRUE(request.schedule_prefill(4).has_value());
  EXPECT_TRUE(request.apply_prefill(Token(900)).has_value());
  EXPECT_EQ(request.computed_tokens(), 12u);
}

TEST_F(PrefixCachingScenariosTest, ACallerWithoutLogitsHitsTheWholePrompt) {
  run_and_release(tokens_from(0, 12));
  RequestOptions options;
  options.reuse_last_token = true;
  EXPECT_EQ(hit(tokens_from(0, 12), options), 12u);
}

TEST_F(PrefixCachingScenariosTest, APromptShorterThanABlockNeverHits) {
  run_and_release(tokens_from(0, 3));
  EXPECT_EQ(hit(tokens_from(0, 3)), 0u);
  run_and_release(tokens_from(0, 8));
  EXPECT_EQ(hit(tokens_from(0, 3)), 0u) << "not even inside a block that is cached";
  EXPECT_EQ(hit(tokens_from(0, 4)), 0u) << "nor with its last token as the last of a block";
  EXPECT_EQ(hit(tokens_from(0, 5)), 4u);
}

TEST_F(PrefixCachingScenariosTest, APartialBlockIsNeverCached) {
  run_and_release(tokens_from(0, 11));
  EXPECT_EQ(places(manager_), (Places{.reset = 14, .inactive = 2})) << "the third is empty again";
}

TEST_F(PrefixCachingScenariosTest, BlocksOfOneTokenShareAllButTheLast) {
  Manager manager = value_of(builder_of(16).block_size(1).build());
  prefilled(manager, tokens_from(0, 5)).release();
  auto same = value_of(Request::create(manager, tokens_from(0, 5)));
  EXPECT_EQ(value_of(same.match_prefix()), 4u);
  auto longer = value_of(Request::create(manager, tokens_from(0, 9)));
  EXPECT_EQ(value_of(longer.match_prefix()), 5u);
}

TEST_F(PrefixCachingScenariosTest, APrefixOfManyBlocksIsFoundWhole) {
  Manager manager = manager_of(400);
  prefilled(manager, tokens_from(0, 4 * 150)).release();
  auto request = value_of(Request::create(manager, tokens_from(0, 4 * 150 + 1)));
  EXPECT_EQ(value_of(request.match_prefix()), 4u * 150u);
}

TEST_F(PrefixCachingScenariosTest, ManyRequestsShareOneSystemPrompt) {
  std::vector<Request> running;
  for (std::uint32_t i = 0; i < 4; ++i) {
    running.push_back(prefilled(manager_, joined(tokens_from(0, 16), tokens_from(100 * (i + 1), 2))));
    EXPECT_EQ(running.back().cached_tokens(), i == 0 ? 0u : 16u);
  }
  EXPECT_EQ(places(manager_), (Places{.reset = 8, .active = 4, .owned = 4}));
}

// ---- what is generated

TEST_F(PrefixCachingScenariosTest, TheNextTurnHitsTheAnswerOfTheTurnBefore) {
  Request turn = prefilled(manager_, tokens_from(0, 6), {}, 6);
  for (std::uint32_t token = 7; token < 13; ++token) decode(turn, token);
  turn.release();
  EXPECT_EQ(hit(joined(tokens_from(0, 13), tokens_from(80, 4))), 12u);
}

TEST_F(PrefixCachingScenariosTest, ABlockThatTheLastTokenFillsIsNotCached) {
  Request request = prefilled(manager_, tokens_from(0, 6), {}, 6);
  decode(request, 7);  // the eighth token, whose KV nobody computes
  request.release();
  EXPECT_EQ(hit(tokens_from(0, 9)), 4u);
}

TEST_F(PrefixCachingScenariosTest, ComputedChunksAreFoundBeforeThePromptIsDone) {
  auto slow = value_of(Request::create(manager_, tokens_from(0, 20)));
  EXPECT_EQ(value_of(slow.match_prefix()), 0u);
  EXPECT_TRUE(slow.schedule_prefill(10).has_value());
  EXPECT_EQ(hit(tokens_from(0, 20)), 0u) << "scheduled is not computed";
  EXPECT_TRUE(slow.apply_prefill().has_value());
  EXPECT_EQ(hit(tokens_from(0, 20)), 8u) << "the third block has two tokens";
}

TEST_F(PrefixCachingScenariosTest, AnAbandonedStepCachesNothing) {
  auto request = value_of(Request::create(manager_, tokens_from(0, 12)));
  EXPECT_TRUE(request.schedule_prefill(12).has_value());
  EXPECT_TRUE(request.revert().has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 16}));
  EXPECT_EQ(hit(tokens_from(0, 12)), 0u);
}

// ---- what must never be a hit

TEST_F(PrefixCachingScenariosTest, EqualBlocksBehindDifferentHeadsDoNotMeet) {
  run_and_release(joined(tokens_from(0, 4), tokens_from(50, 8)));
  EXPECT_EQ(hit(joined(tokens_from(10, 4), tokens_from(50, 8))), 0u);
}

TEST_F(PrefixCachingScenariosTest, EqualTokensAtAnotherOffsetDoNotMeet) {
  run_and_release(tokens_from(50, 12));
  EXPECT_EQ(hit(joined(tokens_from(0, 4), tokens_from(50, 12))), 0u) << "a block later";
  EXPECT_EQ(hit(tokens_from(54, 9)), 0u) << "a block earlier";
  EXPECT_EQ(hit(tokens_from(51, 9)), 0u) << "inside a block";
}

TEST_F(PrefixCachingScenariosTest, ABlockThatRepeatsItselfIsADifferentBlockEachTime) {
  const std::vector<Token> same(13, Token(7));
  const Request request = prefilled(manager_, same);
  EXPECT_THAT(ids(request.block_table()), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(hit(same), 12u);
}

TEST_F(PrefixCachingScenariosTest, AdaptersAndTenantsNeverShare) {
  const auto prompt = tokens_from(0, 12);
  const auto who = std::vector<std::pair<std::string, std::string>>{
      {"", ""}, {"law", ""}, {"poems", ""}, {"", "law"}, {"law", "acme"}, {"law", "apex"}};
  for (const auto& [lora, tenant] : who) {
    EXPECT_EQ(hit(prompt, salted(lora, tenant)), 0u) << lora << "/" << tenant;
    run_and_release(prompt, salted(lora, tenant));
    EXPECT_EQ(hit(prompt, salted(lora, tenant)), 8u) << lora << "/" << tenant;
    EXPECT_EQ(manager_.reset_inactive_pool(), 3u);
  }
  // All at once, while they are in use.
  std::vector<Request> running;
  for (std::size_t i = 0; i < 5; ++i) {
    running.push_back(prefilled(manager_, prompt, salted(who[i].first, who[i].second)));
    EXPECT_EQ(running.back().cached_tokens(), 0u);
  }
}

TEST_F(PrefixCachingScenariosTest, EqualPlaceholdersForAnotherItemDoNotMeet) {
  run_and_release(illustrated(5), with_items({{.mm_hash = 1, .offset = 8, .length = 8}}));
  EXPECT_EQ(hit(illustrated(5), with_items({{.mm_hash = 1, .offset = 8, .length = 8}})), 20u);
  EXPECT_EQ(hit(illustrated(5), with_items({{.mm_hash = 2, .offset = 8, .length = 8}})), 8u)
      << "the text before it is shared";
  EXPECT_EQ(hit(illustrated(5)), 8u) << "placeholders without an item are tokens";
}

TEST_F(PrefixCachingScenariosTest, AnItemCutElsewhereDoesNotMeet) {
  run_and_release(illustrated(5), with_items({{.mm_hash = 1, .offset = 8, .length = 8}}));
  EXPECT_EQ(hit(illustrated(5), with_items({{.mm_hash = 1, .offset = 9, .length = 7}})), 8u);
  EXPECT_EQ(hit(illustrated(5), with_items({{.mm_hash = 1, .offset = 8, .length = 4},
                                            {.mm_hash = 1, .offset = 12, .length = 4}})),
            12u)
      << "the second item begins anew";
}

TEST_F(PrefixCachingScenariosTest, TwoItemsInOneBlockBothCount) {
  const auto prompt = joined(std::vector<Token>(4, Token(kPlaceholder)), tokens_from(0, 4));
  const auto items = [](std::uint64_t first, std::uint64_t second) {
    return with_items(
        {{.mm_hash = first, .offset = 0, .length = 2}, {.mm_hash = second, .offset = 2, .length = 2}});
  };
  run_and_release(prompt, items(1, 2));
  EXPECT_EQ(hit(prompt, items(1, 2)), 4u);
  EXPECT_EQ(hit(prompt, items(2, 1)), 0u);
  EXPECT_EQ(hit(prompt, items(1, 3)), 0u);
}

TEST_F(PrefixCachingScenariosTest, CollidingNamesNeverShareABlock) {
  const auto truth = tokens_from(0, 12);
  Request honest = prefilled(manager_, truth);
  auto forger = value_of(Request::create(manager_, tokens_from(500, 12), names_of(truth), {}));
  EXPECT_EQ(value_of(forger.match_prefix()), 0u);
  EXPECT_TRUE(forger.schedule_prefill(12).has_value());
  const auto outcome = forger.apply_prefill(Token(900));
  ASSERT_TRUE(outcome.has_value()) << "the request lives on";
  EXPECT_EQ(outcome->registered, 0u);
  decode(forger, 901);
  for (const BlockId id : forger.block_table()) EXPECT_GE(id.value(), 3u);
  forger.release();
  honest.release();
  EXPECT_EQ(hit(tokens_from(0, 13)), 12u);
  EXPECT_EQ(hit(tokens_from(500, 13)), 0u);
}

TEST_F(PrefixCachingScenariosTest, ABlockOfAnotherTierIsNoHit) {
  const BlockRegistry registry = make_registry();
  auto near = manager_of<G1>(8, registry);
  auto far = manager_of<G2>(8, registry);
  const auto stored = store_all(far, sequence_of(2));
  auto request = value_of(Request::create(near, tokens_from(0, 9)));
  EXPECT_EQ(value_of(request.match_prefix()), 0u);
}

// ---- eviction

TEST_F(PrefixCachingScenariosTest, EmptyBlocksAreTakenBeforeCachedOnes) {
  run_and_release(tokens_from(0, 32));
  const auto next = started(sequences_, tokens_from(100, 32));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 32))), 8u);
  EXPECT_EQ(places(manager_), (Places{.inactive = 8, .owned = 8}));
}

TEST_F(PrefixCachingScenariosTest, TheTailOfAPrefixGoesBeforeItsHead) {
  run_and_release(tokens_from(0, 32));
  const auto names = names_of(tokens_from(0, 32));
  const auto others = started(sequences_, tokens_from(100, 32));
  for (int i = 0; i < 2; ++i) {
    const auto one = started(sequences_, tokens_from(200, 1));
    EXPECT_EQ(present(manager_, names), 7u) << "the second finds the block of the first empty";
  }
  const auto three = started(sequences_, tokens_from(300, 12));
  EXPECT_EQ(present(manager_, names), 5u);
  EXPECT_EQ(hit(tokens_from(0, 33)), 20u);
}

TEST_F(PrefixCachingScenariosTest, TheRequestThatFinishedFirstIsEvictedFirst) {
  Request first = prefilled(manager_, tokens_from(0, 12));
  Request second = prefilled(manager_, tokens_from(100, 12));
  second.release();
  first.release();
  const auto big = started(sequences_, tokens_from(200, 13 * 4));
  EXPECT_EQ(present(manager_, names_of(tokens_from(100, 12))), 0u);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 12))), 3u);
}

TEST_F(PrefixCachingScenariosTest, AHitMakesAPrefixYoungAgain) {
  run_and_release(tokens_from(0, 12));
  run_and_release(tokens_from(100, 12));
  EXPECT_EQ(hit(tokens_from(0, 13)), 12u);
  const auto big = started(sequences_, tokens_from(200, 13 * 4));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 12))), 3u);
  EXPECT_EQ(present(manager_, names_of(tokens_from(100, 12))), 0u);
}

TEST_F(PrefixCachingScenariosTest, AHitTakesItsBlocksOutOfTheMiddleOfTheOrder) {
  run_and_release(tokens_from(0, 8));
  run_and_release(tokens_from(100, 8));
  run_and_release(tokens_from(200, 8));
  auto middle = value_of(Request::create(manager_, tokens_from(100, 9)));
  EXPECT_EQ(value_of(middle.match_prefix()), 8u);
  std::vector<SequenceHash> left;
  for (const std::uint32_t first : {0u, 200u}) {
    const auto names = names_of(tokens_from(first, 8));
    left.insert(left.end(), names.rbegin(), names.rend());
  }
  EXPECT_EQ(manager_.eviction_candidates(16), left);
}

TEST_F(PrefixCachingScenariosTest, ABlockOfARunningRequestIsNeverEvicted) {
  const Request running = prefilled(manager_, tokens_from(0, 48));
  auto big = value_of(Request::create(manager_, tokens_from(100, 20)));
  const auto refused = big.schedule_prefill(20);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().reason, Why::kNoRoom);
  EXPECT_TRUE(big.schedule_prefill(16).has_value()) << "what is free is not refused";
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 48))), 12u);
}

TEST_F(PrefixCachingScenariosTest, AHeadThatSomebodyStillUsesOutlivesItsTail) {
  Request first = prefilled(manager_, tokens_from(0, 16));
  const Request second = prefilled(manager_, joined(tokens_from(0, 8), tokens_from(50, 4)));
  first.release();
  EXPECT_EQ(victim_positions(manager_), (Ids{3, 2}));
  const auto big = started(sequences_, tokens_from(200, 13 * 4));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 16))), 2u);
}

TEST_F(PrefixCachingScenariosTest, ARequestDoesNotEvictItsOwnHits) {
  run_and_release(tokens_from(0, 32));
  run_and_release(tokens_from(100, 32));
  ASSERT_EQ(places(manager_), (Places{.inactive = 16}));
  const auto request = started(sequences_, joined(tokens_from(0, 32), tokens_from(300, 32)));
  EXPECT_EQ(request.cached_tokens(), 32u) << "the hits were the oldest of all";
  EXPECT_THAT(ids(request.block_table()), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 15, 14, 13, 12, 11, 10, 9, 8));
  EXPECT_EQ(present(manager_, names_of(tokens_from(100, 32))), 0u);
}

TEST_F(PrefixCachingScenariosTest, AFailedAllocationLeavesItsHitsUnreferenced) {
  run_and_release(tokens_from(0, 16));
  const Request running = prefilled(manager_, tokens_from(100, 40));
  auto big = value_of(sequences_.make_sequence(joined(tokens_from(0, 16), tokens_from(300, 12))));
  const auto before = manager_.eviction_candidates(16);
  ASSERT_FALSE(sequences_.allocate(big).has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 2, .inactive = 4, .active = 10}));
  EXPECT_EQ(manager_.eviction_candidates(16), before);
}

TEST_F(PrefixCachingScenariosTest, AHoleEndsTheHit) {
  run_and_release(tokens_from(0, 16));
  const auto names = names_of(tokens_from(0, 16));
  const Pin pin = value_of(manager_.pin(names[2], std::chrono::hours(1)));
  const auto big = started(sequences_, tokens_from(100, 13 * 4));
  EXPECT_EQ(manager_.reset_inactive_pool(), 2u);
  ASSERT_EQ(manager_.block_registry().check_presence<G1>(names),
            (std::vector<bool>{false, false, true, false}));
  EXPECT_EQ(hit(tokens_from(0, 17)), 0u) << "a block without those before it is of no use";
  const auto again = computed(sequences_, tokens_from(0, 8));
  EXPECT_EQ(hit(tokens_from(0, 17)), 12u) << "with them it is";
}

// Ten blocks of four tokens: two requests with a common beginning, then a third that continues the first.
TEST_F(PrefixCachingScenariosTest, AWorkedExample) {
  Manager manager = manager_of(10);
  const Sequences sequences(manager);
  auto a = computed(sequences, tokens_from(0, 14));
  EXPECT_THAT(ids(a.block_table()), ElementsAre(0, 1, 2, 3));
  auto b = computed(sequences, joined(tokens_from(0, 8), tokens_from(60, 6)));
  EXPECT_EQ(b.cached_tokens(), 8u);
  EXPECT_THAT(ids(b.block_table()), ElementsAre(0, 1, 4, 5));
  for (const Token token : tokens_from(14, 3)) {
    a.append(token);
    EXPECT_TRUE(sequences.may_append(a).has_value());
    EXPECT_TRUE(sequences.computed(a, a.size()).has_value());
  }
  EXPECT_THAT(ids(a.block_table()), ElementsAre(0, 1, 2, 3, 6));

  EXPECT_TRUE(sequences.deallocate(a).has_value());  // empty 7 8 9 6; cached 3 2
  EXPECT_EQ(victim_positions(manager), (Ids{3, 2}));
  EXPECT_TRUE(sequences.deallocate(b).has_value());  // empty 7 8 9 6 5; cached 3 2 4 1 0
  EXPECT_EQ(victim_positions(manager), (Ids{3, 2, 2, 1, 0}));

  auto c = started(sequences, joined(tokens_from(0, 12), tokens_from(80, 17)));
  EXPECT_EQ(c.cached_tokens(), 12u);
  EXPECT_THAT(ids(c.block_table()), ElementsAre(0, 1, 2, 7, 8, 9, 6, 5));
  EXPECT_EQ(victim_positions(manager), (Ids{3, 2}));
  const auto d = started(sequences, tokens_from(200, 8));
  EXPECT_THAT(ids(d.block_table()), ElementsAre(3, 4)) << "the oldest cached ones, in their order";
  EXPECT_EQ(places(manager), (Places{.active = 3, .owned = 7}));
}

// ---- resetting the cache

TEST_F(PrefixCachingScenariosTest, AResetForgetsEverythingWhenNothingRuns) {
  run_and_release(tokens_from(0, 12));
  run_and_release(tokens_from(100, 12));
  EXPECT_EQ(manager_.reset_inactive_pool(), 6u);
  EXPECT_EQ(places(manager_), (Places{.reset = 16}));
  EXPECT_EQ(hit(tokens_from(0, 12)), 0u);
  EXPECT_EQ(manager_.block_registry().registered_count(), 0u);
}

TEST_F(PrefixCachingScenariosTest, AResetSparesWhatIsInUse) {
  const Request running = prefilled(manager_, tokens_from(0, 12));
  run_and_release(joined(tokens_from(0, 8), tokens_from(50, 8)));
  EXPECT_EQ(manager_.reset_inactive_pool(), 2u);
  EXPECT_EQ(hit(tokens_from(0, 13)), 12u);
  EXPECT_EQ(hit(joined(tokens_from(0, 8), tokens_from(50, 8))), 8u);
}

// ---- duplicates

TEST_F(PrefixCachingScenariosTest, TwoEqualPromptsComputedAtTheSameTimeBothFinish) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(8).duplicate_policy(policy).build());
    auto first = value_of(Request::create(manager, tokens_from(0, 9)));
    auto second = value_of(Request::create(manager, tokens_from(0, 9)));
    for (Request* each : {&first, &second}) {
      EXPECT_EQ(value_of(each->match_prefix()), 0u);
      EXPECT_TRUE(each->schedule_prefill(9).has_value());
    }
    EXPECT_EQ(value_of(first.apply_prefill(Token(9))).replaced, 0u);
    const StepOutcome outcome = value_of(second.apply_prefill(Token(9)));
    if (policy == DuplicatePolicy::kAllow) {
      EXPECT_EQ(outcome.replaced, 0u);
      EXPECT_THAT(ids(second.block_table()), ElementsAre(3, 4, 5));
      EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 4, .owned = 2}));
    } else {
      EXPECT_EQ(outcome.replaced, 2u);
      EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 5));
      EXPECT_EQ(places(manager), (Places{.reset = 4, .active = 2, .owned = 2}));
    }
    decode(first, 10);
    decode(second, 10);
    first.release();
    second.release();
    EXPECT_EQ(places(manager), (Places{.reset = 6, .inactive = 2})) << "one copy of each remains";
  }
}

TEST_F(PrefixCachingScenariosTest, AThirdRequestSharesTheCopyThatIsLeft) {
  auto first = started(sequences_, tokens_from(0, 9));
  auto second = started(sequences_, tokens_from(0, 9));
  EXPECT_TRUE(sequences_.computed(first, 9).has_value());
  EXPECT_TRUE(sequences_.computed(second, 9).has_value());
  EXPECT_TRUE(sequences_.deallocate(first).has_value());
  const auto third = started(sequences_, tokens_from(0, 9));
  EXPECT_EQ(third.cached_tokens(), 8u);
  EXPECT_EQ(ids(third.block_table()).at(0), 3u);
  EXPECT_EQ(ids(third.block_table()).at(1), 4u);
}

// ---- preemption

TEST_F(PrefixCachingScenariosTest, APreemptedRequestFindsItsOwnBlocksAgain) {
  Request request = prefilled(manager_, tokens_from(0, 10), {}, 10);
  decode(request, 11);
  decode(request, 12);
  const Ids before = ids(request.block_table());
  EXPECT_TRUE(request.preempt().has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 13, .inactive = 3}));
  EXPECT_EQ(value_of(request.resume()), 12u) << "twelve tokens had been computed";
  EXPECT_EQ(ids(request.block_table()), before);
  decode(request, 13);
  EXPECT_EQ(request.size(), 14u);
}

TEST_F(PrefixCachingScenariosTest, APreemptedRequestComputesAgainWhatOthersTook) {
  Request request = prefilled(manager_, tokens_from(0, 16), {}, 16);
  EXPECT_TRUE(request.preempt().has_value());
  const auto others = started(sequences_, tokens_from(100, 13 * 4 + 1));
  EXPECT_EQ(value_of(request.resume()), 8u) << "two of its four blocks were taken, the last ones";
  EXPECT_EQ(request.tokens_to_compute(), 9u);
}

// ---- events

TEST_F(PrefixCachingScenariosTest, EventsTellTheLifeOfARequestInOrder) {
  const auto log = std::make_shared<events::EventLog>(1 << 10);
  Manager manager = value_of(builder_of(4).event_log(log).build());
  const Sequences sequences(manager);
  testing::EventRecorder recorder;
  const auto story = [&] {
    std::vector<std::string> words;
    for (const KvEvent& event : recorder.drain(*log)) {
      words.push_back((event.kind == KvEventKind::kStored ? "+" : "-") +
                      std::to_string(event.hash.position()));
    }
    return words;
  };
  auto a = started(sequences, tokens_from(0, 14));
  EXPECT_THAT(story(), IsEmpty()) << "nothing is computed";
  EXPECT_TRUE(sequences.computed(a, 14).has_value());
  EXPECT_THAT(story(), ElementsAre("+0", "+1", "+2"));
  const auto names = names_of(tokens_from(0, 12));
  EXPECT_EQ(recorder.events()[2].parent(), names[1]);
  EXPECT_EQ(recorder.events()[2].prefix_group(), names[0]);
  EXPECT_TRUE(sequences.deallocate(a).has_value());
  EXPECT_THAT(story(), IsEmpty()) << "still cached";
  auto b = started(sequences, joined(tokens_from(0, 4), tokens_from(50, 9)));
  EXPECT_THAT(story(), ElementsAre("-2", "-1")) << "a hit, one empty block, and two that were evicted";
  EXPECT_TRUE(sequences.computed(b, 13).has_value());
  EXPECT_THAT(story(), ElementsAre("+1", "+2")) << "the hit was published before";
  EXPECT_TRUE(sequences.deallocate(b).has_value());
  EXPECT_EQ(manager.reset_inactive_pool(), 3u);
  EXPECT_THAT(story(), ElementsAre("-2", "-1", "-0"));
}

TEST_F(PrefixCachingScenariosTest, DuplicatesPublishNothing) {
  const auto log = std::make_shared<events::EventLog>(1 << 10);
  Manager manager = value_of(builder_of(8).event_log(log).build());
  const Sequences sequences(manager);
  auto first = started(sequences, tokens_from(0, 9));
  auto second = started(sequences, tokens_from(0, 9));
  EXPECT_TRUE(sequences.computed(first, 9).has_value());
  testing::EventRecorder recorder;
  EXPECT_EQ(recorder.drain(*log).size(), 2u);
  EXPECT_TRUE(sequences.computed(second, 9).has_value());
  EXPECT_TRUE(sequences.deallocate(second).has_value());
  EXPECT_TRUE(sequences.deallocate(first).has_value());
  EXPECT_THAT(recorder.drain(*log), IsEmpty());
}

}  // namespace
}  // namespace ashlar::block
