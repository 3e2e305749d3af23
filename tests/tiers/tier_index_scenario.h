// From requests over four tiers to a router's index, over any feed: each block is known in the tiers that
// have it, also to a router that starts late. Include it in one source of a program, which instantiates
// TierIndexTest with its feeds.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/scratch_folder.h"
#include "support/server.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"
#include "tiers/tier_router.h"

namespace ashlar::tiers {

using TierRequest = block::RequestSequence<events::G1>;
// How events get from a worker to routers.
class EventPath {
 public:
  virtual ~EventPath() = default;
  // A worker begins, and ends; end() comes before the manager does.
  virtual void begin(events::EventManager& worker) = 0;
  virtual void end(events::EventManager& worker) = 0;
  // For a router that begins to listen now.
  virtual std::unique_ptr<feed::FeedSource> listen() = 0;
};

struct EventPathCase {
  std::string name;
  std::function<std::unique_ptr<EventPath>(const std::string& folder)> make;
  bool is_installed = true;  // the server that it needs
  friend std::ostream& operator<<(std::ostream& out, const EventPathCase& one) { return out << one.name; }
};

// A worker over four tiers, its feed, and a prompt of five blocks and one token.
class TierIndexTest : public ::testing::TestWithParam<EventPathCase> {
 protected:
  void SetUp() override {
    ASHLAR_NEEDS_SERVER(GetParam().is_installed, "there is no server for " + GetParam().name);
    for (std::uint32_t i = 0; i < 21; ++i) prompt_.emplace_back(100 + i);
    path_ = GetParam().make(folder_.path());
    open();
  }
  void TearDown() override { close(); }

  // Each life of a worker is an incarnation of its stream.
  void open() {
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.event_capacity = 1024;
    kv_ = KvBlockManager::create(std::move(options)).value();
    events_ = events::EventManager::create({.stream = {kTierWorker, ++incarnation_}}).value();
    path_->begin(*events_);
    ASSERT_TRUE(kv_->attach_events(*events_));
  }
  void close() {
    if (kv_ != nullptr) kv_->detach_events();
    if (events_ != nullptr) path_->end(*events_);
    events_.reset();
    kv_.reset();
  }
  // Computes what no tier has. Returns the cached tokens.
  std::size_t run() {
    KvWorkload work(*kv_);
    TierRequest request = TierRequest::create(kv_->g1(), prompt_, {.metadata = 77}).value();
    const std::size_t cached = request.match_prefix().value();
    EXPECT_TRUE(request.schedule_prefill(request.tokens_to_compute()));
    names_.assign(request.sequence_hashes().begin(), request.sequence_hashes().end());
    for (std::size_t i = cached / 4; i < names_.size(); ++i)
      work.compute(request.block_table()[i], names_[i]);
    EXPECT_TRUE(request.apply_prefill(tokens::Token(1)));
    request.release();
    kv_->drain();
    return cached;
  }
  // Computes one block.
  void fill(std::size_t i) {
    const auto text = tokens::TokenSequence::create(prompt_, 4, kv_->hasher()).value();
    auto taken = kv_->get_mutable_blocks(1).value();
    KvWorkload(*kv_).compute(taken[0].block_id(), names_[i]);
    block::BlockList<block::CompleteBlock<events::G1>> complete;
    complete.push_back(
        taken.take_back().complete(text.blocks()[i], block::KvReady::asserted_by_caller()).value());
    ASSERT_TRUE(kv_->register_blocks(std::move(complete)));
    kv_->drain();
  }
  std::vector<tokens::LocalHash> locals() const {
    const auto text = tokens::TokenSequence::create(prompt_, 4).value();
    std::vector<tokens::LocalHash> out;
    for (const tokens::TokenBlock& block : text.blocks()) out.push_back(block.local_hash());
    return out;
  }
  BlocksPerTier ask(TierRouter& router) {
    EXPECT_TRUE(events_->flush(Clock::real().now() + std::chrono::seconds(60)));
    return router.ask(locals(), {kTierWorker, incarnation_}, events_->counters().events);
  }
  // A router that listened all the time and one that starts now agree.
  void expect_blocks(TierRouter& router, const BlocksPerTier& expected) {
    EXPECT_EQ(ask(router), expected);
    TierRouter late(path_->listen());
    EXPECT_EQ(ask(late), expected) << "who starts late";
  }

  ScratchFolder folder_;
  std::vector<tokens::Token> prompt_;
  std::vector<tokens::SequenceHash> names_;
  std::unique_ptr<EventPath> path_;
  std::uint64_t incarnation_ = 0;
  std::unique_ptr<KvBlockManager> kv_;
  std::unique_ptr<events::EventManager> events_;
};

TEST_P(TierIndexTest, EachTierIsKnown) {
  TierRouter router(path_->listen());
  EXPECT_EQ(run(), 0u);
  expect_blocks(router, {5, 0, 0, 0});
  kv_->reset(kG1).value();
  expect_blocks(router, {0, 5, 0, 0});
  kv_->reset(kG2).value();
  expect_blocks(router, {0, 0, 5, 0});
  kv_->reset(kG3).value();
  expect_blocks(router, {0, 0, 0, 5});
  EXPECT_EQ(run(), 20u);
  expect_blocks(router, {5, 0, 0, 0});
  kv_->reset(kG1).value();
  expect_blocks(router, {0, 5, 0, 0});
}

TEST_P(TierIndexTest, RemovedAndEvictedBlocksAreForgotten) {
  TierRouter router(path_->listen());
  run();
  expect_blocks(router, {5, 0, 0, 0});
  ASSERT_TRUE(kv_->reset_blocks(std::vector{names_[3]}));
  expect_blocks(router, {3, 0, 0, 0});
  run();
  expect_blocks(router, {5, 0, 0, 0});
  // Room for something else pushes the prompt out of G1; G2 still has it.
  const auto all = kv_->g1().allocate_blocks(8).value();
  expect_blocks(router, {0, 5, 0, 0});
}

TEST_P(TierIndexTest, AWarmRestartIsHeard) {
  std::optional<TierRouter> router(path_->listen());
  run();
  expect_blocks(*router, {5, 0, 0, 0});
  router.reset();
  close();
  open();
  router.emplace(path_->listen());
  expect_blocks(*router, {0, 0, 5, 0});
  EXPECT_EQ(run(), 20u);
  expect_blocks(*router, {5, 0, 0, 0});
}

// A block that no tier has ends the prefix. The rest counts again as soon as it is back, also for a router
// that has only heard of the rest.
TEST_P(TierIndexTest, WhatLiesBehindAHoleCountsWhenTheHoleIsFilled) {
  for (std::size_t hole = 0; hole < 5; ++hole) {
    SCOPED_TRACE(hole);
    run();
    kv_->reset(kG1).value();
    const auto before = static_cast<std::uint32_t>(hole);
    TierRouter always(path_->listen());
    EXPECT_EQ(ask(always), (BlocksPerTier{0, 5, 0, 0}));
    ASSERT_TRUE(kv_->reset_blocks(std::vector{names_[hole]}));
    TierRouter late(path_->listen());
    EXPECT_EQ(ask(always), (BlocksPerTier{0, before}));
    EXPECT_EQ(ask(late), (BlocksPerTier{0, before}));
    // One block comes back, to the tier that computes it; the rest is still where it was.
    fill(hole);
    BlocksPerTier expected{0, 4};
    expected[0] = 1;
    EXPECT_EQ(ask(always), expected);
    EXPECT_EQ(ask(late), expected);
    TierRouter later(path_->listen());
    EXPECT_EQ(ask(later), expected);
    for (const events::TierId tier : {kG1, kG2, kG3, kG4}) kv_->reset(tier).value();
    EXPECT_EQ(ask(late), BlocksPerTier{});
  }
}

// Each tier has other blocks, none of them a whole chain.
TEST_P(TierIndexTest, AChainOverSeveralTiersIsCountedWhole) {
  run();
  TierRouter always(path_->listen());
  EXPECT_EQ(ask(always), (BlocksPerTier{5}));
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  // 1 and 3 go up: to G2 alone.
  for (const std::size_t i : {1u, 3u}) ASSERT_TRUE(kv_->prefetch(std::vector{names_[i]}).value().wait());
  expect_blocks(always, {0, 2, 3, 0});
  kv_->reset(kG3).value();
  expect_blocks(always, {0, 2, 0, 3});
}

// What every event of every tier says.
TEST_P(TierIndexTest, EventsSayWhereABlockBelongs) {
  class Listener final : public feed::StreamListener {
   public:
    void on_reset(const events::StreamId&) override {}
    void on_events(const events::EventBatch& batch) override {
      heard.insert(heard.end(), batch.events.begin(), batch.events.end());
    }
    std::vector<events::KvEvent> heard;
  } listener;
  const auto source = path_->listen();
  feed::StreamReceiver receiver(*source, listener);
  run();
  for (const events::TierId tier : {kG1, kG2, kG3, kG4}) kv_->reset(tier).value();
  run();
  ASSERT_TRUE(kv_->reset_blocks(names_));
  ASSERT_TRUE(events_->flush(Clock::real().now() + std::chrono::seconds(60)));
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(120);
  while (listener.heard.size() < events_->counters().events && std::chrono::steady_clock::now() < deadline)
    EXPECT_TRUE(receiver.poll(std::chrono::milliseconds(10)));
  ASSERT_EQ(listener.heard.size(), events_->counters().events);
  const std::vector<tokens::LocalHash> local = locals();
  std::array<std::array<int, 2>, 4> seen{};
  for (const events::KvEvent& event : listener.heard) {
    const auto at = static_cast<std::size_t>(std::ranges::find(names_, event.hash) - names_.begin());
    ASSERT_LT(at, names_.size());
    ++seen[event.tier.value()][event.kind == events::KvEventKind::kStored ? 0 : 1];
    EXPECT_EQ(event.parent(), at == 0 ? std::nullopt : std::optional(names_[at - 1]));
    EXPECT_EQ(event.prefix_group(), names_[0]);
    EXPECT_EQ(event.local(), local[at]);
    EXPECT_EQ(event.metadata, 77u);
    EXPECT_GT(event.bytes, 0u);
    EXPECT_EQ(event.location != 0, event.tier == kG3 || event.tier == kG4);
  }
  for (const auto& [stored, removed] : seen) {
    EXPECT_EQ(stored, 10);
    EXPECT_EQ(removed, 10);
  }
}

}  // namespace ashlar::tiers
