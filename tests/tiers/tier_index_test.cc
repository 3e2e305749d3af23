// From requests over four tiers to a router's index: each block is known in the tiers that have it, also to a
// router that starts late.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/token_sequence.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using tokens::SequenceHash;
using tokens::Token;
using Request = block::RequestSequence<G1>;
using Blocks = std::array<std::uint32_t, events::kStorageTiers>;

const events::Worker kSelf{events::WorkerId(4), 0};
constexpr std::size_t kTokens = 21;  // five blocks and one token

// A router: it begins to listen when it is made.
class Router {
 public:
  Router(feed::EventBus& bus, events::EventManager& events)
      : events_(events), source_(bus.subscribe()), receiver_(*source_, listener_) {}

  // Where the blocks of a request are, each counted in its fastest tier.
  Blocks ask(const std::vector<tokens::LocalHash>& request) {
    EXPECT_TRUE(events_.flush(Clock::real().now() + std::chrono::seconds(30)));
    while (receiver_.poll({}).value() != 0) continue;
    index_.find_matches(request, scores_);
    Blocks blocks{};
    scores_.for_each([&](const events::Worker& worker, const index::Score& score) {
      EXPECT_EQ(worker, kSelf);
      blocks = score.blocks;
    });
    return blocks;
  }

 private:
  events::EventManager& events_;
  index::FlashIndex index_;
  index::SinkOf<index::FlashIndex> sink_{index_};
  feed::IndexListener listener_{sink_};
  std::unique_ptr<feed::FeedSource> source_;
  feed::StreamReceiver receiver_;
  index::MatchScores scores_;
};

class TierIndexTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint32_t i = 0; i < kTokens; ++i) prompt_.emplace_back(100 + i);
    open();
  }
  void TearDown() override { close(); }

  // Each life of a worker is an incarnation of its stream.
  void open() {
    KvOptions options = KvWorkload::options_in(folder_.path());
    options.event_capacity = 1024;
    kv_ = KvBlockManager::create(std::move(options)).value();
    events_ = events::EventManager::create({.stream = {kSelf, ++incarnation_}}).value();
    ASSERT_TRUE(events_->add_sink(bus_.sink()));
    bus_.serve_snapshots(events_.get());
    ASSERT_TRUE(kv_->attach_events(*events_));
  }
  void close() {
    bus_.serve_snapshots(nullptr);
    if (kv_ != nullptr) kv_->detach_events();
    events_.reset();
    kv_.reset();
  }
  // Computes what no tier has. Returns the cached tokens.
  std::size_t run() {
    KvWorkload work(*kv_);
    Request request = Request::create(kv_->g1(), prompt_).value();
    const std::size_t cached = request.match_prefix().value();
    EXPECT_TRUE(request.schedule_prefill(request.tokens_to_compute()));
    names_.assign(request.sequence_hashes().begin(), request.sequence_hashes().end());
    for (std::size_t i = cached / 4; i < names_.size(); ++i)
      work.compute(request.block_table()[i], names_[i]);
    EXPECT_TRUE(request.apply_prefill(Token(1)));
    request.release();
    kv_->drain();
    return cached;
  }
  std::vector<tokens::LocalHash> locals() const {
    const auto text = tokens::TokenSequence::create(prompt_, 4).value();
    std::vector<tokens::LocalHash> out;
    for (const tokens::TokenBlock& block : text.blocks()) out.push_back(block.local_hash());
    return out;
  }
  // A router that listened all the time and one that starts now agree.
  void expect_blocks(Router& router, const Blocks& expected) {
    EXPECT_EQ(router.ask(locals()), expected);
    Router late(bus_, *events_);
    EXPECT_EQ(late.ask(locals()), expected) << "who starts late";
  }

  ScratchFolder folder_;
  std::vector<Token> prompt_;
  std::vector<SequenceHash> names_;
  feed::EventBus bus_;
  std::uint64_t incarnation_ = 0;
  std::unique_ptr<KvBlockManager> kv_;
  std::unique_ptr<events::EventManager> events_;
};

TEST_F(TierIndexTest, EachTierIsKnown) {
  Router router(bus_, *events_);
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

TEST_F(TierIndexTest, RemovedAndEvictedBlocksAreForgotten) {
  Router router(bus_, *events_);
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

TEST_F(TierIndexTest, AWarmRestartIsHeard) {
  std::optional<Router> router;
  router.emplace(bus_, *events_);
  run();
  router.reset();
  close();
  open();
  router.emplace(bus_, *events_);
  expect_blocks(*router, {0, 0, 5, 0});
  EXPECT_EQ(run(), 20u);
  expect_blocks(*router, {5, 0, 0, 0});
  router.reset();
}

}  // namespace
}  // namespace ashlar::tiers
