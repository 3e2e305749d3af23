// Sequences and requests over the G1 of a KvBlockManager: what they register goes down, what they match comes
// up, with its bytes.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/rounds.h"
#include "tiers/requests_fixture.h"

namespace ashlar::tiers {
namespace {

using block::Fence;

TEST_F(RequestsTest, WhatARequestRegistersGoesDownAndComesBackFromEveryTier) {
  open();
  {
    Request first = request(text(1, 21));
    EXPECT_EQ(first.match_prefix().value(), 0u);
    prefill(first);
  }
  for (const events::TierId tier : {kG2, kG3, kG4}) {
    SCOPED_TRACE(unsigned{tier.value()});
    only_in(tier);
    Request again = request(text(1, 21));
    const std::vector<SequenceHash> names(again.sequence_hashes().begin(), again.sequence_hashes().end());
    EXPECT_EQ(kv_->find(names), (std::vector<TierRun>{{tier, 0, 5}}));
    EXPECT_EQ(again.match_prefix().value(), 20u);
    EXPECT_EQ(again.cached_tokens(), 20u);
    EXPECT_TRUE(right(again));
    prefill(again);
  }
  EXPECT_EQ(kv_->status().g4->onboarded, 5u);
  expect_counts_exact();
}

TEST_F(RequestsTest, SequencesGoDownAndComeBack) {
  open();
  const block::SequenceManager<G1> sequences(kv_->g1());
  for (int turn = 0; turn < 2; ++turn) {
    auto sequence = sequences.make_sequence(text(1, 18)).value();
    EXPECT_EQ(sequences.allocate(sequence).value(), turn == 0 ? 0u : 16u);
    Request names = request(text(1, 18));
    for (std::size_t i = 0; i < 4; ++i) {
      if (turn == 0) {
        work_->compute(sequence.block_table()[i], name(names, i, 0));
      } else {
        EXPECT_TRUE(work_->has_bytes(sequence.block_table()[i], name(names, i, 0)));
      }
    }
    EXPECT_TRUE(sequences.computed(sequence, 18));
    ASSERT_TRUE(sequences.deallocate(sequence));
    only_in(kG3);
  }
  expect_counts_exact();
}

TEST_F(RequestsTest, ABatchRegistersForTheTiersToo) {
  open();
  {
    Request one = request(text(1, 9));
    Request two = request(text(2, 9));
    block::SequenceBatch<G1> batch;
    batch.add(one);
    batch.add(two);
    ASSERT_TRUE(batch.schedule_prefill(std::array<std::size_t, 2>{9, 9}));
    compute(one, 9);
    compute(two, 9);
    ASSERT_TRUE(batch.apply_prefill(std::array<std::optional<Token>, 2>{Token(1), Token(2)}));
  }
  only_in(kG2);
  for (const std::uint32_t which : {1u, 2u}) {
    Request again = request(text(which, 9));
    EXPECT_EQ(again.match_prefix().value(), 8u);
    EXPECT_TRUE(right(again));
  }
  expect_counts_exact();
}

// Write-back: nobody calls look_ahead().
TEST_F(RequestsTest, EvictionCandidatesOfRequestsAreWrittenBack) {
  open(Trigger::kNearEviction);
  for (std::uint32_t which = 0; which < 6; ++which) {
    Request some = request(text(which, 9));
    EXPECT_EQ(some.match_prefix().value(), 0u);
    prefill(some);
    kv_->drain();  // else a block may be evicted before its turn
    some.release();
    kv_->drain();
  }
  std::size_t found = 0;
  for (std::uint32_t which = 0; which < 6; ++which) {
    Request some = request(text(which, 9));
    found += some.match_prefix().value();
    EXPECT_TRUE(right(some));
  }
  EXPECT_GT(found, 8u * kBlockSize) << "more than G1 has room for";
  EXPECT_EQ(kv_->status().g1.evictions, kv_->g1().counters().evictions);
  EXPECT_GT(kv_->status().g1.evictions, 0u);
  expect_counts_exact();
}

TEST_F(RequestsTest, PreemptOffloadsAndResumeOnboards) {
  open(Trigger::kOnCall);
  Request preempted = request(text(1, 13));
  prefill(preempted);
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u) << "only by call";
  ASSERT_TRUE(preempted.preempt());
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 3u);
  kv_->reset(kG1).value();
  EXPECT_EQ(preempted.resume().value(), 12u);
  EXPECT_TRUE(right(preempted));
  EXPECT_EQ(preempted.tokens_to_compute(), 2u);
  preempted.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, NoBlockIsCopiedBeforeTheStepThatWritesIt) {
  open();
  auto [fence, signal] = Fence::create();
  auto never = std::make_optional(Fence::create());
  Request written = request(text(1, 9));
  Request lost = request(text(2, 9));
  written.set_written_after(fence);
  lost.set_written_after(never->first);
  for (Request* const one : {&written, &lost}) {
    ASSERT_TRUE(one->schedule_prefill(9));
    ASSERT_TRUE(one->apply_prefill(Token(1)));  // applied when it is launched: nothing is written yet
  }
  EXPECT_FALSE(kv_->offload(written.sequence_hashes()).value().done()) << "nor by call";
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u);
  EXPECT_EQ(kv_->status().to_g2->blocked, 4u);
  for (std::size_t i = 0; i < 2; ++i) work_->compute(written.block_table()[i], name(written, i, 0));
  std::move(signal).signal();
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 2u);
  EXPECT_EQ(request(text(2, 9)).match_prefix().value(), 8u) << "who follows in the stream may share it";
  std::move(never->second).fail();
  EXPECT_EQ(request(text(2, 9)).match_prefix().value(), 0u) << "what was not written is not found";
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 2u) << "nor does it go down";
  EXPECT_EQ(kv_->status().to_g2->blocked, 0u);
  written.release();
  only_in(kG2);
  Request again = request(text(1, 9));
  EXPECT_EQ(again.match_prefix().value(), 8u);
  EXPECT_TRUE(right(again));
  again.release();
  lost.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, NothingComesUpIntoBlocksOfARunningStep) {
  open();
  {
    Request first = request(text(1, 25));
    prefill(first);
  }
  only_in(kG2);
  auto [fence, signal] = Fence::create();
  Request running = request(text(2, 17));
  ASSERT_TRUE(running.schedule_prefill(17));
  running.set_written_after(fence);
  ASSERT_TRUE(running.apply_prefill(Token(7)));
  const std::vector<block::BlockId> written(running.block_table().begin(), running.block_table().end());
  ASSERT_EQ(written.size(), 5u);
  running.release();
  Request some = request(text(1, 25));
  EXPECT_LE(some.match_prefix().value(), 3u * kBlockSize);
  for (std::size_t i = 0; i < written.size(); ++i)  // the kernel is slow
    work_->compute(written[i], i < 4 ? name(running, i, 0) : name(running, 0, 1));
  EXPECT_TRUE(right(some));
  std::move(signal).signal();
  some.release();
  kv_->drain();
  Request all = request(text(1, 25));
  EXPECT_EQ(all.match_prefix().value(), 24u);
  EXPECT_TRUE(right(all));
  all.release();
  Request again = request(text(2, 17));
  EXPECT_EQ(again.match_prefix().value(), 16u);
  EXPECT_TRUE(right(again));
  again.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, BlocksRegisteredAtOnceGoDownAfterTheirStep) {
  open();
  const block::SequenceManager<G1> sequences(kv_->g1(), {.register_blocks = block::RegisterBlocks::kAtOnce});
  auto sequence = sequences.make_sequence(text(1, 9)).value();
  ASSERT_TRUE(sequences.allocate(sequence));
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 0u) << "the step may be running";
  EXPECT_EQ(kv_->status().to_g2->blocked, 2u);
  const Request names = request(text(1, 9));
  for (std::size_t i = 0; i < 2; ++i) work_->compute(sequence.block_table()[i], name(names, i, 0));
  sequence.append(Token(5));
  ASSERT_TRUE(sequences.may_append(sequence));
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 2u);
  {
    auto dropped = sequences.make_sequence(text(2, 9)).value();
    ASSERT_TRUE(sequences.allocate(dropped));
  }
  kv_->drain();
  EXPECT_EQ(kv_->status().to_g2->arrived, 2u) << "nobody vouched for what was dropped";
  ASSERT_TRUE(sequences.deallocate(sequence));
  expect_counts_exact();
}

TEST_F(RequestsTest, SaltAndPriorityTravelWithTheBlock) {
  open();
  const tokens::Salt salt("lora", "tenant");
  RequestOptions options{.hasher = tokens::SequenceHasher(salt)};
  options.retention.prompt = {{.begin = 0, .end = 4, .priority = 90}};
  std::vector<SequenceHash> names;
  {
    Request salted = request(text(1, 9), options);
    prefill(salted);
    names.assign(salted.sequence_hashes().begin(), salted.sequence_hashes().end());
  }
  ASSERT_TRUE(kv_->g1().set_retention(names[1], {.priority = 80}));
  kv_->drain();
  kv_->offload_to(kG3, names).value().wait().value();
  const auto check = [&](auto& manager, std::uint8_t second) {
    const block::Hold first = manager.hold(names[0]).value();
    EXPECT_EQ(manager.identity(first).salt, tokens::salt_fingerprint(salt));
    EXPECT_TRUE(manager.identity(first).prefix.is_known());
    EXPECT_EQ(manager.retention(first).priority, 90u);
    EXPECT_EQ(manager.retention(manager.hold(names[1]).value()).priority, second);
  };
  check(kv_->g1(), 80);
  kv_->reset(kG1).value();
  Request again = request(text(1, 9), options);
  EXPECT_EQ(again.match_prefix().value(), 8u);
  EXPECT_EQ(request(text(1, 9)).match_prefix().value(), 0u) << "another salt names other blocks";
  EXPECT_EQ(kv_->g1().retention(kv_->g1().hold(names[0]).value()).priority, 90u) << "it came up again";
  again.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, ABudgetLimitsWhatComesUp) {
  open();
  {
    Request first = request(text(1, 21));
    prefill(first);
  }
  only_in(kG2);
  EXPECT_EQ(request(text(1, 21), {.onboard = {.max_blocks = 0}}).match_prefix().value(), 0u);
  EXPECT_EQ(request(text(1, 21), {.onboard = {.time = Clock::Duration::zero()}}).match_prefix().value(), 0u);
  {
    Request some = request(text(1, 21), {.onboard = {.max_blocks = 2}});
    EXPECT_EQ(some.match_prefix().value(), 8u);
    EXPECT_TRUE(right(some));
  }
  Request all = request(text(1, 21), {.onboard = {.time = Clock::Duration::max()}});
  EXPECT_EQ(all.match_prefix().value(), 20u);
  all.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, ABudgetOfSeveralGroupsBringsTheLongestPrefixThatFits) {
  const auto groups = [](std::vector<block::CacheGroup> groups, std::size_t most) {
    return RequestOptions{.groups = std::move(groups), .onboard = {.max_blocks = most}};
  };
  const std::vector<block::CacheGroup> two = {block::CacheGroup::full_attention(),
                                              block::CacheGroup::full_attention()};
  const std::vector<block::CacheGroup> mixed = {block::CacheGroup::full_attention(),
                                                block::CacheGroup::sliding_window(4)};
  KvOptions options = KvWorkload::options_in(folder_.path());
  options.g1.block_count = 16;
  options.g2->block_count = 32;
  open(std::move(options));
  for (const auto& kinds : {two, mixed}) {
    const std::uint32_t which = kinds == two ? 1 : 2;
    {
      Request first = request(text(which, 13), groups(kinds, 100));
      prefill(first);
    }
    only_in(kG2);
    std::size_t before = 0;
    for (std::size_t most = 0; most <= 6; ++most) {
      SCOPED_TRACE(most);
      Request some = request(text(which, 13), groups(kinds, most));
      const std::size_t cached = some.match_prefix().value();
      EXPECT_GE(cached, before);
      EXPECT_LE(16 - kv_->g1().available_blocks(), most);
      if (kinds == two) {
        EXPECT_EQ(cached, most / 2 * kBlockSize);
      }
      EXPECT_TRUE(right(some));
      before = cached;
      some.release();
      kv_->reset(kG1).value();
    }
    EXPECT_EQ(before, 12u) << "all of it";
  }
}

TEST_F(RequestsTest, BlocksThatComeUpForARequestHaveTheirTokensAgain) {
  KvOptions options = KvWorkload::options_in(folder_.path());
  options.g1.pool.keep_tokens = true;
  open(std::move(options));
  Request first = request(text(1, 13));
  prefill(first);
  const std::vector<SequenceHash> names(first.sequence_hashes().begin(), first.sequence_hashes().end());
  first.release();
  only_in(kG2);
  {
    const auto by_name = kv_->onboard(names);
    ASSERT_EQ(by_name.size(), 3u);
    EXPECT_FALSE(kv_->g1().tokens_of(names[1])) << "nobody has said them";
  }
  const std::vector<Token> all = text(1, 12);
  const auto blocks = tokens::TokenSequence::create(all, 4, kv_->hasher()).value();
  const auto expect_tokens = [&] {
    for (std::size_t i = 0; i < names.size(); ++i)
      EXPECT_EQ(kv_->g1().tokens_of(names[i]),
                std::vector<Token>(all.begin() + static_cast<std::ptrdiff_t>(4 * i),
                                   all.begin() + static_cast<std::ptrdiff_t>(4 * i + 4)));
  };
  const auto token_blocks = [&] { return std::span<const tokens::TokenBlock>(blocks.blocks()); };
  kv_->reset(kG1).value();
  EXPECT_EQ(kv_->onboard(token_blocks()).size(), 3u);
  expect_tokens();
  kv_->reset(kG1).value();
  EXPECT_EQ(kv_->onboard_async(token_blocks()).value().wait().value().size(), 3u);
  expect_tokens();
  kv_->reset(kG1).value();
  Request again = request(text(1, 13));
  EXPECT_EQ(again.match_prefix().value(), 12u);
  expect_tokens();
}

TEST_F(RequestsTest, HitsInG1CountInEveryGroup) {
  KvOptions options = KvWorkload::options_in(folder_.path());
  options.g1.block_count = 16;
  open(std::move(options));
  const RequestOptions groups{
      .groups = {block::CacheGroup::full_attention(), block::CacheGroup::full_attention()}};
  Request first = request(text(1, 13), groups);
  prefill(first);
  Request again = request(text(1, 13), groups);
  EXPECT_EQ(again.match_prefix().value(), 12u);
  EXPECT_EQ(kv_->status().g1.hits, 6u);
}

TEST_F(RequestsTest, AMatchThatDoesNotWaitEndsInACallback) {
  open();
  {
    Request first = request(text(1, 21));
    prefill(first);
  }
  only_in(kG3);
  Request waits = request(text(1, 21));
  std::atomic<int> called{0};
  const block::MatchStart start = waits.begin_match([&] { ++called; }).value();
  EXPECT_EQ(start.cached, 0u);
  ASSERT_TRUE(start.pending);
  EXPECT_EQ(waits.state(), RequestState::kOnboarding);
  EXPECT_EQ(waits.schedule_prefill(1).error().reason, block::SequenceError::Reason::kWrongState);
  EXPECT_EQ(waits.begin_match({}).error().reason, block::SequenceError::Reason::kWrongState);
  while (called == 0) std::this_thread::yield();
  EXPECT_TRUE(waits.match_ready());
  EXPECT_EQ(waits.finish_match().value(), 20u);
  EXPECT_EQ(waits.state(), RequestState::kIdle);
  EXPECT_TRUE(right(waits));
  EXPECT_EQ(waits.finish_match().error().reason, block::SequenceError::Reason::kWrongState);
  // All of it is in G1 now: nothing is pending.
  Request at_once = request(text(1, 21));
  const block::MatchStart all = at_once.begin_match([&] { ++called; }).value();
  EXPECT_EQ(all.cached, 20u);
  EXPECT_FALSE(all.pending);
  EXPECT_EQ(called, 1);
  waits.release();
  at_once.release();
  expect_counts_exact();
}

TEST_F(RequestsTest, WhoIsReleasedOrPreemptedWhileItOnboardsKeepsNothing) {
  open();
  {
    Request first = request(text(1, 21));
    prefill(first);
  }
  for (int round = 0; round < 6; ++round) {
    only_in(kG3);
    std::atomic<int> called{0};
    int matches = 1;
    std::optional<Request> leaves = request(text(1, 21));
    ASSERT_TRUE(leaves->begin_match([&] { ++called; }).value().pending);
    if (round % 3 == 0) leaves->release();
    if (round % 3 == 1) leaves.reset();
    if (round % 3 == 2) {
      ASSERT_TRUE(leaves->preempt());
      EXPECT_EQ(leaves->state(), RequestState::kPreempted);
      if (leaves->begin_match([&] { ++called; }).value().pending) {
        ++matches;
        EXPECT_TRUE(leaves->finish_match());
      }
      EXPECT_TRUE(right(*leaves));
      leaves.reset();
    }
    while (called < matches)
      std::this_thread::yield();  // each ends in its callback, also after finish_match()
    kv_->drain();
  }
  // A cancelled call returns its blocks when its thread notices.
  while (kv_->g1().available_blocks() != 8) std::this_thread::yield();
  expect_counts_exact();
}

TEST_F(RequestsTest, LayersArriveOneByOne) {
  open();
  {
    Request first = request(text(1, 21));
    prefill(first);
  }
  only_in(kG2);
  Request layered = request(text(1, 21), {.onboard = {.by_layer = true}});
  EXPECT_EQ(layered.wait_layer(0).error().code(), ErrorCode::kNotReady);
  ASSERT_TRUE(layered.begin_match([] {}).value().pending);
  const std::vector<SequenceHash> names(layered.sequence_hashes().begin(), layered.sequence_hashes().end());
  std::vector<block::BlockId> ids;
  for (std::uint32_t layer = 0; layer < KvWorkload::model().num_layers; ++layer) {
    ids = layered.wait_layer(layer).value();
    ASSERT_EQ(ids.size(), 5u);
    EXPECT_TRUE(work_->layer_right(ids, names, layer));
  }
  EXPECT_EQ(layered.finish_match().value(), 20u);
  EXPECT_TRUE(std::ranges::equal(layered.block_table(), ids)) << "the same blocks";
  layered.release();
  expect_counts_exact();
}

// As requests do: without waiting, layer by layer, and nothing is kept by who leaves.
TEST_F(RequestsTest, SequencesNeedNotWaitForTheTiers) {
  open();
  const block::SequenceManager<G1> sequences(kv_->g1(), {.onboard = {.by_layer = true}});
  const auto wrong = [](const auto& refused) {
    return refused.error().reason == block::SequenceError::Reason::kWrongState;
  };
  const auto make = [&] { return sequences.make_sequence(text(1, 22)).value(); };
  {
    auto first = make();
    ASSERT_TRUE(sequences.allocate(first));
    const Request names = request(text(1, 22));
    for (std::size_t i = 0; i < 5; ++i) work_->compute(first.block_table()[i], name(names, i, 0));
    ASSERT_TRUE(sequences.computed(first, 22));
  }
  for (const auto leave : {0, 1, 2}) {
    SCOPED_TRACE(leave);
    only_in(kG2);
    auto waits = std::optional(make());
    std::atomic<int> called{0};
    EXPECT_TRUE(waits->arrived());
    EXPECT_EQ(waits->wait_layer(0).error().code(), ErrorCode::kNotReady);
    EXPECT_TRUE(wrong(sequences.finish_allocate(*waits)));
    const block::MatchStart start = sequences.begin_allocate(*waits, [&] { ++called; }).value();
    EXPECT_EQ(start.cached, 0u);
    ASSERT_TRUE(start.pending);
    EXPECT_TRUE(wrong(sequences.allocate(*waits)));
    EXPECT_TRUE(wrong(sequences.begin_allocate(*waits, [] {})));
    EXPECT_TRUE(wrong(sequences.may_append(*waits)));
    EXPECT_TRUE(wrong(sequences.computed(*waits, 1)));
    if (leave == 0) {
      const std::vector<SequenceHash> names(waits->sequence_hashes().begin(), waits->sequence_hashes().end());
      std::vector<block::BlockId> ids;
      for (std::uint32_t layer = 0; layer < KvWorkload::model().num_layers; ++layer) {
        ids = waits->wait_layer(layer).value();
        EXPECT_TRUE(work_->layer_right(ids, names, layer));
      }
      EXPECT_EQ(sequences.finish_allocate(*waits).value(), 20u);
      EXPECT_EQ(waits->cached_tokens(), 20u);
      ASSERT_EQ(waits->block_table().size(), 6u);
      EXPECT_TRUE(std::ranges::equal(waits->block_table().first(5), ids)) << "the same blocks";
      // What is all in G1 is allocated at once.
      auto at_once = make();
      const block::MatchStart all = sequences.begin_allocate(at_once, [&] { called += 100; }).value();
      EXPECT_EQ(all.cached, 20u);
      EXPECT_FALSE(all.pending);
      EXPECT_EQ(at_once.block_table().size(), 6u);
      ASSERT_TRUE(sequences.deallocate(at_once));
      ASSERT_TRUE(sequences.deallocate(*waits));
    } else if (leave == 1) {
      ASSERT_TRUE(sequences.deallocate(*waits));
      EXPECT_TRUE(waits->block_table().empty());
    } else {
      waits.reset();
    }
    while (called == 0) std::this_thread::yield();  // once, also for who has gone
    EXPECT_EQ(called, 1);
    while (kv_->g1().available_blocks() != 8) std::this_thread::yield();
  }
  expect_counts_exact();
}

// The blocks for the rest went to others meanwhile: what arrived stays in the cache.
TEST_F(RequestsTest, ASequenceWithoutRoomForItsRestHasNoBlocks) {
  open();
  const block::SequenceManager<G1> sequences(kv_->g1());
  {
    Request first = request(text(1, 9));
    prefill(first);
  }
  only_in(kG2);
  auto waits = sequences.make_sequence(text(1, 18)).value();
  std::atomic<bool> ready{false};
  ASSERT_TRUE(sequences.begin_allocate(waits, [&] { ready = true; }).value().pending);
  while (!ready) std::this_thread::yield();
  const auto others = kv_->get_mutable_blocks(6).value();
  EXPECT_EQ(sequences.finish_allocate(waits).error().reason, block::SequenceError::Reason::kNoRoom);
  EXPECT_TRUE(waits.block_table().empty());
  EXPECT_EQ(waits.cached_tokens(), 0u);
  Request again = request(text(1, 9));
  EXPECT_EQ(again.match_prefix().value(), 8u);
  EXPECT_TRUE(right(again));
}

// Two kinds of attention: the blocks of a window come up without those before it.
TEST_F(RequestsTest, GroupsComeUpTogether) {
  open();
  const RequestOptions groups{
      .groups = {block::CacheGroup::full_attention(), block::CacheGroup::sliding_window(5)}};
  {
    Request first = request(text(1, 13), groups);
    prefill(first);
  }
  only_in(kG2);
  {
    Request again = request(text(1, 13), groups);
    EXPECT_EQ(again.match_prefix().value(), 12u);
    EXPECT_EQ(again.block_table(1)[0], block::kNoBlock);
    EXPECT_TRUE(right(again));
    EXPECT_EQ(kv_->status().g2->onboarded, 3u + again.group_count() - 1) << "three, and the window's last";
  }
  // Without the window's last block, a shorter prefix is the best.
  only_in(kG3);
  Request names = request(text(1, 13), groups);
  ASSERT_TRUE(kv_->reset_blocks(std::vector{name(names, 2, 1)}));
  EXPECT_EQ(names.match_prefix().value(), 8u);
  EXPECT_TRUE(right(names));
  names.release();
  // Asynchronously too.
  only_in(kG3);
  Request waits = request(text(1, 13), groups);
  std::atomic<bool> ready{false};
  ASSERT_TRUE(waits.begin_match([&] { ready = true; }).value().pending);
  while (!ready) std::this_thread::yield();
  EXPECT_EQ(waits.finish_match().value(), 8u);
  EXPECT_TRUE(right(waits));
  waits.release();
  expect_counts_exact();
}

// Requests on several threads share four tiers: each block that one of them gets has its bytes.
TEST_F(RequestsTest, ManyThreadsShareTheTiers) {
  KvOptions options = KvWorkload::options_in(folder_.path());
  options.g1.block_count = 24;
  options.to_g3.trigger = Trigger::kNearEviction;
  open(std::move(options));
  std::vector<std::thread> threads;
  std::atomic<std::size_t> cached{0};
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (std::uint64_t turn = 0; turn < ashlar::testing::rounds(240); ++turn) {
        Request one = request(text(static_cast<std::uint32_t>(random.below(8)), 9 + random.below(8)));
        std::atomic<bool> ready{false};
        const block::MatchStart start = one.begin_match([&] { ready = true; }).value();
        while (start.pending && !ready) std::this_thread::yield();
        cached += start.pending ? one.finish_match().value() : start.cached;
        ASSERT_TRUE(right(one));
        if (!one.schedule_prefill(one.tokens_to_compute())) continue;  // no room
        compute(one, one.tokens_to_compute());
        ASSERT_TRUE(one.apply_prefill(Token(static_cast<std::uint32_t>(random.below(2)))));
        if (random.below(3) == 0) {
          ASSERT_TRUE(one.preempt());
          ASSERT_TRUE(one.resume());
          ASSERT_TRUE(right(one));
        }
        if (random.below(8) == 0) kv_->reset(std::array{kG1, kG2}[random.below(2)]).value();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(cached, 0u);
  kv_->drain();
  EXPECT_EQ(kv_->g1().available_blocks(), 24u);
  EXPECT_EQ(kv_->status().g1.evictions, kv_->g1().counters().evictions);
  kv_->check_invariants();
}

}  // namespace
}  // namespace ashlar::tiers
