// From a look at a peer to a router's index: blocks of another node are known as remote until it loses them,
// also to a router that starts late.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/tokens/token_sequence.h"
#include "tiers/remote/remote_fixture.h"
#include "tiers/tier_router.h"

namespace ashlar::tiers {
namespace {

using remote::eventually;
using remote::kRemote;

class RemoteIndexTest : public ::testing::Test {
 protected:
  RemoteIndexTest() {
    for (std::uint32_t i = 0; i < 21; ++i) prompt_.emplace_back(100 + i);
    KvOptions options = remote::node({remote::address(owner_)});
    options.event_capacity = 1024;
    reader_ = std::make_unique<FleetRank>(remote::kModel, options, remote::undivided());
    EXPECT_TRUE(events_->add_sink(bus_.sink()));
    bus_.serve_snapshots(events_.get());
    EXPECT_TRUE(reader_->kv().attach_events(*events_));
  }
  ~RemoteIndexTest() override {
    reader_->kv().detach_events();
    bus_.serve_snapshots(nullptr);
  }

  // The owner computes the five blocks of the prompt, and keeps them in G2.
  void compute_at_the_owner() {
    auto request = block::RequestSequence<events::G1>::create(owner_.kv().g1(), prompt_).value();
    ASSERT_TRUE(request.schedule_prefill(prompt_.size()));
    names_.assign(request.sequence_hashes().begin(), request.sequence_hashes().end());
    for (std::size_t i = 0; i < names_.size(); ++i) owner_.compute(request.block_table()[i], names_[i]);
    ASSERT_TRUE(request.apply_prefill(tokens::Token(1)));
    request.release();
    ASSERT_TRUE(owner_.kv().drain());
    ASSERT_TRUE(owner_.kv().reset(events::kTierId<events::G1>));
  }
  std::size_t known_of(std::size_t first) {
    std::size_t count = 0;
    for (const TierPresence& one : reader_->kv().presence(std::span(names_).subspan(first)))
      count += one.in(kRemote) ? 1 : 0;
    return count;
  }
  BlocksPerTier ask(TierRouter& router) {
    const auto text = tokens::TokenSequence::create(prompt_, 4).value();
    std::vector<tokens::LocalHash> locals;
    for (const tokens::TokenBlock& block : text.blocks()) locals.push_back(block.local_hash());
    EXPECT_TRUE(events_->flush(Clock::real().now() + std::chrono::seconds(60)));
    return router.ask(locals, {kTierWorker, 1}, events_->counters().events);
  }
  // A router that listened all the time and one that starts now agree.
  void expect_remote(TierRouter& router, std::uint32_t blocks) {
    const BlocksPerTier expected{0, 0, 0, 0, blocks};
    EXPECT_EQ(ask(router), expected);
    TierRouter late(bus_.subscribe());
    EXPECT_EQ(ask(late), expected) << "who starts late";
  }

  FleetRank owner_ = remote::rank_of(remote::kModel, remote::undivided());
  std::vector<tokens::Token> prompt_;
  std::vector<tokens::SequenceHash> names_;
  std::unique_ptr<FleetRank> reader_;
  std::unique_ptr<events::EventManager> events_ =
      events::EventManager::create({.stream = {kTierWorker, 1}}).value();
  feed::EventBus bus_;
};

TEST_F(RemoteIndexTest, BlocksOfAPeerAreKnownAsRemoteUntilTheyAreWithdrawn) {
  TierRouter router(bus_.subscribe());
  ASSERT_NO_FATAL_FAILURE(compute_at_the_owner());
  const std::vector<TierRun> runs = reader_->kv().find(names_);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].tier, kRemote);
  EXPECT_EQ(runs[0].count, 5u);
  expect_remote(router, 5);
  // One block less ends the prefix; the others are still known.
  ASSERT_TRUE(owner_.kv().reset_blocks(std::span(names_).subspan(3, 1)));
  eventually([&] { return known_of(3) == 1; });
  expect_remote(router, 3);
  ASSERT_TRUE(owner_.kv().reset(remote::kHost));
  eventually([&] { return known_of(0) == 0; });
  expect_remote(router, 0);
}

}  // namespace
}  // namespace ashlar::tiers
