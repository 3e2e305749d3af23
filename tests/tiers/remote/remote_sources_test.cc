// Which source a block is read from: a peer or a volume of this node, the peer that an index or a request
// names, the peer that does least; and what becomes of blocks that their source no longer gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/feed/feed_source.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/tokens/token_sequence.h"
#include "tiers/remote/remote_fixture.h"
#include "tiers/remote/remote_messages.h"
#include "tiers/remote/timed_scenario.h"

namespace ashlar::tiers::remote {
namespace {

using tokens::SequenceHash;

// ---- a peer, or a volume of this node

TEST_F(RemoteOrVolumeTest, APeerThatIsMeasuredFasterThanTheVolumeIsAskedAndReadFrom) {
  reader({address(owner_)});
  measure(milliseconds(1000), milliseconds(1));
  const Hashes hashes = both(60);
  EXPECT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, kBlocks}}));
  EXPECT_EQ(from_peer(hashes), kBlocks);
  // What it does not have comes from the volume.
  const Hashes part = both(61);
  ASSERT_TRUE(owner_.kv().reset_blocks(std::span(part).last(2)));
  EXPECT_EQ(reader_->kv().find(part), (std::vector<TierRun>{{kRemote, 0, 2}, {kVolumes, 2, 2}}));
  EXPECT_EQ(from_peer(part), 2u);
}

TEST_F(RemoteOrVolumeTest, AVolumeThatIsMeasuredFasterIsReadAndNobodyIsAsked) {
  reader({address(owner_)});
  measure(milliseconds(1), milliseconds(1000));
  const Hashes hashes = both(62);
  EXPECT_EQ(from_peer(hashes), 0u);
  EXPECT_FALSE(was_asked_for(hashes));
  forget();
  EXPECT_EQ(from_peer(hashes, {address(owner_)}), 0u) << "also not one that is named";
  EXPECT_FALSE(was_asked_for(hashes));
  forget();
  EXPECT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kVolumes, 0, kBlocks}}));
}

TEST_F(RemoteOrVolumeTest, ASourceThatIsNamedIsAskedForBlocksOfTheVolume) {
  reader({});
  const Hashes hashes = both(63);
  EXPECT_EQ(from_peer(hashes), 0u);
  EXPECT_FALSE(was_asked_for(hashes));
  forget();
  EXPECT_EQ(from_peer(hashes, {address(owner_)}), kBlocks);
  const Hashes others = both(64);
  std::string names;
  for (const SequenceHash& hash : others) names += (names.empty() ? "" : ",") + std::to_string(hash.chain());
  const std::uint64_t before = reader_->kv().status().remote->onboarded;
  const auto outcomes = reader_->kv().remote()->execute_hints(
      R"({"protocol_version":"1.0","actions":[{"action_id":"a","action_type":"kv.fetch",)"
      R"("action_version":"1.0","payload":{"source_control_endpoint":")" +
      address(owner_) + R"(","block_hashes":[)" + names + "]}}]}");
  ASSERT_TRUE(outcomes) << outcomes.error();
  EXPECT_EQ((*outcomes)[0].kind, HintOutcome::Kind::kDone) << (*outcomes)[0].reason;
  EXPECT_EQ(reader_->kv().status().remote->onboarded - before, kBlocks);
}

// Nobody waits for it longer than `patience`: the blocks are here.
TEST_F(RemoteOrVolumeTest, ASourceThatDoesNotAnswerCostsLittle) {
  SilentPlace silent;
  silent.listen();
  KvOptions options = node();
  options.clock = &clock_;
  options.remote->call_limit = hours(1);
  options.remote->patience = milliseconds(1);
  reader({});
  const Hashes hashes = both(65);
  options.g4 = reader_->options().g4;
  reader_.reset();
  reader_ = std::make_unique<FleetRank>(kModel, options, undivided());
  EXPECT_EQ(reader_->kv().find(hashes), (std::vector<TierRun>{{kVolumes, 0, kBlocks}}));
  EXPECT_EQ(from_peer(hashes, {silent.address()}), 0u);
}

// A request to a peer has 65,536 blocks at most: the others are in the next.
TEST_F(RemoteOrVolumeTest, PeersAreAskedForLongStretchesOfTheVolumeInPieces) {
  struct Recorder final : RemoteDirectory {
    std::vector<std::string> find(const RemoteQuery& query) override {
      asked.emplace_back(query.first, query.hashes.size());
      return {};
    }
    std::vector<std::pair<std::size_t, std::size_t>> asked;
  };
  const auto directory = std::make_shared<Recorder>();
  const std::size_t many = FindRequest::kMaxHashes + 10;
  reader({address(owner_)}, [&](KvOptions& options) {
    options.remote->directory = directory;
    options.g4->block_count = static_cast<std::uint32_t>(many) + 100;
  });
  measure(milliseconds(1000), milliseconds(1));
  script_->claims_all = true;
  const Hashes hashes = KvWorkload::sequence(66, many);
  const std::vector<TierRun> all = {{kVolumes, 0, many}};
  EXPECT_EQ(reader_->kv().find(hashes), all);  // and the volume is asked
  directory->asked.clear();
  EXPECT_EQ(reader_->kv().find(hashes), all);
  EXPECT_THAT(directory->asked, ::testing::ElementsAre(std::pair(0u, many - 10), std::pair(many - 10, many)));
}

// Between being seen in a tier and being asked for at peers.
TEST_F(RemoteOrVolumeTest, ABlockThatIsEvictedMeanwhileIsLookedForAtPeers) {
  reader({address(owner_)});
  const Hashes hashes = both(67);
  const Hashes nowhere = KvWorkload::sequence(68, 1);
  reader_->store(nowhere);
  for (const bool at_peer : {true, false}) {
    const Hashes& some = at_peer ? hashes : nowhere;
    testing::Interleaving order;
    const testing::Interleaving::Pause seen = order.pause_at("onboarder.seen");
    OnboardHandle call = reader_->kv().onboard_async(some).value();
    order.wait_until_paused(seen);
    ASSERT_TRUE(reader_->kv().reset_blocks(std::span(some).first(1)));
    order.resume(seen);
    EXPECT_EQ(call.wait().value().size(), at_peer ? kBlocks : 0u);
    EXPECT_EQ(call.blocks()[0].miss, at_peer ? Miss::kNone : Miss::kUnknown);
    if (at_peer) {
      EXPECT_EQ(call.blocks()[0].tier, kRemote);
    }
  }
}

// ---- an index of the fleet

// Finds nodes by what their events say: the address of a worker is the caller's to know.
class IndexDirectory final : public RemoteDirectory {
 public:
  IndexDirectory() : source_(bus_.subscribe()), receiver_(*source_, listener_) {}

  std::shared_ptr<events::BatchSink> sink() { return bus_.sink(); }
  void name(events::WorkerId worker, std::string address) { addresses_[worker] = std::move(address); }
  void listen() { ASSERT_TRUE(receiver_.poll(milliseconds(1))); }
  std::vector<std::string> find(const RemoteQuery& query) override {
    ++asked;
    index::MatchScores scores;
    index_.find_matches(query.locals, scores);
    std::vector<std::pair<std::uint32_t, std::string>> found;
    scores.for_each([&](const events::Worker& worker, const index::Score& score) {
      if (score.depth > query.first) found.emplace_back(score.depth, addresses_.at(worker.id));
    });
    std::ranges::sort(found, std::greater<>());
    std::vector<std::string> out;
    for (auto& [depth, address] : found) out.push_back(std::move(address));
    return out;
  }
  std::uint32_t depth(const std::vector<tokens::LocalHash>& locals) {
    index::MatchScores scores;
    index_.find_matches(locals, scores);
    std::uint32_t most = 0;
    scores.for_each(
        [&](const events::Worker&, const index::Score& score) { most = std::max(most, score.depth); });
    return most;
  }

  std::atomic<int> asked{0};

 private:
  feed::EventBus bus_;
  index::FlashIndex index_;
  index::SinkOf<index::FlashIndex> sink_{index_};
  feed::IndexListener listener_{sink_};
  std::unique_ptr<feed::FeedSource> source_;
  feed::StreamReceiver receiver_;
  std::map<events::WorkerId, std::string> addresses_;
};

std::vector<tokens::Token> prompt(std::uint32_t first) {
  std::vector<tokens::Token> out;
  for (std::uint32_t i = 0; i < 17; ++i) out.emplace_back(first + i);
  return out;
}

TEST(RemoteSourcesTest, AnIndexOfTheFleetIsADirectory) {
  using Request = block::RequestSequence<events::G1>;
  struct Worker {
    std::unique_ptr<FleetRank> rank;
    std::unique_ptr<events::EventManager> events;
  };
  const auto directory = std::make_shared<IndexDirectory>();
  std::vector<Worker> workers;
  std::vector<std::string> where;
  for (std::uint32_t i = 0; i < 2; ++i) {
    const events::WorkerId id(i + 1);
    KvOptions options = node();
    options.event_capacity = 1024;
    Worker& worker = workers.emplace_back();
    worker.rank = std::make_unique<FleetRank>(kModel, options, undivided());
    worker.events = events::EventManager::create({.stream = {events::Worker{id, 0}, 1}}).value();
    ASSERT_TRUE(worker.events->add_sink(directory->sink()));
    ASSERT_TRUE(worker.rank->kv().attach_events(*worker.events));
    where.push_back(address(*worker.rank));
    directory->name(id, where.back());
    // Each has a prompt of its own.
    FleetRank& rank = *worker.rank;
    Request one = Request::create(rank.kv().g1(), prompt(1000 * (i + 1))).value();
    ASSERT_TRUE(one.schedule_prefill(17));
    const Hashes names(one.sequence_hashes().begin(), one.sequence_hashes().end());
    for (std::size_t k = 0; k < names.size(); ++k) rank.compute(one.block_table()[k], names[k]);
    ASSERT_TRUE(one.apply_prefill(tokens::Token(1)));
    one.release();
    EXPECT_TRUE(rank.kv().drain());
    EXPECT_TRUE(rank.kv().reset(kDevice));
    const auto text = tokens::TokenSequence::create(prompt(1000 * (i + 1)), 4).value();
    std::vector<tokens::LocalHash> locals;
    for (const tokens::TokenBlock& block : text.blocks()) locals.push_back(block.local_hash());
    eventually([&] { return directory->listen(), directory->depth(locals) == 4; });
  }
  KvOptions options = node();
  options.remote->directory = directory;
  options.remote->ask_peers = false;
  FleetRank reader(kModel, options, undivided());
  const auto matched = [&](std::uint32_t first) {
    Request one = Request::create(reader.kv().g1(), prompt(first)).value();
    const std::size_t tokens = one.match_prefix().value();
    for (std::size_t k = 0; k < tokens / 4; ++k)
      EXPECT_TRUE(reader.has_bytes(one.block_table()[k], one.sequence_hashes()[k]));
    return tokens;
  };
  EXPECT_EQ(matched(2000), 16u);
  EXPECT_EQ(directory->asked, 1);
  const auto peers = reader.kv().remote()->status().peers;
  ASSERT_EQ(peers.size(), 1u) << "nobody else was asked";
  EXPECT_EQ(peers[0].address, where[1]);
  EXPECT_EQ(matched(1000), 16u);
  EXPECT_EQ(matched(3000), 0u);
  for (Worker& worker : workers) worker.rank->kv().detach_events();
}

// ---- the peer that does least

TEST(RemoteSourcesTest, OfEqualSourcesTheOneWithLessOnLoanIsRead) {
  FleetRank one = rank_of(kModel, undivided());
  FleetRank two = rank_of(kModel, undivided());
  FleetRank other = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(70, 8);
  const Hashes large = KvWorkload::sequence(71, 40);
  for (FleetRank* const owner : {&one, &two}) {
    store(*owner, hashes);
    store(*owner, large);
    ASSERT_TRUE(reader.kv().remote()->connect(address(*owner)));  // in this order: the first is preferred
    ASSERT_TRUE(other.kv().remote()->connect(address(*owner)));
  }
  const auto got = [&](FleetRank& owner) {
    for (const RemotePeerStatus& peer : reader.kv().remote()->status().peers)
      if (peer.address == address(owner)) return peer.got;
    return std::uint64_t{0};
  };
  const auto leases = [&] { return one.kv().remote()->status().leases + two.kv().remote()->status().leases; };
  for (FleetRank* const busy : {&one, &two}) {
    FleetRank& idle = busy == &one ? two : one;
    eventually([&] { return leases() == 0; });
    const auto views = other.kv().remote()->get_remote_blocks(busy->kv().remote()->agent().identity(), large);
    ASSERT_TRUE(views) << views.error();
    const std::uint64_t before = got(*busy);
    const std::uint64_t idle_before = got(idle);
    EXPECT_EQ(reader.onboard(hashes), 8u);
    EXPECT_EQ(got(*busy), before);
    EXPECT_EQ(got(idle), idle_before + 8);
    for (const events::TierId tier : {kDevice, kHost, kRemote}) ASSERT_TRUE(reader.kv().reset(tier));
  }
}

// ---- what its source no longer gives

TEST(RemoteSourcesTest, ABlockThatLeftBetweenLookUpAndReadIsGone) {
  FleetRank owner = rank_of(kModel, undivided());
  HeldNode reader(node({address(owner)}));
  const Hashes hashes = KvWorkload::sequence(72, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.rank->kv().find(hashes).size(), 1u);
  reader.hold(owner);
  ASSERT_TRUE(owner.kv().reset_blocks(std::span(hashes).last(2)));
  const OnboardHandle call = reader.rank->kv().onboard_async(hashes).value();
  EXPECT_EQ(call.wait().value().size(), 1u);
  EXPECT_EQ(misses_of(call), (std::vector<Miss>{Miss::kNone, Miss::kGone, Miss::kBehind}));
  reader.go_on();
}

// One owner hangs, another refuses: each block says what became of it.
TEST(RemoteSourcesTest, EachBlockOfARequestHasItsOwnReason) {
  KvOptions options = node();
  const std::uint64_t block = FleetRank(kModel, options, undivided()).options().model.block_bytes();
  options.remote->limits.leased_bytes_per_peer = block;
  FleetRank limited(kModel, options, undivided());
  HeldNode hung(node());
  FleetRank reader = rank_of(kModel, undivided(), {address(limited), address(*hung.rank)});
  const Hashes hashes = KvWorkload::sequence(73, 4);
  store(limited, {hashes.begin(), hashes.begin() + 2});
  store(*hung.rank, {hashes.begin() + 2, hashes.end()});
  EXPECT_EQ(reader.kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, 4}}));
  hung.hold(limited);
  std::vector<Miss> misses;
  // A busy machine may begin too late.
  for (milliseconds limit(400); limit < std::chrono::minutes(3); limit *= 2) {
    const OnboardHandle call =
        reader.kv().prefetch(hashes, {.deadline = Clock::real().now() + limit}).value();
    EXPECT_TRUE(call.wait());
    misses = misses_of(call);
    if (misses[0] == Miss::kNone) break;
  }
  EXPECT_EQ(misses, (std::vector<Miss>{Miss::kNone, Miss::kRefused, Miss::kLate, Miss::kLate}));
  hung.go_on();
}

// It is dead, also for a caller whose time is over by then.
TEST(RemoteSourcesTest, APeerThatDiesDuringAReadIsUnreachable) {
  HeldNode owner(node());
  ManualClock clock;
  KvOptions options = node({address(*owner.rank)});
  options.clock = &clock;
  options.remote->call_limit = hours(24);
  FleetRank reader(kModel, options, undivided());
  FleetRank other = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(74, 2);
  store(*owner.rank, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  owner.hold(other);
  const OnboardHandle call = reader.kv().onboard_async(hashes, {.deadline = clock.now() + hours(1)}).value();
  eventually([&] { return reader.kv().status().remote->hits == 2; });  // it was looked up, and is read now
  clock.advance(hours(2));
  reader.kv().remote()->agent().peers().at(0)->close(Error(ErrorCode::kUnavailable, "a test"));
  EXPECT_EQ(call.wait().value().size(), 0u);
  // The latter where it was not asked yet.
  EXPECT_THAT(misses_of(call)[0], ::testing::AnyOf(Miss::kUnreachable, Miss::kLate, Miss::kGone));
  owner.go_on();
}

TEST(RemoteSourcesTest, ResetsOfTheOwnerEndLeases) {
  ManualClock clock;  // it does not move: nothing expires
  KvOptions options = node();
  options.clock = &clock;
  FleetRank owner(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(75, 4);
  const transfer::AgentIdentity id = owner.kv().remote()->agent().identity();
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  const auto leases = [&] { return owner.kv().remote()->status().leases; };
  const auto lease = [&](std::size_t first, std::size_t count) {
    return reader.kv().remote()->get_remote_blocks(id, std::span(hashes).subspan(first, count)).value();
  };
  store(owner, hashes);
  {
    const RemoteBlocks front = lease(0, 2);
    const RemoteBlocks back = lease(2, 2);
    EXPECT_EQ(leases(), 2u);
    ASSERT_TRUE(owner.kv().reset_blocks(std::span(hashes).last(1)));
    EXPECT_EQ(leases(), 1u) << "of blocks that stay";
    EXPECT_FALSE(owner.kv().presence(hashes)[3].in(kHost));
    EXPECT_TRUE(owner.kv().presence(hashes)[2].in(kHost)) << "its lease ended with the other";
    ASSERT_TRUE(owner.kv().reset(kHost));
    EXPECT_EQ(leases(), 0u);
    EXPECT_FALSE(owner.kv().presence(hashes)[0].in(kHost)) << "no lease keeps it";
  }
  EXPECT_EQ(owner.kv().remote()->status().expired, 0u);
  owner.expect_counts_exact();
}

TEST(RemoteSourcesTest, AResetOfTheTierForgetsWhatIsKnownAndRemovesNothing) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes hashes = KvWorkload::sequence(76, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  EXPECT_EQ(reader.kv().reset(kRemote).value(), 3u);
  EXPECT_FALSE(reader.kv().presence(hashes)[0].anywhere());
  EXPECT_EQ(reader.kv().remote()->status().peers.at(0).known, 0u);
  EXPECT_TRUE(owner.kv().presence(hashes)[0].in(kHost));
  EXPECT_EQ(reader.onboard(hashes), 3u);
  reader.expect_counts_exact();
}

// ---- pushes between shapes

TEST(RemoteSourcesTest, ARankPushesToEveryRankWhosePartItHolds) {
  const ShardedModel model = {.heads = 8, .head_scales = true, .moved_axes = true};
  for (const std::uint32_t from : {2u, 4u}) {
    SCOPED_TRACE(from);
    const Hashes hashes = KvWorkload::sequence(80 + from, 3);
    std::vector<std::unique_ptr<FleetRank>> writers;
    for (const layout::Shard& shard : model.fleet(from)) {
      writers.push_back(std::make_unique<FleetRank>(model, node({}, 8), shard));
      store(*writers.back(), hashes);
    }
    std::uint32_t rank = 0;
    for (const layout::Shard& shard : model.fleet(8)) {
      FleetRank target(model, node({}, 8), shard);
      for (std::uint32_t w = 0; w < from; ++w) {
        const auto peer = writers[w]->kv().remote()->connect(address(target));
        if (w != rank * from / 8) {
          EXPECT_FALSE(peer) << "no head in common";
          continue;
        }
        ASSERT_TRUE(peer) << peer.error();
        const auto done = writers[w]->kv().remote()->push((*peer)->identity(), hashes);
        ASSERT_TRUE(done) << done.error();
        for (const Result<Pushed>& one : *done) EXPECT_TRUE(one) << one.error();
      }
      EXPECT_EQ(target.onboard(hashes), 3u) << shard.to_string();
      EXPECT_EQ(target.kv().remote()->status().pushed, 3u);
      ++rank;
    }
  }
}

}  // namespace
}  // namespace ashlar::tiers::remote
