// Steps of one request: chunks, tokens, drafts. A block can be found by others exactly when its KV exists.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

class RequestStepsTest : public RequestTest {};

// ---- prefill

TEST_F(RequestStepsTest, AWholePromptIsRegisteredUpToItsLastFullBlock) {
  Request request = request_of(0, 10);
  const StepPlan plan = value_of(request.schedule_prefill(10));
  EXPECT_EQ(plan.new_blocks, 3u);
  EXPECT_TRUE(plan.copies.empty());
  EXPECT_EQ(request.state(), RequestState::kPrefillScheduled);
  EXPECT_EQ(request.block_table().size(), 3u);
  EXPECT_EQ(request.computed_tokens(), 0u);
  EXPECT_EQ(at(), (Places{.reset = 29, .owned = 3}));
  EXPECT_EQ(engine_.run(request, 10), "");

  const StepOutcome outcome = value_of(request.apply_prefill(Token(100)));
  EXPECT_EQ(outcome.registered, 2u);
  EXPECT_EQ(outcome.replaced, 0u);
  EXPECT_FALSE(outcome.at_limit);
  EXPECT_EQ(request.state(), RequestState::kIdle);
  EXPECT_EQ(request.size(), 11u);
  EXPECT_EQ(request.prompt_size(), 10u);
  EXPECT_EQ(request.computed_tokens(), 10u);
  EXPECT_EQ(request.tokens_to_compute(), 1u);
  EXPECT_EQ(request.cached_tokens(), 0u);
  EXPECT_EQ(at(), (Places{.reset = 29, .active = 2, .owned = 1}));
  expect_visible(request);
}

TEST_F(RequestStepsTest, NothingIsFoundWhileAStepIsComputed) {
  Request request = request_of(0, 12);
  value_of(request.schedule_prefill(8));
  EXPECT_TRUE(registered().empty());
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 0u);
  EXPECT_EQ(engine_.run(request, 8), "");
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 0u);
  value_of(request.apply_prefill());
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 8u);
}

TEST_F(RequestStepsTest, AChunkThatEndsInsideABlockLeavesItUnregistered) {
  Request request = request_of(0, 12);
  EXPECT_EQ(prefill(request, 6).registered, 1u);
  EXPECT_EQ(registered().size(), 1u);
  EXPECT_EQ(at(), (Places{.reset = 30, .active = 1, .owned = 1}));
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 4u);  // all its tokens are known, half of its KV is not

  EXPECT_EQ(prefill(request, 1).registered, 0u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 4u);
  EXPECT_EQ(value_of(request.schedule_prefill(1)).new_blocks, 0u);
  EXPECT_EQ(engine_.run(request, 1), "");
  EXPECT_EQ(value_of(request.apply_prefill()).registered, 1u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 12)), 8u);

  EXPECT_EQ(prefill(request, 4, Token(50)).registered, 1u);
  EXPECT_EQ(registered().size(), 3u);
}

TEST_F(RequestStepsTest, AnyCutIntoChunksGivesTheSameBlocks) {
  const std::vector<Token> prompt = tokens_from(0, 11);
  for (std::size_t chunk = 1; chunk <= prompt.size(); ++chunk) {
    SCOPED_TRACE(chunk);
    Request request = request_of(prompt);
    std::size_t registered_now = 0;
    while (request.tokens_to_compute() > chunk) {
      registered_now += prefill(request, chunk).registered;
      EXPECT_EQ(registered().size(), request.computed_tokens() / kBlockSize);
    }
    registered_now += prefill_all(request, 7).registered;
    EXPECT_EQ(registered_now, 2u);
    EXPECT_EQ(request.block_table().size(), 3u);
    const auto found = registered();
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(found.at(request.sequence_hashes()[i]), request.block_table()[i].value());
    }
    request.release();
    EXPECT_EQ(manager_.reset_inactive_pool(), 2u);
  }
}

TEST_F(RequestStepsTest, TheNamesAreThoseOfTheTokens) {
  Request request = request_of(0, 6);
  prefill_all(request, 6);
  for (std::uint32_t next = 7; next < 14; ++next) decode(request, next);
  const auto names = sequence_of(3, 0).sequence_hashes();
  ASSERT_EQ(request.size(), 14u);
  EXPECT_TRUE(std::ranges::equal(request.sequence_hashes(), names));
  for (const auto& name : names) EXPECT_TRUE(registered().contains(name));
}

// ---- match

TEST_F(RequestStepsTest, AHitSharesBlocksAndLeavesTheRest) {
  const Ids cached = cache(tokens_from(0, 10)).front();
  Request request = request_of(tokens_from(0, 11));
  EXPECT_EQ(value_of(request.match_prefix()), 8u);
  EXPECT_EQ(table_of(request), Ids(cached.begin(), cached.begin() + 2));
  EXPECT_EQ(request.cached_tokens(), 8u);
  EXPECT_EQ(request.computed_tokens(), 8u);
  EXPECT_EQ(request.tokens_to_compute(), 3u);
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(at(), (Places{.reset = 30, .active = 2}));
  EXPECT_EQ(prefill_all(request, 40).registered, 0u);
  EXPECT_EQ(decode(request, 41).registered, 1u);
  EXPECT_EQ(request.cached_tokens(), 8u);
}

TEST_F(RequestStepsTest, AHitLeavesTheLastTokenToBeComputed) {
  cache(tokens_from(0, 8));
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 8)), 4u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 9)), 8u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 4)), 0u);
  RequestOptions whole;
  whole.reuse_last_token = true;
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 8), whole), 8u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 4), whole), 4u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 3), whole), 0u);
}

TEST_F(RequestStepsTest, AMissMayBeAskedAgain) {
  Request request = request_of(0, 10);
  EXPECT_EQ(value_of(request.match_prefix()), 0u);
  cache(tokens_from(0, 10));
  EXPECT_EQ(value_of(request.match_prefix()), 8u);
  EXPECT_EQ(reason_of(request.match_prefix()), Refused::kWrongState);
}

TEST_F(RequestStepsTest, OtherSaltsAndSchemesNeverShare) {
  RequestOptions tenant;
  tenant.hasher = tokens::SequenceHasher(tokens::Salt("", "tenant"));
  RequestOptions keyed;
  keyed.hasher = tokens::SequenceHasher(tokens::HashScheme::keyed128({1, 2, 3}), {});
  cache(tokens_from(0, 10));
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 10), tenant), 0u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 10), keyed), 0u);
  Request request = request_of(0, 10, keyed);
  EXPECT_EQ(prefill_all(request, 1).registered, 2u);
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 10), keyed), 8u);
  EXPECT_EQ(registered().size(), 4u);
}

TEST_F(RequestStepsTest, GivenNamesAreUsedAndTheRestComputed) {
  const auto names = sequence_of(3).sequence_hashes();
  Request first = value_of(Request::create(manager_, tokens_from(0, 14), {names[0], names[1]}, {}));
  prefill_all(first, 1);
  EXPECT_TRUE(std::ranges::equal(first.sequence_hashes(), names));
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 14)), 12u);
}

// ---- decode

TEST_F(RequestStepsTest, ATokenIsComputedByTheStepAfterTheOneThatYieldsIt) {
  Request request = request_of(0, 7);
  EXPECT_EQ(prefill_all(request, 100).registered, 1u);  // token 7 fills block 1 and has no KV
  EXPECT_EQ(request.size(), 8u);
  EXPECT_EQ(request.sequence_hashes().size(), 2u);
  EXPECT_EQ(registered().size(), 1u);
  std::vector<Token> longer = tokens_of(request);
  longer.emplace_back(1);
  EXPECT_EQ(cached_tokens_of(longer), 4u);

  const StepPlan plan = value_of(request.schedule_decode());
  EXPECT_EQ(plan.new_blocks, 0u);
  EXPECT_EQ(request.state(), RequestState::kDecodeScheduled);
  EXPECT_EQ(cached_tokens_of(longer), 4u);
  EXPECT_EQ(engine_.run(request, 1), "");
  EXPECT_EQ(value_of(request.apply_decode(Token(101))).registered, 1u);
  EXPECT_EQ(cached_tokens_of(longer), 8u);
  EXPECT_EQ(value_of(request.schedule_decode()).new_blocks, 1u);
}

TEST_F(RequestStepsTest, ABlockWhoseLastTokenIsNeverComputedIsNeverRegistered) {
  RequestOptions options;
  options.max_tokens = 8;
  {
    Request request = request_of(0, 7, options);
    EXPECT_TRUE(prefill_all(request, 100).at_limit);
    EXPECT_EQ(reason_of(request.schedule_decode()), Refused::kTooLong);
  }
  EXPECT_EQ(at(), (Places{.reset = 31, .inactive = 1}));
  EXPECT_EQ(registered().size(), 1u);
}

TEST_F(RequestStepsTest, DecodeTakesABlockForEveryBlockOfTokens) {
  Request request = request_of(0, 3);
  prefill_all(request, 1'000);
  for (std::uint32_t i = 0; i < 30; ++i) {
    const std::size_t before = request.computed_tokens();
    const StepOutcome outcome = decode(request, 1'001 + i);
    EXPECT_EQ(request.computed_tokens(), before + 1);
    EXPECT_EQ(request.tokens_to_compute(), 1u);
    EXPECT_EQ(outcome.registered, (before + 1) % kBlockSize == 0 ? 1u : 0u);
    EXPECT_EQ(at().active + at().owned, request.block_table().size());
    expect_visible(request);
  }
}

TEST_F(RequestStepsTest, AChunkOfOneTokenIsADecodeStep) {
  Request one = request_of(0, 5);
  prefill_all(one, 5);
  Request other = value_of(one.fork());
  decode(one, 6);
  EXPECT_EQ(prefill(other, 1, Token(6)).registered, 0u);
  EXPECT_EQ(tokens_of(one), tokens_of(other));
  EXPECT_EQ(one.computed_tokens(), other.computed_tokens());
}

// ---- revert

TEST_F(RequestStepsTest, ARevertedStepLeavesNoTrace) {
  Request request = request_of(0, 11);
  const auto expect_reverted = [&](const std::function<void()>& schedule) {
    const Snapshot before(request);
    const Places places_before = at();
    schedule();
    EXPECT_NE(request.state(), RequestState::kIdle);
    request.revert().value();
    EXPECT_EQ(Snapshot(request), before);
    EXPECT_EQ(at(), places_before);
  };
  expect_reverted([&] { value_of(request.schedule_prefill(11)); });
  expect_reverted([&] { value_of(request.schedule_prefill(6)); });
  prefill(request, 6);
  expect_reverted([&] { value_of(request.schedule_prefill(1)); });
  expect_reverted([&] { value_of(request.schedule_prefill(5)); });
  prefill_all(request, 20);
  for (std::uint32_t next = 21; next < 27; ++next) {
    expect_reverted([&] { value_of(request.schedule_decode()); });
    expect_reverted([&] { value_of(request.schedule_speculative(9)); });
    decode(request, next);
    expect_visible(request);
  }
}

TEST(RequestRevertTest, TheLastBlockGoesBackFirst) {
  Manager manager = manager_of(4);  // first in, first out
  Request request = value_of(Request::create(manager, tokens_from(0, 16)));
  value_of(request.schedule_prefill(16));
  Ids taken = table_of(request);
  request.revert().value();
  value_of(request.schedule_prefill(16));
  std::ranges::reverse(taken);
  EXPECT_EQ(table_of(request), taken);
}

TEST(RequestRevertTest, AStackOfFreeBlocksHandsOutTheSameBlocksAgain) {
  Manager manager =
      value_of(builder_of(8)
                   .reset_allocator([](std::uint32_t n) { return std::make_unique<LifoResetAllocator>(n); })
                   .build());
  Request request = value_of(Request::create(manager, tokens_from(0, 18)));
  value_of(request.schedule_prefill(18));
  const Ids taken = table_of(request);
  request.revert().value();
  value_of(request.schedule_prefill(18));
  EXPECT_EQ(table_of(request), taken);
}

// ---- speculation

TEST_F(RequestStepsTest, DraftsAreAcceptedInPart) {
  for (std::size_t prompt = 3; prompt <= 8; ++prompt) {
    for (std::size_t drafts = 0; drafts <= 9; ++drafts) {
      for (std::size_t accepted = 1; accepted <= drafts + 1; ++accepted) {
        SCOPED_TRACE(::testing::Message()
                     << prompt << " of prompt, " << drafts << " drafts, " << accepted << " accepted");
        Request request = request_of(0, prompt);
        prefill_all(request, 1'000);
        const std::vector<Token> guesses = tokens_from(2'000, drafts);
        std::vector<Token> taken(guesses.begin(), guesses.begin() + (static_cast<long>(accepted) - 1));
        taken.emplace_back(3'000);  // the model's own
        std::vector<Token> expected = tokens_of(request);
        expected.insert(expected.end(), taken.begin(), taken.end());

        const std::size_t registered_before = registered().size();
        const StepOutcome outcome = speculate(request, guesses, taken);
        EXPECT_EQ(tokens_of(request), expected);
        EXPECT_EQ(request.computed_tokens(), prompt + accepted);
        EXPECT_EQ(request.tokens_to_compute(), 1u);
        EXPECT_EQ(outcome.registered, (prompt + accepted) / kBlockSize - prompt / kBlockSize);
        EXPECT_EQ(registered().size(), registered_before + outcome.registered);
        EXPECT_EQ(at().active + at().owned, request.block_table().size());
        expect_visible(request);
        decode(request, 3'001);
        expect_visible(request);
        request.release();
        manager_.reset_inactive_pool();
      }
    }
  }
}

TEST_F(RequestStepsTest, BlocksForRefusedDraftsGoBack) {
  Request request = request_of(0, 4);
  prefill_all(request, 100);
  EXPECT_EQ(value_of(request.schedule_speculative(11)).new_blocks, 3u);
  EXPECT_EQ(request.state(), RequestState::kSpeculativeScheduled);
  EXPECT_EQ(request.block_table().size(), 4u);
  EXPECT_EQ(at().owned, 3u);
  EXPECT_EQ(engine_.run_with_drafts(request, tokens_from(200, 11)), "");
  const Ids scheduled = table_of(request);
  EXPECT_EQ(value_of(request.apply_speculative(tokens_of({300}))).registered, 0u);
  EXPECT_EQ(table_of(request), Ids(scheduled.begin(), scheduled.begin() + 2));
  EXPECT_EQ(at().owned, 1u);
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestStepsTest, DraftsThatWereRefusedAreOverwritten) {
  Request request = request_of(0, 5);
  prefill_all(request, 100);
  speculate(request, tokens_from(200, 6), tokens_of({200, 201, 300}));
  speculate(request, tokens_from(400, 6), tokens_of({500}));
  speculate(request, tokens_from(600, 2), tokens_of({600, 601, 602}));
  EXPECT_EQ(tokens_of(request), tokens_of({0, 1, 2, 3, 4, 100, 200, 201, 300, 500, 600, 601, 602}));
  expect_visible(request);
}

// ---- duplicates

class RequestDuplicatesTest : public RequestTest, public ::testing::WithParamInterface<DuplicatePolicy> {
 protected:
  RequestDuplicatesTest() : RequestTest(16, GetParam()) {}
  bool rejects() const { return GetParam() == DuplicatePolicy::kReject; }
};

TEST_P(RequestDuplicatesTest, TwoThatComputeTheSamePromptAtOnce) {
  Request first = request_of(0, 10);
  Request second = request_of(0, 10);
  value_of(first.schedule_prefill(10));
  value_of(second.schedule_prefill(10));
  EXPECT_EQ(engine_.run(first, 10), "");
  EXPECT_EQ(engine_.run(second, 10), "");
  const Ids own = table_of(second);
  EXPECT_EQ(value_of(first.apply_prefill(Token(10))).replaced, 0u);
  const StepOutcome outcome = value_of(second.apply_prefill(Token(10)));

  EXPECT_EQ(outcome.replaced, rejects() ? 2u : 0u);
  EXPECT_EQ(table_of(second)[2], own[2]);
  for (const std::size_t i : {0u, 1u})
    EXPECT_EQ(table_of(second)[i], rejects() ? table_of(first)[i] : own[i]);
  EXPECT_EQ(at(), rejects() ? (Places{.reset = 12, .active = 2, .owned = 2})
                            : (Places{.reset = 10, .active = 4, .owned = 2}));
  EXPECT_EQ(engine_.check(second), "");

  first.release();
  overwrite_available_blocks();  // no entry of the table may name a block that went back
  EXPECT_EQ(engine_.check(second), "");
  EXPECT_EQ(registered().size(), 2u);
}

TEST_P(RequestDuplicatesTest, TwoThatGenerateTheSameTokens) {
  Request first = request_of(0, 6);
  Request second = request_of(0, 6);
  prefill_all(first, 6);
  prefill_all(second, 6);
  for (std::uint32_t next = 7; next < 15; ++next) {
    const bool fills = first.size() % kBlockSize == 0;
    EXPECT_EQ(decode(first, next).replaced, 0u);
    EXPECT_EQ(decode(second, next).replaced, rejects() && fills ? 1u : 0u);
    if (rejects()) {  // all shared but the block that each is filling
      const std::size_t filling = first.computed_tokens() % kBlockSize == 0 ? 0 : 1;
      EXPECT_EQ(at().active + at().owned, first.block_table().size() + filling);
    }
  }
  first.release();
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(second), "");
  decode(second, 15);
  expect_visible(second);
}

TEST_P(RequestDuplicatesTest, BlocksOfTheCacheReplaceThoseOfARequestThatDidNotAsk) {
  cache(tokens_from(0, 12));
  Request request = request_of(0, 12);  // no match_prefix()
  const StepOutcome outcome = prefill_all(request, 1);
  EXPECT_EQ(outcome.replaced, rejects() ? 3u : 0u);
  EXPECT_EQ(registered().size(), 3u);
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(request), "");
}

TEST_P(RequestDuplicatesTest, SpeculationMayMeetWhatOthersRegistered) {
  Request first = request_of(0, 4);
  Request second = request_of(0, 4);
  prefill_all(first, 4);
  prefill_all(second, 4);
  for (std::uint32_t next = 5; next < 14; ++next) decode(first, next);
  const StepOutcome outcome = speculate(second, tokens_from(5, 12), tokens_from(5, 9));
  EXPECT_EQ(outcome.replaced, rejects() ? 2u : 0u);
  first.release();
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(second), "");
  expect_visible(second);
}

INSTANTIATE_TEST_SUITE_P(Policies, RequestDuplicatesTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject";
                         });

}  // namespace
}  // namespace ashlar::block::support
