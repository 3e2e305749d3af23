// Batches: what single calls do, for many requests at once, all or none.
#include <gtest/gtest.h>

#include <cstddef>
#include <optional>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

using NextToken = std::optional<Token>;

class RequestBatchTest : public RequestTest {
 protected:
  RequestBatchTest() : RequestTest(64) {}

  static Batch batch_of(std::vector<Request>& requests) {
    Batch batch;
    for (Request& request : requests) batch.add(request);
    return batch;
  }
  void compute_one_token_each(const std::vector<Request>& requests) {
    for (const Request& request : requests) EXPECT_EQ(engine_.run(request, 1), "");
  }
  void check_all(const std::vector<Request>& requests) {
    for (const Request& request : requests) EXPECT_EQ(engine_.check(request), "");
  }
  static std::vector<Snapshot> snapshots(const std::vector<Request>& requests) {
    std::vector<Snapshot> taken;
    for (const Request& request : requests) taken.emplace_back(request);
    return taken;
  }
  // Requests with prompts of `sizes`, computed.
  std::vector<Request> running(const std::vector<std::size_t>& sizes, RequestOptions options = {}) {
    std::vector<Request> requests;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      requests.push_back(request_of(static_cast<std::uint32_t>(1'000 * (i + 1)), sizes[i], options));
      prefill_all(requests.back(), static_cast<std::uint32_t>(100'000 + i));
    }
    return requests;
  }
};

// ---- the same as single calls

class BatchOrSinglesTest : public ::testing::TestWithParam<DuplicatePolicy> {};

// Twins of a world: one is driven by batches, the other by single calls in the same order.
struct Twin {
  explicit Twin(DuplicatePolicy duplicates)
      : manager(value_of(builder_of(64).duplicate_policy(duplicates).build())), engine(64, kBlockSize) {}
  Manager manager;
  Engine engine;
  std::vector<Request> requests;
};

TEST_P(BatchOrSinglesTest, ABatchDoesWhatSingleCallsDo) {
  Twin batched(GetParam());
  Twin single(GetParam());
  const std::vector<std::size_t> sizes = {3, 4, 5, 8, 8, 11, 1};
  for (Twin* twin : {&batched, &single}) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      // 3 and 4 are the same request twice.
      const auto first = static_cast<std::uint32_t>(1'000 * (i == 4 ? 3 : i));
      twin->requests.push_back(value_of(Request::create(twin->manager, tokens_from(first, sizes[i]))));
    }
  }
  const auto compare = [&] {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      SCOPED_TRACE(i);
      const Request& a = batched.requests[i];
      const Request& b = single.requests[i];
      EXPECT_EQ(a.state(), b.state());
      EXPECT_EQ(tokens_of(a), tokens_of(b));
      EXPECT_EQ(a.computed_tokens(), b.computed_tokens());
      EXPECT_EQ(a.block_table().size(), b.block_table().size());
      if (a.state() != RequestState::kIdle) continue;
      EXPECT_EQ(batched.engine.check(a), "");
      EXPECT_EQ(single.engine.check(b), "");
    }
    EXPECT_EQ(places(batched.manager), places(single.manager));
  };
  Batch batch;
  for (Request& request : batched.requests) batch.add(request);
  ASSERT_EQ(batch.size(), sizes.size());

  for (const std::size_t chunk : {2u, 3u, 100u}) {
    std::vector<std::size_t> chunks;
    std::vector<NextToken> next;
    Batch part;  // those that have tokens of their prompt left
    std::vector<std::size_t> who;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      if (batched.requests[i].size() > sizes[i]) continue;
      const std::size_t left = batched.requests[i].tokens_to_compute();
      who.push_back(i);
      part.add(batched.requests[i]);
      chunks.push_back(std::min(left, chunk));
      next.push_back(chunk >= left ? NextToken(static_cast<std::uint32_t>(50 + sizes[i])) : std::nullopt);
    }
    const BatchPlan plan = value_of(part.schedule_prefill(chunks));
    std::size_t new_blocks = 0;
    for (std::size_t k = 0; k < who.size(); ++k) {
      new_blocks += value_of(single.requests[who[k]].schedule_prefill(chunks[k])).new_blocks;
      EXPECT_EQ(batched.engine.run(batched.requests[who[k]], chunks[k]), "");
      EXPECT_EQ(single.engine.run(single.requests[who[k]], chunks[k]), "");
    }
    EXPECT_EQ(plan.new_blocks, new_blocks);
    EXPECT_EQ(plan.copies, 0u);
    compare();
    const StepOutcome outcome = value_of(part.apply_prefill(next));
    StepOutcome sum;
    for (std::size_t k = 0; k < who.size(); ++k) {
      const StepOutcome one = value_of(single.requests[who[k]].apply_prefill(next[k]));
      sum.registered += one.registered;
      sum.replaced += one.replaced;
    }
    EXPECT_EQ(outcome.registered, sum.registered);
    EXPECT_EQ(outcome.replaced, sum.replaced);
    compare();
  }
  for (std::uint32_t step = 0; step < 12; ++step) {
    SCOPED_TRACE(step);
    const BatchPlan plan = value_of(batch.schedule_decode());
    std::size_t new_blocks = 0;
    std::vector<Token> next;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      new_blocks += value_of(single.requests[i].schedule_decode()).new_blocks;
      EXPECT_EQ(batched.engine.run(batched.requests[i], 1), "");
      EXPECT_EQ(single.engine.run(single.requests[i], 1), "");
      next.emplace_back(step * 10 + static_cast<std::uint32_t>(sizes[i]));
    }
    EXPECT_EQ(plan.new_blocks, new_blocks);
    compare();
    const StepOutcome outcome = value_of(batch.apply_decode(next));
    StepOutcome sum;
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      const StepOutcome one = value_of(single.requests[i].apply_decode(next[i]));
      sum.registered += one.registered;
      sum.replaced += one.replaced;
    }
    EXPECT_EQ(outcome.registered, sum.registered);
    EXPECT_EQ(outcome.replaced, sum.replaced);
    compare();
  }
  batch.release();
  for (Request& request : single.requests) request.release();
  compare();
  EXPECT_EQ(batched.manager.available_blocks(), 64u);
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchOrSinglesTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject";
                         });

// ---- all or none

TEST_F(RequestBatchTest, ARefusedRequestIsNamedAndNoneIsChanged) {
  std::vector<Request> requests = running({3, 4, 8, 6});
  requests[2].preempt().value();
  Batch batch = batch_of(requests);
  const auto before = snapshots(requests);
  const Places places_before = at();

  const BatchError decode_error = error_of(batch.schedule_decode());
  EXPECT_EQ(decode_error.index, 2u);
  EXPECT_EQ(decode_error.error.reason, Refused::kWrongState);
  EXPECT_EQ(decode_error.error.state, to_string(RequestState::kPreempted));
  EXPECT_EQ(snapshots(requests), before);

  const std::vector<std::size_t> ones(4, 1);
  const BatchError prefill_error = error_of(batch.schedule_prefill(ones));
  EXPECT_EQ(prefill_error.index, 2u);
  EXPECT_EQ(prefill_error.error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
}

TEST_F(RequestBatchTest, EveryReasonNamesItsRequest) {
  RequestOptions limited;
  limited.max_tokens = 5;
  std::vector<Request> requests;
  requests.push_back(request_of(0, 3));
  prefill_all(requests.back(), 1);
  requests.push_back(request_of(100, 4, limited));
  prefill_all(requests.back(), 1);
  requests.push_back(request_of(200, 4));
  const auto before = snapshots(requests);
  Batch batch = batch_of(requests);
  BatchError error = error_of(batch.schedule_decode());
  EXPECT_EQ(error.index, 1u);
  EXPECT_EQ(error.error.reason, Refused::kTooLong);

  Batch last;
  last.add(requests[0]);
  last.add(requests[2]);
  error = error_of(last.schedule_decode());
  EXPECT_EQ(error.index, 1u);
  EXPECT_EQ(error.error.reason, Refused::kPrefillIncomplete);
  error = error_of(last.schedule_prefill(std::vector<std::size_t>{1, 5}));
  EXPECT_EQ(error.index, 1u);
  EXPECT_EQ(error.error.reason, Refused::kPrefillOverrun);
  error = error_of(last.schedule_prefill(std::vector<std::size_t>{0, 4}));
  EXPECT_EQ(error.index, 0u);
  EXPECT_EQ(error.error.reason, Refused::kNothingToCompute);
  EXPECT_EQ(snapshots(requests), before);

  value_of(last.schedule_prefill(std::vector<std::size_t>{1, 3}));
  const auto scheduled = snapshots(requests);
  error = error_of(last.apply_prefill(std::vector<NextToken>{Token(1), Token(2)}));
  EXPECT_EQ(error.index, 1u);
  EXPECT_EQ(error.error.reason, Refused::kTokenNotExpected);
  EXPECT_EQ(snapshots(requests), scheduled);
  error = error_of(last.apply_prefill(std::vector<NextToken>{std::nullopt, std::nullopt}));
  EXPECT_EQ(error.index, 0u);
  EXPECT_EQ(error.error.reason, Refused::kTokenMissing);
  error = error_of(last.apply_decode(tokens_from(1, 2)));
  EXPECT_EQ(error.index, 0u);
  EXPECT_EQ(error.error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), scheduled);
  value_of(last.apply_prefill(std::vector<NextToken>{Token(1), std::nullopt}));
}

TEST_F(RequestBatchTest, ApplyIsForAllOrNone) {
  std::vector<Request> requests = running({3, 4, 7});
  value_of(requests[0].schedule_decode());
  value_of(requests[1].schedule_decode());
  Batch batch = batch_of(requests);
  const auto before = snapshots(requests);
  const BatchError error = error_of(batch.apply_decode(tokens_from(1, 3)));
  EXPECT_EQ(error.index, 2u);
  EXPECT_EQ(error.error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(error_of(batch.revert()).index, 2u);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(error_of(batch.schedule_decode()).index, 0u);
  EXPECT_EQ(snapshots(requests), before);
}

TEST_F(RequestBatchTest, RoomIsForAllOrNone) {
  std::vector<Request> requests = running({4, 4, 3, 4, 4});
  auto rest = value_of(manager_.allocate_blocks(available() - 3));  // four are wanted
  Batch batch = batch_of(requests);
  const auto before = snapshots(requests);
  const Places places_before = at();
  const BatchError error = error_of(batch.schedule_decode());
  EXPECT_EQ(error.error.reason, Refused::kNoRoom);
  ASSERT_TRUE(error.error.refusal);
  EXPECT_EQ(error.error.refusal->requested, 4u);
  EXPECT_LT(error.index, 5u);
  EXPECT_EQ(error.error.state, to_string(RequestState::kIdle));
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
  EXPECT_EQ(error_of(batch.schedule_prefill(std::vector<std::size_t>(5, 1))).error.reason, Refused::kNoRoom);
  EXPECT_EQ(snapshots(requests), before);
  rest.truncate(rest.size() - 1);
  EXPECT_EQ(value_of(batch.schedule_decode()).new_blocks, 4u);
}

TEST_F(RequestBatchTest, RequestsOfTwoManagersAreRefused) {
  Manager other = manager_of(8);
  std::vector<Request> requests = running({3, 4});
  requests.push_back(value_of(Request::create(other, tokens_from(0, 1))));
  Batch batch = batch_of(requests);
  const auto before = snapshots(requests);
  const BatchError decode_error = error_of(batch.schedule_decode());
  EXPECT_EQ(decode_error.error.reason, Refused::kOtherManager);
  EXPECT_EQ(decode_error.index, 2u);
  const BatchError prefill_error = error_of(batch.schedule_prefill(std::vector<std::size_t>(3, 1)));
  EXPECT_EQ(prefill_error.error.reason, Refused::kOtherManager);
  EXPECT_EQ(prefill_error.index, 2u);
  EXPECT_EQ(snapshots(requests), before);
  requests.pop_back();
}

TEST_F(RequestBatchTest, RequestsOfTwoManagersAreRefusedThoughNoneNeedsABlock) {
  Manager other = manager_of(64);
  std::vector<Request> requests = running({3});
  requests.push_back(value_of(Request::create(other, tokens_from(0, 3))));
  prefill_all(requests.back(), 7);
  {
    Batch batch = batch_of(requests);
    const auto before = snapshots(requests);
    const auto plan = batch.schedule_decode();
    EXPECT_FALSE(plan.has_value());
    if (!plan) {
      EXPECT_EQ(plan.error().error.reason, Refused::kOtherManager);
      EXPECT_EQ(plan.error().index, 1u);
      EXPECT_EQ(snapshots(requests), before);
    }
  }
  requests.pop_back();
}

TEST_F(RequestBatchTest, StepsOfTwoManagersAreNotMixedWhenTheyAreApplied) {
  Manager other = manager_of(64);
  std::vector<Request> requests = running({3});
  requests.push_back(value_of(Request::create(other, tokens_from(0, 3))));
  prefill_all(requests.back(), 7);
  for (Request& request : requests) value_of(request.schedule_decode());
  Batch batch = batch_of(requests);
  const auto before = snapshots(requests);
  const auto outcome = batch.apply_decode(tokens_from(1, 2));  // both fill a block
  if (outcome) {
    EXPECT_EQ(outcome->registered, 2u);
    EXPECT_EQ(places(other), (Places{.reset = 63, .active = 1}));
  } else {
    EXPECT_EQ(outcome.error().error.reason, Refused::kOtherManager);
    EXPECT_EQ(snapshots(requests), before);
    EXPECT_EQ(places(other), (Places{.reset = 63, .owned = 1}));
  }
  other.check_invariants();
  manager_.check_invariants();
  requests.clear();
}

TEST_F(RequestBatchTest, ARequestIsInOneStepAtATime) {
  std::vector<Request> requests = running({3, 4});
  Batch batch = batch_of(requests);
  batch.add(requests[0]);
  const auto before = snapshots(requests);
  const Places places_before = at();
  const BatchError error = error_of(batch.schedule_decode());
  EXPECT_EQ(error.index, 2u);
  EXPECT_EQ(error.error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(error_of(batch.schedule_prefill(std::vector<std::size_t>(3, 1))).index, 2u);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
  batch.clear();
  EXPECT_EQ(batch.size(), 0u);
}

TEST_F(RequestBatchTest, AStepIsAppliedOnceThoughItsRequestIsThereTwice) {
  std::vector<Request> requests = running({3, 4});
  for (Request& request : requests) value_of(request.schedule_decode());
  Batch batch = batch_of(requests);
  batch.add(requests[0]);
  const auto decoding = snapshots(requests);
  const BatchError twice = error_of(batch.apply_decode(std::vector<Token>(3, Token(9))));
  EXPECT_EQ(twice.index, 2u);
  EXPECT_EQ(twice.error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), decoding);
  for (Request& request : requests) ASSERT_TRUE(request.revert().has_value());
  for (Request& request : requests) value_of(request.schedule_prefill(1));
  const auto prefilling = snapshots(requests);
  EXPECT_EQ(error_of(batch.apply_prefill(std::vector<std::optional<Token>>(3, Token(9)))).index, 2u);
  EXPECT_EQ(snapshots(requests), prefilling);
  manager_.check_invariants();
  requests.clear();
}

TEST_F(RequestBatchTest, ARequestThatCrossesABoundaryTwiceInABatchIsRefusedToo) {
  std::vector<Request> requests = running({4, 4});
  Batch batch = batch_of(requests);
  batch.add(requests[1]);
  const auto before = snapshots(requests);
  const Places places_before = at();
  EXPECT_EQ(error_of(batch.schedule_decode()).error.reason, Refused::kWrongState);
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
}

TEST_F(RequestBatchTest, AnEmptyBatchIsAStepOverNothing) {
  Batch batch;
  EXPECT_EQ(value_of(batch.schedule_decode()).new_blocks, 0u);
  EXPECT_EQ(value_of(batch.apply_decode({})).registered, 0u);
  EXPECT_EQ(value_of(batch.schedule_prefill({})).new_blocks, 0u);
  EXPECT_EQ(value_of(batch.apply_prefill({})).registered, 0u);
  batch.revert().value();
  batch.release();
}

// ---- many at once

TEST_F(RequestBatchTest, ManyCrossABoundaryInOneStep) {
  std::vector<Request> requests = running(std::vector<std::size_t>(20, 4));
  Batch batch = batch_of(requests);
  for (std::uint32_t step = 0; step < 6; ++step) {
    EXPECT_EQ(value_of(batch.schedule_decode()).new_blocks, step % 4 == 0 ? 20u : 0u);
    compute_one_token_each(requests);
    EXPECT_EQ(value_of(batch.apply_decode(tokens_from(step * 100, 20))).registered, step == 3 ? 20u : 0u);
    check_all(requests);
  }
  EXPECT_EQ(at(), (Places{.reset = 4, .active = 40, .owned = 20}));
}

TEST_F(RequestBatchTest, AStepThatEvictsKeepsTheBlocksOfTheBatch) {
  std::vector<Request> requests = running(std::vector<std::size_t>(8, 7));
  cache(tokens_from(90'000, 120));
  ASSERT_GT(at().inactive, 20u);
  Batch batch = batch_of(requests);
  for (std::uint32_t step = 0; step < 24; ++step) {
    value_of(batch.schedule_decode());
    compute_one_token_each(requests);
    value_of(batch.apply_decode(tokens_from(step * 100, 8)));
    check_all(requests);
  }
  EXPECT_EQ(at().inactive + at().reset, 0u);
}

class BatchDuplicatesTest : public RequestTest, public ::testing::WithParamInterface<DuplicatePolicy> {
 protected:
  BatchDuplicatesTest() : RequestTest(64, GetParam()) {}
};

TEST_P(BatchDuplicatesTest, IdenticalRequestsCompleteTheSameBlockInOneStep) {
  const bool rejects = GetParam() == DuplicatePolicy::kReject;
  std::vector<Request> requests;
  Batch batch;
  for (int i = 0; i < 5; ++i) requests.push_back(request_of(0, 6));
  for (Request& request : requests) batch.add(request);
  value_of(batch.schedule_prefill(std::vector<std::size_t>(5, 6)));
  for (const Request& request : requests) EXPECT_EQ(engine_.run(request, 6), "");
  EXPECT_EQ(value_of(batch.apply_prefill(std::vector<NextToken>(5, Token(6)))).replaced, rejects ? 4u : 0u);
  for (std::uint32_t next = 7; next < 20; ++next) {
    const bool fills = requests[0].size() % kBlockSize == 0;
    value_of(batch.schedule_decode());
    for (const Request& request : requests) EXPECT_EQ(engine_.run(request, 1), "");
    EXPECT_EQ(value_of(batch.apply_decode(std::vector<Token>(5, Token(next)))).replaced,
              rejects && fills ? 4u : 0u);
    EXPECT_EQ(registered().size(), requests[0].computed_tokens() / kBlockSize);
    overwrite_available_blocks();
    for (const Request& request : requests) ASSERT_EQ(engine_.check(request), "");
  }
  const std::size_t full = requests[0].computed_tokens() / kBlockSize;
  for (std::size_t i = 1; rejects && i < 5; ++i) {
    for (std::size_t b = 0; b < full; ++b) EXPECT_EQ(table_of(requests[i])[b], table_of(requests[0])[b]);
  }
  requests[0].release();
  overwrite_available_blocks();
  for (std::size_t i = 1; i < 5; ++i) EXPECT_EQ(engine_.check(requests[i]), "");
  batch.release();
  EXPECT_EQ(at().active + at().owned, 0u);
}

INSTANTIATE_TEST_SUITE_P(Policies, BatchDuplicatesTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject";
                         });

TEST_F(RequestBatchTest, PrefillAndDecodeRunInOneBatch) {
  std::vector<Request> requests = running({6});
  requests.push_back(request_of(50'000, 13));
  requests.push_back(request_of(60'000, 5));
  Batch batch = batch_of(requests);
  EXPECT_EQ(value_of(batch.schedule_prefill(std::vector<std::size_t>{1, 9, 5})).new_blocks, 5u);
  EXPECT_EQ(engine_.run(requests[0], 1), "");
  EXPECT_EQ(engine_.run(requests[1], 9), "");
  EXPECT_EQ(engine_.run(requests[2], 5), "");
  const StepOutcome outcome =
      value_of(batch.apply_prefill(std::vector<NextToken>{Token(1), std::nullopt, Token(2)}));
  EXPECT_EQ(outcome.registered, 3u);
  check_all(requests);
  EXPECT_EQ(requests[0].size(), 8u);
  EXPECT_EQ(requests[1].size(), 13u);
  EXPECT_EQ(requests[2].size(), 6u);
}

TEST_F(RequestBatchTest, TheLimitOfARequestShowsInTheOutcome) {
  RequestOptions limited;
  limited.max_tokens = 6;
  std::vector<Request> requests = running({3});
  requests.push_back(request_of(500, 4, limited));
  prefill_all(requests.back(), 1);
  Batch batch = batch_of(requests);
  value_of(batch.schedule_decode());
  compute_one_token_each(requests);
  EXPECT_TRUE(value_of(batch.apply_decode(tokens_from(1, 2))).at_limit);
  EXPECT_EQ(requests[1].tokens_left(), 0u);
  EXPECT_EQ(error_of(batch.schedule_decode()).index, 1u);
}

TEST_F(RequestBatchTest, ForksWriteInOneStep) {
  std::vector<Request> requests = running({6});
  for (std::uint32_t i = 0; i < 5; ++i) requests.push_back(value_of(requests[0].fork(Token(700 + i))));
  Batch batch = batch_of(requests);
  const BatchPlan plan = value_of(batch.schedule_decode());
  EXPECT_GE(plan.copies, 5u);
  EXPECT_EQ(plan.new_blocks, plan.copies);
  std::size_t copies = 0;
  for (const Request& request : requests) copies += request.copies().size();
  EXPECT_EQ(copies, plan.copies);
  compute_one_token_each(requests);
  value_of(batch.apply_decode(tokens_from(800, 6)));
  check_all(requests);
  EXPECT_EQ(at(), (Places{.reset = 57, .active = 1, .owned = 6}));
}

TEST_F(RequestBatchTest, ABatchIsRevertedAsAWhole) {
  std::vector<Request> requests = running({4, 6, 7});
  requests.push_back(value_of(requests[1].fork()));
  const auto before = snapshots(requests);
  const Places places_before = at();
  Batch batch = batch_of(requests);
  value_of(batch.schedule_decode());
  batch.revert().value();
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
  value_of(batch.schedule_prefill(std::vector<std::size_t>(4, 1)));
  batch.revert().value();
  EXPECT_EQ(snapshots(requests), before);
  EXPECT_EQ(at(), places_before);
}

TEST_F(RequestBatchTest, ABatchIsReleasedInAnyState) {
  std::vector<Request> requests = running({4, 6, 7, 9});
  requests.push_back(value_of(requests[1].fork()));
  value_of(requests[1].schedule_decode());
  requests[2].preempt().value();
  requests[3].release();
  Batch batch = batch_of(requests);
  batch.release();
  for (const Request& request : requests) EXPECT_EQ(request.state(), RequestState::kReleased);
  EXPECT_EQ(at().active + at().owned, 0u);
  EXPECT_EQ(registered().size(), 5u);
}

TEST(RequestGroupBatchTest, GroupsRunInABatch) {
  const std::vector<CacheGroup> groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(5)};
  Manager manager = manager_of(96);
  Engine engine(96, kBlockSize, groups);
  std::vector<Request> requests;
  Batch batch;
  for (std::uint32_t i = 0; i < 6; ++i) {
    RequestOptions options;
    options.groups = groups;
    requests.push_back(value_of(Request::create(manager, tokens_from(100 * (i / 2), 3 + i / 2), options)));
  }
  for (Request& request : requests) batch.add(request);
  std::vector<std::size_t> chunks;
  for (const Request& request : requests) chunks.push_back(request.size());
  value_of(batch.schedule_prefill(chunks));
  for (const Request& request : requests) EXPECT_EQ(engine.run(request, request.size()), "");
  value_of(batch.apply_prefill(std::vector<NextToken>(6, Token(7))));
  for (std::uint32_t step = 0; step < 30; ++step) {
    value_of(batch.schedule_decode());
    for (const Request& request : requests) ASSERT_EQ(engine.run(request, 1), "");
    value_of(batch.apply_decode(std::vector<Token>(6, Token(step))));
    for (const Request& request : requests) ASSERT_EQ(engine.check(request), "");
  }
  batch.release();
  EXPECT_EQ(places(manager).active, 0u);
}

}  // namespace
}  // namespace ashlar::block::support
