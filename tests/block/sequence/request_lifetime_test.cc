// What becomes of a request's blocks: preemption and what is left after it, release and its order, fences,
// collisions, retention, multimodal items.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

class RequestLifetimeTest : public RequestTest {
 protected:
  RequestLifetimeTest() : RequestTest(8) {}

  // A prompt of 10 and 6 generated tokens, of which the last has no KV: three full blocks and one begun.
  Request running() {
    Request request = request_of(0, 10);
    prefill_all(request, 100);
    for (std::uint32_t next = 101; next < 106; ++next) decode(request, next);
    EXPECT_EQ(request.size(), 16u);
    EXPECT_EQ(request.computed_tokens(), 15u);
    return request;
  }
  // Evicts the next `count` victims.
  void evict(std::size_t count) {
    EXPECT_LE(count, at().inactive);
    const auto taken = value_of(manager_.allocate_blocks(at().reset + count));
    for (const Mutable& block : taken) engine_.scribble(block.block_id());
  }
};

// ---- preempt and resume

TEST_F(RequestLifetimeTest, APreemptedRequestKeepsItsTokensAndNoBlock) {
  Request request = running();
  const std::vector<Token> tokens = tokens_of(request);
  request.preempt().value();
  EXPECT_EQ(request.state(), RequestState::kPreempted);
  EXPECT_EQ(tokens_of(request), tokens);
  EXPECT_TRUE(request.block_table().empty());
  EXPECT_EQ(request.computed_tokens(), 0u);
  EXPECT_EQ(request.tokens_to_compute(), 16u);
  EXPECT_EQ(request.prompt_size(), 10u);
  EXPECT_EQ(at(), (Places{.reset = 5, .inactive = 3}));
}

TEST_F(RequestLifetimeTest, ResumeSharesWhatTheCacheStillHas) {
  Request request = running();
  const Ids table = table_of(request);
  request.preempt().value();
  EXPECT_EQ(value_of(request.resume()), 12u);
  EXPECT_EQ(request.state(), RequestState::kIdle);
  EXPECT_EQ(request.cached_tokens(), 12u);
  EXPECT_EQ(request.computed_tokens(), 12u);
  EXPECT_EQ(request.tokens_to_compute(), 4u);
  EXPECT_EQ(table_of(request), Ids(table.begin(), table.begin() + 3));
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(reason_of(request.schedule_decode()), Refused::kPrefillIncomplete);
  EXPECT_EQ(prefill_all(request, 106).registered, 1u);
  EXPECT_EQ(request.size(), 17u);
  decode(request, 107);
  expect_visible(request);
}

TEST_F(RequestLifetimeTest, WhatWasEvictedIsComputedAgainAndNotRegisteredBefore) {
  Request request = running();
  request.preempt().value();
  evict(1);  // the tail
  ASSERT_EQ(registered().size(), 2u);
  EXPECT_EQ(value_of(request.resume()), 8u);
  EXPECT_EQ(registered().size(), 2u);
  EXPECT_EQ(request.computed_tokens(), 8u);
  EXPECT_EQ(at().owned, 0u);

  value_of(request.schedule_prefill(8));
  EXPECT_EQ(registered().size(), 2u);
  EXPECT_EQ(engine_.run(request, 8), "");
  EXPECT_EQ(registered().size(), 2u);
  EXPECT_EQ(value_of(request.apply_prefill(Token(106))).registered, 2u);
  EXPECT_EQ(engine_.check(request), "");
  expect_visible(request);
}

TEST_F(RequestLifetimeTest, ResumeAfterEverythingWasEvicted) {
  Request request = running();
  request.preempt().value();
  EXPECT_EQ(manager_.reset_inactive_pool(), 3u);
  EXPECT_EQ(value_of(request.resume()), 0u);
  EXPECT_EQ(request.cached_tokens(), 0u);
  EXPECT_TRUE(registered().empty());
  EXPECT_EQ(reason_of(request.schedule_decode()), Refused::kPrefillIncomplete);
  EXPECT_EQ(prefill(request, 7).registered, 1u);
  EXPECT_EQ(prefill(request, 8).registered, 2u);
  EXPECT_EQ(request.tokens_to_compute(), 1u);
  EXPECT_EQ(decode(request, 106).registered, 1u);  // the last token can be a decode step again
  expect_visible(request);
}

TEST_F(RequestLifetimeTest, AFreshRequestMayBePreempted) {
  cache(tokens_from(0, 8));
  Request request = request_of(0, 10);
  request.preempt().value();
  EXPECT_EQ(value_of(request.resume()), 8u);
  request.preempt().value();
  EXPECT_EQ(value_of(request.resume()), 8u);
  prefill_all(request, 1);
}

TEST_F(RequestLifetimeTest, ARequestMayBePreemptedBetweenChunks) {
  Request request = request_of(0, 14);
  prefill(request, 6);
  request.preempt().value();
  EXPECT_EQ(at(), (Places{.reset = 7, .inactive = 1}));
  EXPECT_EQ(value_of(request.resume()), 4u);
  prefill(request, 5);
  prefill_all(request, 1);
  expect_visible(request);
}

TEST_F(RequestLifetimeTest, ResumeFindsWhatOthersComputedMeanwhile) {
  Request request = running();
  std::vector<Token> tokens = tokens_of(request);
  request.preempt().value();
  manager_.reset_inactive_pool();
  cache(tokens);                               // all 16, the last one too
  EXPECT_EQ(value_of(request.resume()), 12u);  // the last token has to be computed
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestLifetimeTest, TheOldestBlockOfAPreemptedRequestIsTheLastToGo) {
  Request request = running();
  const std::vector<SequenceHash> names(request.sequence_hashes().begin(),
                                        request.sequence_hashes().begin() + 3);
  request.preempt().value();
  EXPECT_EQ(manager_.eviction_candidates(3), (std::vector{names[2], names[1], names[0]}));
}

TEST_F(RequestLifetimeTest, TheLimitCountsTokensAcrossPreemption) {
  RequestOptions options;
  options.max_tokens = 8;
  Request request = request_of(0, 6, options);
  prefill_all(request, 1);
  request.preempt().value();
  EXPECT_EQ(request.tokens_left(), 1u);
  value_of(request.resume());
  EXPECT_TRUE(prefill_all(request, 2).at_limit);
  request.preempt().value();
  value_of(request.resume());
  EXPECT_EQ(reason_of(request.schedule_prefill(request.tokens_to_compute())), Refused::kTooLong);
}

// ---- release

TEST_F(RequestLifetimeTest, TheLastBlockIsReleasedFirst) {
  const auto names = sequence_of(4).sequence_hashes();
  const std::vector<SequenceHash> tail_first(names.rbegin(), names.rend());
  Request request = request_of(0, 16);
  prefill_all(request, 1);
  request.release();
  EXPECT_EQ(manager_.eviction_candidates(4), tail_first);

  manager_.reset_inactive_pool();
  cache(tokens_from(0, 16));  // dropped
  EXPECT_EQ(manager_.eviction_candidates(4), tail_first);
  Request again = request_of(0, 17);
  EXPECT_EQ(value_of(again.match_prefix()), 16u);
  again.release();
  EXPECT_EQ(manager_.eviction_candidates(4), tail_first);
}

TEST_F(RequestLifetimeTest, GroupsGiveTheirBlocksBackByPosition) {
  RequestOptions options;
  options.groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(100)};
  Request request = value_of(Request::create(manager_, tokens_from(0, 12), options));
  value_of(request.schedule_prefill(12));
  value_of(request.apply_prefill(Token(1)));
  const auto names = sequence_of(3).sequence_hashes();
  request.release();
  EXPECT_EQ(manager_.eviction_candidates(6),
            (std::vector{names[2].in_group(1), names[2], names[1].in_group(1), names[1], names[0].in_group(1),
                         names[0]}));
}

TEST_F(RequestLifetimeTest, BlocksOfARunningRequestAreNotEvicted) {
  Request request = running();
  Request greedy = request_of(1'000, 20);
  EXPECT_EQ(reason_of(greedy.schedule_prefill(20)), Refused::kNoRoom);
  prefill(greedy, 16);
  EXPECT_EQ(reason_of(greedy.schedule_prefill(1)), Refused::kNoRoom);
  EXPECT_EQ(engine_.check(request), "");
  greedy.release();
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestLifetimeTest, AStepInFlightKeepsItsBlocksUntilTheFence) {
  Request request = running();
  value_of(request.schedule_decode());
  const std::size_t before = available();
  auto [fence, signal] = Fence::create();
  request.release_after(fence);
  EXPECT_EQ(request.state(), RequestState::kReleased);
  EXPECT_TRUE(request.block_table().empty());
  EXPECT_EQ(request.size(), 16u);
  EXPECT_EQ(available(), before);
  EXPECT_EQ(at().reset, before);
  request.release();
  EXPECT_EQ(available(), before);
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 5, .inactive = 3}));
}

TEST_F(RequestLifetimeTest, ARequestMayBeGoneBeforeTheFence) {
  auto [fence, signal] = Fence::create();
  std::size_t before = 0;
  {
    Request request = request_of(0, 10);
    value_of(request.schedule_prefill(10));
    before = available();
    request.release_after(fence);
  }
  EXPECT_EQ(available(), before);
  EXPECT_EQ(before, 5u);
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 8}));  // nothing was computed, nothing is registered
}

TEST_F(RequestLifetimeTest, AFenceThatHasPassedReleasesAtOnce) {
  Request request = running();
  request.release_after(Fence::passed_already());
  EXPECT_EQ(at(), (Places{.reset = 5, .inactive = 3}));
}

TEST_F(RequestLifetimeTest, TheSourceOfACopyInFlightWaitsForTheFenceToo) {
  Request request = request_of(0, 6);
  prefill_all(request, 1);
  Request fork = value_of(request.fork());
  ASSERT_EQ(value_of(fork.schedule_decode()).copies.size(), 1u);
  request.release();
  auto [fence, signal] = Fence::create();
  fork.release_after(fence);
  EXPECT_EQ(available(), 5u);  // the full block, the source and the destination are still read or written
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 7, .inactive = 1}));
}

// The manager of a fence that never passes can never be destroyed. A new one for every call.
Manager& immortal_manager() {
  static auto* const managers = new std::deque<Manager>;
  return managers->emplace_back(manager_of(8));
}

TEST(RequestAbandonedFenceTest, BlocksThatWaitForEverAreNeverHandedOut) {
  Manager& manager = immortal_manager();
  Request request = value_of(Request::create(manager, tokens_from(0, 6)));
  value_of(request.schedule_prefill(6));
  value_of(request.apply_prefill(Token(1)));
  Request fork = value_of(request.fork());
  ASSERT_EQ(value_of(fork.schedule_decode()).copies.size(), 1u);
  {
    auto [fence, signal] = Fence::create();
    fork.release_after(fence);
  }
  EXPECT_EQ(manager.available_blocks(), 5u);
  // Nobody else shares the source any more, but the abandoned step may still read it.
  EXPECT_EQ(value_of(request.schedule_decode()).copies.size(), 1u);
  ASSERT_TRUE(request.revert().has_value());
  request.release();
  // The full block, the source and the destination of the copy: the step that was abandoned may still use
  // them.
  EXPECT_EQ(manager.available_blocks(), 5u);
  manager.check_invariants();
}

// ---- collisions

class RequestCollisionTest : public RequestTest {
 protected:
  RequestCollisionTest() : RequestTest(24), names_(sequence_of(3).sequence_hashes()) {
    cache(tokens_from(0, 12));
  }

  // Other tokens under names that are taken.
  Request forged(std::vector<SequenceHash> names) {
    return value_of(Request::create(manager_, tokens_from(100, 14), std::move(names), {}));
  }

  std::vector<SequenceHash> names_;
};

TEST_F(RequestCollisionTest, ARequestWhoseFirstNameIsTakenGoesOnAlone) {
  const auto before = registered();
  Request request = forged(names_);
  EXPECT_EQ(value_of(request.match_prefix()), 0u);  // tokens are compared
  const StepOutcome outcome = prefill_all(request, 1);
  EXPECT_EQ(outcome.registered, 0u);
  EXPECT_EQ(outcome.replaced, 0u);
  EXPECT_EQ(manager_.counters().collisions, 1u);
  for (std::uint32_t next = 2; next < 12; ++next) EXPECT_EQ(decode(request, next).registered, 0u);
  EXPECT_EQ(registered(), before);
  EXPECT_EQ(at().owned, request.block_table().size());
  EXPECT_EQ(cached_tokens_of(tokens_from(0, 13)), 12u);  // the first owner of the names has its blocks

  Request another = forged(names_);
  EXPECT_EQ(value_of(another.match_prefix()), 0u);
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(request), "");
}

TEST_F(RequestCollisionTest, BlocksBeforeACollisionAreSharedAndThoseAfterItAreNot) {
  const auto own = sequence_of(3, 100).sequence_hashes();
  Request request = forged({own[0], names_[1]});
  EXPECT_EQ(prefill_all(request, 1).registered, 1u);
  for (std::uint32_t next = 2; next < 12; ++next) EXPECT_EQ(decode(request, next).registered, 0u);
  EXPECT_EQ(registered().size(), 4u);
  EXPECT_EQ(at().owned, request.block_table().size() - 1);
  EXPECT_EQ(cached_tokens_of(tokens_from(100, 14)), 4u);
  Request same = forged({own[0], names_[1]});
  EXPECT_EQ(value_of(same.match_prefix()), 4u);
  EXPECT_EQ(engine_.check(same), "");
}

TEST_F(RequestCollisionTest, PrivateBlocksAreForkedCopiedAndPreempted) {
  Request request = forged(names_);
  prefill_all(request, 1);
  Request fork = value_of(request.fork());
  EXPECT_EQ(table_of(fork), table_of(request));
  const std::size_t held = at().owned + at().active;
  EXPECT_EQ(held, 4u);
  decode(fork, 2);
  decode(request, 3);
  EXPECT_EQ(at().owned + at().active, 5u);
  EXPECT_EQ(engine_.check(fork), "");
  request.release();
  overwrite_available_blocks();
  EXPECT_EQ(engine_.check(fork), "");
  for (std::uint32_t next = 4; next < 12; ++next) EXPECT_EQ(decode(fork, next).registered, 0u);
  fork.preempt().value();
  EXPECT_EQ(at().owned + at().active, 0u);
  EXPECT_EQ(value_of(fork.resume()), 0u);
  prefill_all(fork, 12);
}

TEST(RequestGroupCollisionTest, PrivateBlocksLeaveTheWindow) {
  const std::vector<CacheGroup> groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(6)};
  Manager manager = manager_of(48);
  Engine engine(48, kBlockSize, groups);
  const auto names = sequence_of(3).sequence_hashes();
  const auto own = sequence_of(3, 100).sequence_hashes();
  // The name of the second block is taken in the second group only.
  const Immutable taken = store_one(manager, sequence_of(2).blocks()[1]);
  RequestOptions options;
  options.groups = groups;
  Request request = value_of(Request::create(manager, tokens_from(100, 14), {own[0], names[1]}, options));
  EXPECT_EQ(value_of(request.match_prefix()), 0u);
  value_of(request.schedule_prefill(14));
  EXPECT_EQ(engine.run(request, 14), "");
  value_of(request.apply_prefill(Token(1)));
  EXPECT_EQ(engine.check(request), "");
  std::vector<Request> all;
  all.push_back(value_of(request.fork(Token(2))));
  all.push_back(std::move(request));
  for (std::uint32_t next = 10; next < 40; ++next) {
    for (Request& each : all) {
      value_of(each.schedule_decode());
      EXPECT_EQ(engine.run(each, 1), "");
      value_of(each.apply_decode(Token(next)));
    }
    const auto others = value_of(manager.allocate_blocks(manager.available_blocks()));
    for (const Mutable& block : others) engine.scribble(block.block_id());
    for (const Request& each : all) ASSERT_EQ(engine.check(each), "");
  }
  all.clear();
  EXPECT_EQ(places(manager).owned, 0u);
  EXPECT_EQ(places(manager).active, 1u);
}

// ---- callbacks that use requests

class RequestCallbackTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 16;

  Manager manager_with(DuplicatePolicy duplicates, Watermarks marks) {
    return value_of(builder_of(kBlocks)
                        .duplicate_policy(duplicates)
                        .with_retention_backend()
                        .watermarks(marks,
                                    [this](Pressure now, std::size_t) {
                                      if (act_) std::exchange(act_, nullptr)(now);
                                    })
                        .build());
  }
  void whole_prompt(Request& request) {
    const std::size_t tokens = request.size();
    value_of(request.schedule_prefill(tokens));
    EXPECT_EQ(engine_.run(request, tokens), "");
    value_of(request.apply_prefill(Token(1)));
  }

  Engine engine_{kBlocks, kBlockSize};
  std::function<void(Pressure)> act_;  // runs once
};

TEST_F(RequestCallbackTest, AnotherRequestIsScheduledWhileBlocksAreTaken) {
  Manager manager = manager_with(DuplicatePolicy::kAllow, {10, 12});
  Request other = value_of(Request::create(manager, tokens_from(500, 18)));
  Request request = value_of(Request::create(manager, tokens_from(0, 28)));
  act_ = [&](Pressure) { whole_prompt(other); };
  value_of(request.schedule_prefill(28));
  EXPECT_FALSE(act_) << "the callback did not run";
  for (const std::uint32_t id : table_of(request))
    EXPECT_EQ(std::ranges::count(table_of(other), id), 0) << id;
  EXPECT_EQ(engine_.run(request, 28), "");
  value_of(request.apply_prefill(Token(1)));
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(engine_.check(other), "");
  EXPECT_EQ(places(manager).active + places(manager).owned, 12u);
}

TEST_F(RequestCallbackTest, AnotherRequestIsAppliedWhileBlocksAreRegistered) {
  Manager manager = manager_with(DuplicatePolicy::kReject, {4, 8});
  Request first = value_of(Request::create(manager, tokens_from(0, 20)));
  whole_prompt(first);
  Request other = value_of(Request::create(manager, tokens_from(500, 8)));
  RequestOptions options;
  options.retention.prompt = {{0, std::nullopt, 90, std::nullopt}};
  Request request = value_of(Request::create(manager, tokens_from(0, 20), options));
  value_of(request.schedule_prefill(20));
  EXPECT_EQ(engine_.run(request, 20), "");
  const auto rest = value_of(manager.allocate_blocks(3));
  ASSERT_EQ(manager.pressure(), Pressure::kLow);
  act_ = [&](Pressure now) {
    EXPECT_EQ(now, Pressure::kNormal);
    whole_prompt(other);
  };
  EXPECT_EQ(value_of(request.apply_prefill(Token(1))).replaced, 5u);  // five blocks go back
  EXPECT_FALSE(act_) << "the callback did not run";
  EXPECT_EQ(engine_.check(request), "");
  EXPECT_EQ(engine_.check(other), "");
  const auto names = sequence_of(5).sequence_hashes();
  request.release();
  first.release();
  other.release();
  // What the request asked for its blocks has reached them.
  const auto order = manager.eviction_candidates(7);
  ASSERT_EQ(order.size(), 7u);
  EXPECT_EQ(std::vector<SequenceHash>(order.begin() + 2, order.end()),
            std::vector<SequenceHash>(names.rbegin(), names.rend()));
}

TEST_F(RequestCallbackTest, ACallbackPreemptsWhoeverItLikes) {
  Manager manager = manager_with(DuplicatePolicy::kAllow, {4, 8});
  Request victim = value_of(Request::create(manager, tokens_from(500, 22)));
  whole_prompt(victim);
  Request request = value_of(Request::create(manager, tokens_from(0, 28)));
  act_ = [&](Pressure now) {
    EXPECT_EQ(now, Pressure::kLow);
    victim.preempt().value();
  };
  value_of(request.schedule_prefill(28));
  EXPECT_EQ(victim.state(), RequestState::kPreempted);
  EXPECT_EQ(manager.pressure(), Pressure::kNormal);
  EXPECT_EQ(engine_.run(request, 28), "");
  value_of(request.apply_prefill(Token(1)));
  EXPECT_EQ(value_of(victim.resume()), 20u);
  EXPECT_EQ(engine_.check(victim), "");
}

// ---- retention

TEST(RequestRetentionTest, APlanReachesTheBlocks) {
  Manager manager = value_of(builder_of(32).with_retention_backend().build());
  Engine engine(32, kBlockSize);
  RequestOptions options;
  options.retention.prompt = {{0, 8, 5, std::nullopt}, {8, std::nullopt, 90, std::nullopt}};
  options.retention.decode_priority = 60;
  Request request = value_of(Request::create(manager, tokens_from(0, 16), options));
  value_of(request.schedule_prefill(16));
  value_of(request.apply_prefill(Token(1)));
  for (std::uint32_t next = 2; next < 6; ++next) {
    value_of(request.schedule_decode());
    value_of(request.apply_decode(Token(next)));
  }
  const std::vector<SequenceHash> names(request.sequence_hashes().begin(), request.sequence_hashes().end());
  ASSERT_EQ(names.size(), 5u);
  request.release();
  EXPECT_EQ(manager.eviction_candidates(5), (std::vector{names[1], names[0], names[4], names[3], names[2]}));
}

TEST(RequestRetentionTest, APlanSaysNothingAboutBlocksThatItsRangesDoNotTouch) {
  RetentionOptions retention;
  retention.default_priority = 60;
  Manager manager = value_of(builder_of(32).with_retention_backend(retention).build());
  const auto run = [&](std::size_t tokens, RetentionPlan plan) {
    RequestOptions options;
    options.retention = std::move(plan);
    Request request = value_of(Request::create(manager, tokens_from(0, tokens), options));
    value_of(request.match_prefix());
    value_of(request.schedule_prefill(request.tokens_to_compute()));
    value_of(request.apply_prefill(Token(1)));
  };
  RetentionPlan first;
  first.prompt = {{0, 4, 90, std::nullopt}};
  run(8, first);  // block 0 is worth 90; nobody speaks about block 1
  RetentionPlan second;
  second.prompt = {{8, 12, 10, std::nullopt}};
  run(13, second);  // block 2 is worth 10; what was said about block 0 stays
  const auto names = sequence_of(3).sequence_hashes();
  EXPECT_EQ(manager.eviction_candidates(3), (std::vector{names[2], names[1], names[0]}));
}

TEST(RequestRetentionTest, AMatchSpeaksToo) {
  Manager manager = value_of(builder_of(32).with_retention_backend().build());
  const auto run = [&](RetentionPlan plan) {
    RequestOptions options;
    options.retention = std::move(plan);
    Request request = value_of(Request::create(manager, tokens_from(0, 9), options));
    value_of(request.match_prefix());
    value_of(request.schedule_prefill(request.tokens_to_compute()));
    value_of(request.apply_prefill(Token(1)));
  };
  run({});
  RetentionPlan low;
  low.prompt = {{0, 4, 5, std::nullopt}};
  run(low);
  const auto names = sequence_of(2).sequence_hashes();
  EXPECT_EQ(manager.eviction_candidates(2), (std::vector{names[0], names[1]}));
}

TEST(RequestRetentionTest, APlanOfADuplicateReachesThePrimary) {
  Manager manager = value_of(builder_of(32).with_retention_backend().build());
  RequestOptions options;
  options.retention.prompt = {{0, 4, 90, std::nullopt}};
  Request first = value_of(Request::create(manager, tokens_from(0, 8)));
  Request second = value_of(Request::create(manager, tokens_from(0, 8), options));
  for (Request* request : {&first, &second}) value_of(request->schedule_prefill(8));
  for (Request* request : {&first, &second}) value_of(request->apply_prefill(Token(1)));
  second.release();
  first.release();
  const auto names = sequence_of(2).sequence_hashes();
  Request other = value_of(Request::create(manager, tokens_from(100, 4)));
  value_of(other.schedule_prefill(4));
  value_of(other.apply_prefill(Token(1)));
  other.release();
  EXPECT_EQ(manager.eviction_candidates(3).back(), names[0]);
}

TEST(RequestRetentionTest, ADurationCountsFromTheRegistration) {
  ManualClock clock;
  RetentionOptions retention;
  retention.half_life = Clock::Duration::zero();
  Manager manager = value_of(builder_of(32).clock(clock).with_retention_backend(retention).build());
  RequestOptions options;
  options.retention.prompt = {{0, 4, 80, std::chrono::seconds(10)}, {4, 8, 70, std::nullopt}};
  Request request = value_of(Request::create(manager, tokens_from(0, 8), options));
  clock.advance(std::chrono::seconds(100));
  value_of(request.schedule_prefill(8));
  value_of(request.apply_prefill(Token(1)));
  const auto names = sequence_of(2).sequence_hashes();
  request.release();
  EXPECT_EQ(manager.eviction_candidates(2), (std::vector{names[1], names[0]}));
  clock.advance(std::chrono::seconds(11));
  EXPECT_EQ(manager.eviction_candidates(2), (std::vector{names[0], names[1]}));
}

// ---- multimodal items

TEST_F(RequestLifetimeTest, ItemsInThePromptNameTheBlocksTheyTouch) {
  const auto prompt = tokens_from(0, 14);
  const auto with_item = [](std::uint64_t item) {
    RequestOptions options;
    options.runs = {{item, 5, 4}};  // touches blocks 1 and 2
    return options;
  };
  Request request = request_of(prompt, with_item(7));
  prefill_all(request, 14);
  decode(request, 15);
  decode(request, 16);
  const auto names = value_of(TokenSequence::create(std::span<const Token>(tokens_from(0, 16)), kBlockSize,
                                                    {}, with_item(7).runs))
                         .sequence_hashes();
  EXPECT_TRUE(std::ranges::equal(request.sequence_hashes(), names));
  for (const auto& name : names) EXPECT_TRUE(registered().contains(name));
  request.release();
  EXPECT_EQ(cached_tokens_of(prompt, with_item(7)), 12u);
  EXPECT_EQ(cached_tokens_of(prompt, with_item(8)), 4u);
  EXPECT_EQ(cached_tokens_of(prompt), 4u);
}

}  // namespace
}  // namespace ashlar::block::support
