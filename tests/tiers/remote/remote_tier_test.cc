// Nodes that read and push each other's blocks, each with its agent, in one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "tiers/remote/remote_fixture.h"

namespace ashlar::tiers {
namespace {

using events::kTierId;
using remote::address;
using remote::eventually;
using remote::Hashes;
using remote::kHost;
using remote::kModel;
using remote::kRemote;
using remote::node;
using remote::rank_of;
using remote::store;
using remote::undivided;
using ::testing::HasSubstr;
using tokens::SequenceHash;

TEST(RemoteTierTest, ABlockOfAPeerIsFoundAndOnboarded) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes hashes = KvWorkload::sequence(1, 10);
  store(owner, hashes);

  const std::vector<TierRun> runs = reader.kv().find(hashes);
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].tier, kRemote);
  EXPECT_EQ(runs[0].count, 10u);
  EXPECT_TRUE(reader.kv().presence(hashes)[9].in(kRemote));
  EXPECT_EQ(reader.onboard(hashes), 10u);
  EXPECT_TRUE(reader.kv().presence(hashes)[9].in(kHost));
  const KvStatus status = reader.kv().status();
  EXPECT_EQ(status.remote->hits, 10u);
  EXPECT_EQ(status.remote->onboarded, 10u);
  const RemoteStatus remote = reader.kv().remote()->status();
  ASSERT_EQ(remote.peers.size(), 1u);
  EXPECT_EQ(remote.peers[0].got, 10u);
  EXPECT_EQ(remote.peers[0].known, 10u);
  eventually([&] { return owner.kv().remote()->status().leases == 0; });  // given back
  EXPECT_GT(owner.kv().remote()->status().granted, 0u);
  owner.expect_counts_exact();
  reader.expect_counts_exact();
}

TEST(RemoteTierTest, WhatOnlyPartOfThePrefixHasIsAPrefix) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes hashes = KvWorkload::sequence(2, 8);
  store(owner, {hashes.begin(), hashes.begin() + 5});
  EXPECT_EQ(reader.onboard(hashes), 5u);
  EXPECT_EQ(reader.misses(Miss::kUnknown), 1u);
  EXPECT_EQ(reader.misses(Miss::kBehind), 2u);
}

// Any shape reads from any other, also where no rank's heads are a part of another's (two and three of six).
TEST(RemoteTierTest, RanksOfEveryShapeReadFromEachOther) {
  struct Fleet {
    ShardedModel model;
    std::vector<std::uint32_t> ranks;
  };
  const std::vector<std::uint32_t> powers = {1, 2, 4, 8};
  const std::vector<Fleet> fleets = {{{.heads = 4}, powers},
                                     {{.heads = 8, .head_scales = true, .moved_axes = true}, powers},
                                     {{.heads = 2, .token_scales = true}, powers},
                                     {{.heads = 6, .head_scales = true, .moved_axes = true}, {2, 3, 6}}};
  for (const auto& [model, ranks] : fleets)
    for (const std::uint32_t from : ranks)
      for (const std::uint32_t to : ranks) {
        SCOPED_TRACE(std::to_string(model.heads) + " heads, " + std::to_string(from) + " ranks to " +
                     std::to_string(to));
        std::vector<std::unique_ptr<FleetRank>> owners;
        std::vector<std::string> peers;
        const Hashes hashes = KvWorkload::sequence(3, 3);
        for (const layout::Shard& shard : model.fleet(from)) {
          owners.push_back(std::make_unique<FleetRank>(model, node({}, 8), shard));
          store(*owners.back(), hashes);
          peers.push_back(address(*owners.back()));
        }
        for (const layout::Shard& shard : model.fleet(to)) {
          FleetRank reader(model, node(peers, 8), shard);
          EXPECT_EQ(reader.onboard(hashes), 3u) << shard.to_string();
        }
      }
}

// Ranks that hold a part of the layers, and a part of the heads of those.
TEST(RemoteTierTest, LayersAreGatheredAsHeadsAre) {
  struct Division {
    std::uint32_t stages;
    std::uint32_t ranks;
  };
  const std::vector<ShardedModel> models = {{.layers = 4, .head_scales = true, .moved_axes = true},
                                            {.layers = 4, .token_scales = true}};
  for (const ShardedModel& model : models) {
    const auto fleet = [&](const Division& division) {
      std::vector<layout::Shard> shards;
      const std::uint32_t layers = model.layers / division.stages;
      for (std::uint32_t stage = 0; stage < division.stages; ++stage) {
        const std::vector<layout::Shard> ranks =
            layout::Shard::tensor_ranks(division.ranks, model.heads, {stage * layers, layers}).value();
        shards.insert(shards.end(), ranks.begin(), ranks.end());
      }
      return shards;
    };
    for (const Division from : {Division{2, 2}, {4, 1}, {1, 1}})
      for (const Division to : {Division{1, 1}, {2, 1}, {1, 4}, {4, 2}}) {
        SCOPED_TRACE(std::to_string(from.stages) + " stages of " + std::to_string(from.ranks) + " ranks to " +
                     std::to_string(to.stages) + " of " + std::to_string(to.ranks));
        std::vector<std::unique_ptr<FleetRank>> owners;
        std::vector<std::string> peers;
        const Hashes hashes = KvWorkload::sequence(30, 3);
        for (const layout::Shard& shard : fleet(from)) {
          owners.push_back(std::make_unique<FleetRank>(model, node({}, 8), shard));
          store(*owners.back(), hashes);
          peers.push_back(address(*owners.back()));
        }
        for (const layout::Shard& shard : fleet(to)) {
          FleetRank reader(model, node(peers, 8), shard);
          EXPECT_EQ(reader.onboard(hashes), 3u) << shard.to_string();
        }
      }
  }
}

TEST(RemoteTierTest, OneRankOfAFleetThatIsMissingIsAMiss) {
  const std::vector<layout::Shard> four = kModel.fleet(4);
  FleetRank first = rank_of(kModel, four[0]);
  const Hashes hashes = KvWorkload::sequence(4, 3);
  store(first, hashes);
  FleetRank reader = rank_of(kModel, undivided(), {address(first)});
  EXPECT_EQ(reader.onboard(hashes), 0u);
  EXPECT_EQ(reader.misses(Miss::kUnknown), 1u);
}

TEST(RemoteTierTest, AnEvictedOrRemovedBlockIsWithdrawn) {
  FleetRank owner(kModel, node({}, 8), undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes first = KvWorkload::sequence(5, 4);
  store(owner, first);
  EXPECT_EQ(reader.kv().find(first).size(), 1u);
  ASSERT_TRUE(owner.kv().reset_blocks(std::span(first).first(1)));
  eventually([&] { return !reader.kv().presence(first)[0].in(kRemote); });
  EXPECT_TRUE(reader.kv().presence(first)[1].in(kRemote));
  store(owner, KvWorkload::sequence(6, 8));  // evicts the others
  eventually([&] { return !reader.kv().presence(first)[3].in(kRemote); });
  EXPECT_TRUE(reader.kv().find(first).empty());
  store(owner, first);
  EXPECT_EQ(reader.onboard(first), 4u);
  ASSERT_TRUE(owner.kv().reset(kHost));
  eventually([&] { return reader.kv().remote()->status().peers[0].known == 0; });
}

TEST(RemoteTierTest, ADeadPeerTakesItsBlocksAlong) {
  auto owner = std::make_unique<FleetRank>(kModel, node(), undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(*owner)});
  const Hashes hashes = KvWorkload::sequence(7, 4);
  store(*owner, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  owner.reset();
  eventually([&] { return !reader.kv().presence(hashes)[0].anywhere(); });
  EXPECT_EQ(reader.onboard(hashes), 0u);
  reader.expect_counts_exact();
}

TEST(RemoteTierTest, SeveralPeersShareTheWork) {
  FleetRank one = rank_of(kModel, undivided());
  FleetRank two = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(8, 60);
  store(one, hashes);
  store(two, {hashes.begin(), hashes.end() - 1});  // within one block of the best
  FleetRank reader = rank_of(kModel, undivided(), {address(one), address(two)});
  EXPECT_EQ(reader.onboard(KvWorkload::sequence(9, 1)), 0u);  // meets both
  EXPECT_EQ(reader.onboard(hashes), 60u);
  for (const RemotePeerStatus& peer : reader.kv().remote()->status().peers)
    EXPECT_GT(peer.got, 0u) << peer.address;
}

TEST(RemoteTierTest, ABlockThatOnePeerLostComesFromAnother) {
  FleetRank one = rank_of(kModel, undivided());
  FleetRank two = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(9, 12);
  store(one, hashes);
  store(two, hashes);
  FleetRank reader = rank_of(kModel, undivided(), {address(one), address(two)});
  EXPECT_EQ(reader.onboard(KvWorkload::sequence(8, 1)), 0u);  // meets both
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  ASSERT_TRUE(one.kv().reset(kHost));
  EXPECT_EQ(reader.onboard(hashes), 12u);
}

TEST(RemoteTierTest, DamagedBytesAreAMissAndNeverServed) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(owner)});
  const Hashes hashes = KvWorkload::sequence(10, 3);
  store(owner, hashes);
  ASSERT_EQ(reader.onboard(hashes), 3u);  // the owner knows checksums now
  ASSERT_TRUE(reader.kv().reset(kTierId<events::G1>));
  ASSERT_TRUE(reader.kv().reset(kHost));
  const RemoteBlocks views =
      reader.kv().remote()->get_remote_blocks(owner.kv().remote()->agent().identity(), hashes).value();
  // A flipped bit in the owner's memory, after the checksum was made.
  const std::uint32_t slot = views.blocks()[1].slot;
  const transfer::Plane& plane = views.set().blocks()->planes()[0];
  auto* const byte = reinterpret_cast<std::byte*>(plane.regions[0].storage->address()) +  // the same process
                     plane.regions[0].offset + plane.layout.place({.block = slot}).offset;
  *byte ^= std::byte{4};
  EXPECT_EQ(reader.onboard(hashes), 1u);
  EXPECT_EQ(reader.misses(Miss::kDamaged), 1u);
}

TEST(RemoteTierTest, ALeaseKeepsBlocksFromEvictionAndEnds) {
  ManualClock clock;
  KvOptions options = node({}, 8);
  options.clock = &clock;
  FleetRank owner(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(11, 4);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  const transfer::AgentIdentity id = owner.kv().remote()->agent().identity();
  {
    const RemoteBlocks views = reader.kv().remote()->get_remote_blocks(id, hashes).value();
    EXPECT_TRUE(views.active());
    for (const RemoteBlock& block : views.blocks()) EXPECT_EQ(block.miss, Miss::kNone);
    EXPECT_EQ(owner.kv().remote()->status().leases, 1u);
    store(owner, KvWorkload::sequence(12, 4));
    for (int i = 0; i < 3; ++i) store(owner, KvWorkload::sequence(20 + i, 4));
    EXPECT_TRUE(owner.kv().presence(hashes)[3].in(kHost));  // the leased ones stay
  }
  eventually([&] { return owner.kv().remote()->status().leases == 0; });  // dropped
  store(owner, hashes);
  const RemoteBlocks again = reader.kv().remote()->get_remote_blocks(id, hashes).value();
  EXPECT_EQ(owner.kv().remote()->status().leases, 1u);
  clock.advance(std::chrono::seconds(31));
  eventually([&] { return owner.kv().remote()->status().leases == 0; });
  EXPECT_EQ(owner.kv().remote()->status().expired, 1u);
}

TEST(RemoteTierTest, ALeaseWhoseAnswerIsTooLongForAMessageIsGivenBackAtOnce) {
  KvOptions options = node();
  options.remote->own_agent->max_message_bytes = 4096;
  FleetRank owner(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(11, 40);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  const transfer::AgentIdentity id = owner.kv().remote()->agent().identity();
  const auto refused = reader.kv().remote()->get_remote_blocks(id, hashes);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("ask for fewer"));
  EXPECT_EQ(owner.kv().remote()->status().leases, 0u);
  const RemoteBlocks few = reader.kv().remote()->get_remote_blocks(id, std::span(hashes).first(8)).value();
  EXPECT_EQ(owner.kv().remote()->status().leases, 1u);
}

TEST(RemoteTierTest, LeasesAreRenewedWhileTheyAreUsed) {
  ManualClock clock;
  KvOptions options = node();
  options.clock = &clock;
  FleetRank owner(kModel, options, undivided());
  options = node();
  options.clock = &clock;
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(13, 2);
  store(owner, hashes);
  ASSERT_TRUE(reader.kv().remote()->connect(address(owner)));
  const RemoteBlocks views =
      reader.kv().remote()->get_remote_blocks(owner.kv().remote()->agent().identity(), hashes).value();
  for (int i = 0; i < 20; ++i) {
    const std::uint64_t before = owner.kv().remote()->status().renewed;
    // In steps: the keeper counts from when it last looked. No more than 10 s of the lease's 30: the call
    // may take its time.
    int steps = 0;
    eventually([&] {
      if (owner.kv().remote()->status().renewed == before && clock.waiters() >= 2 && steps < 20) {
        clock.advance(std::chrono::milliseconds(500));
        ++steps;
      }
      return owner.kv().remote()->status().renewed != before;
    });
    ASSERT_EQ(owner.kv().remote()->status().expired, 0u);
  }
  eventually([&] { return views.active(); });
}

TEST(RemoteTierTest, TheOwnerLimitsWhatPeersTake) {
  KvOptions options = node();
  options.remote->limits.leased_bytes_per_peer = 3 * options.model.block_bytes();
  FleetRank owner(kModel, options, undivided());
  const std::uint64_t block = owner.options().model.block_bytes();
  options = node();
  options.remote->limits.leased_bytes_per_peer = 3 * block;
  FleetRank limited(kModel, options, undivided());
  FleetRank reader = rank_of(kModel, undivided(), {address(limited)});
  const Hashes hashes = KvWorkload::sequence(14, 5);
  store(limited, hashes);
  EXPECT_EQ(reader.onboard(hashes), 3u);
  EXPECT_EQ(reader.misses(Miss::kRefused), 1u);
  EXPECT_GT(limited.kv().remote()->status().refused, 0u);
}

TEST(RemoteTierTest, BlocksArePushedAndRegisteredAfterTheirChecksum) {
  FleetRank prefill = rank_of(kModel, undivided());
  std::vector<std::string> heard;
  KvOptions options = node();
  std::atomic<std::size_t> pushed{0};
  options.remote->on_pushed = [&](const transfer::AgentIdentity&, std::span<const SequenceHash> some) {
    pushed += some.size();
  };
  FleetRank decode(kModel, options, undivided());
  const auto peer = prefill.kv().remote()->connect(address(decode)).value();
  const Hashes hashes = KvWorkload::sequence(15, 12);
  store(prefill, hashes);
  const std::vector<Result<Pushed>> done = prefill.kv().remote()->push(peer->identity(), hashes).value();
  for (const Result<Pushed>& one : done) EXPECT_TRUE(one) << one.error();
  EXPECT_EQ(pushed, 12u);
  EXPECT_EQ(decode.onboard(hashes), 12u);
  EXPECT_EQ(decode.kv().remote()->status().reserved_blocks, 0u);

  // Other bytes than were promised.
  const Hashes wrong = KvWorkload::sequence(16, 2);
  store(prefill, wrong);
  RemoteBlocksMutable target = prefill.kv().remote()->get_remote_blocks_mutable(peer->identity(), 2).value();
  EXPECT_EQ(decode.kv().remote()->status().reserved_blocks, 2u);
  const std::vector<Result<Pushed>> refused = std::move(target).commit(wrong).value();
  for (const Result<Pushed>& one : refused) EXPECT_EQ(one.error().code(), ErrorCode::kCorruption);
  EXPECT_FALSE(decode.kv().presence(wrong)[0].in(kHost));
  EXPECT_EQ(decode.kv().remote()->status().push_refused, 2u);

  // Dropped, and too many.
  {
    const auto dropped = prefill.kv().remote()->get_remote_blocks_mutable(peer->identity(), 16);
  }
  eventually([&] { return decode.kv().remote()->status().reserved_blocks == 0; });
  EXPECT_EQ(prefill.kv().remote()->get_remote_blocks_mutable(peer->identity(), 17).error().code(),
            ErrorCode::kCapacity);
  decode.expect_counts_exact();
}

TEST(RemoteTierTest, AReservationEndsWithItsPeer) {
  auto prefill = std::make_unique<FleetRank>(kModel, node(), undivided());
  FleetRank decode = rank_of(kModel, undivided());
  const auto peer = prefill->kv().remote()->connect(address(decode)).value();
  auto reserved = prefill->kv().remote()->get_remote_blocks_mutable(peer->identity(), 8).value();
  EXPECT_EQ(decode.kv().remote()->status().reserved_blocks, 8u);
  prefill->kv().remote()->agent().peers()[0]->close(Error(ErrorCode::kCancelled, "a test"));
  eventually([&] { return decode.kv().remote()->status().reserved_blocks == 0; });
}

// What a peer has in G2 is read; what is pushed goes to its landing.
TEST(RemoteTierTest, OnlyTheLandingOfAPeerIsWritten) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank writer = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(23, 2);
  store(owner, hashes);
  const auto peer = writer.kv().remote()->connect(address(owner)).value();
  const RemoteBlocks views = writer.kv().remote()->get_remote_blocks(peer->identity(), hashes).value();
  const auto fresh = writer.kv().get_mutable_blocks(1).value();
  const std::uint32_t mine = fresh[0].block_id().value();
  const std::uint32_t theirs = views.blocks()[0].slot;
  const auto refused = transfer::plan(writer.kv().g1_blocks(), std::span(&mine, 1), views.set().blocks(),
                                      std::span(&theirs, 1));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("its owner offers it for reading"));
  const RemoteBlocksMutable target =
      writer.kv().remote()->get_remote_blocks_mutable(peer->identity(), 1).value();
  EXPECT_TRUE(transfer::plan(writer.kv().g1_blocks(), std::span(&mine, 1), target.blocks(), target.ids()));
}

TEST(RemoteTierTest, OtherModelsAreRefusedWithASentence) {
  FleetRank owner = rank_of(kModel, undivided());
  KvOptions options = node();
  options.keys = tokens::NamespaceFingerprint::from_bits(1, 2);
  FleetRank other(kModel, options, undivided());
  const auto refused = other.kv().remote()->connect(address(owner));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("namespace fingerprint"));
  FleetRank shape(ShardedModel{.heads = 4, .layers = 2, .block_size = 8}, node(), undivided());
  const auto shaped = shape.kv().remote()->connect(address(owner));
  ASSERT_FALSE(shaped);
  EXPECT_THAT(shaped.error().message(), HasSubstr("do not fit"));
}

TEST(RemoteTierTest, ABlockSetTravelsAnyWay) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(17, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.onboard(hashes), 0u);
  const std::vector<std::byte> bytes = owner.kv().remote()->export_blockset().value();
  const auto peer = reader.kv().remote()->import_remote_blockset(bytes).value();
  EXPECT_EQ(reader.onboard(hashes), 3u);
  EXPECT_EQ(reader.kv().remote()->import_remote_blockset(bytes).error().code(), ErrorCode::kAlreadyExists);
  EXPECT_TRUE(reader.kv().remote()->drop_remote_blockset(peer->identity()));
  EXPECT_FALSE(reader.kv().remote()->drop_remote_blockset(peer->identity()));
  EXPECT_FALSE(reader.kv().presence(hashes)[0].in(kRemote));
}

class FixedDirectory final : public RemoteDirectory {
 public:
  std::vector<std::string> find(const RemoteQuery&) override {
    ++asked;
    return {address};
  }
  std::string address;
  std::atomic<int> asked{0};
};

TEST(RemoteTierTest, ADirectoryOrTheRequestNamesTheSource) {
  FleetRank owner = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(18, 3);
  store(owner, hashes);
  const auto directory = std::make_shared<FixedDirectory>();
  directory->address = address(owner);
  KvOptions options = node();
  options.remote->directory = directory;
  options.remote->ask_peers = false;
  FleetRank by_directory(kModel, options, undivided());
  EXPECT_EQ(by_directory.onboard(hashes), 3u);
  EXPECT_GT(directory->asked, 0);

  options = node();
  options.remote->ask_peers = false;
  FleetRank by_request(kModel, options, undivided());
  EXPECT_EQ(by_request.onboard(hashes), 0u);
  EXPECT_EQ(by_request.kv().onboard(hashes, {.sources = {address(owner)}}).size(), 3u);
  // Nobody listens there.
  const Hashes others = KvWorkload::sequence(19, 1);
  EXPECT_EQ(by_request.kv().onboard(others, {.sources = {"127.0.0.1:1"}}).size(), 0u);
  EXPECT_EQ(by_request.misses(Miss::kUnreachable), 1u);
}

TEST(RemoteTierTest, AKvFetchHintIsExecutedAndReported) {
  FleetRank owner = rank_of(kModel, undivided());
  FleetRank reader = rank_of(kModel, undivided());
  const Hashes hashes = KvWorkload::sequence(20, 4);
  store(owner, hashes);
  std::string names;
  for (const SequenceHash& hash : hashes) names += (names.empty() ? "" : ",") + std::to_string(hash.chain());
  const auto envelope = [&](const std::string& source, const std::string& list) {
    return R"({"protocol_version":"1.0","message_id":"m","actions":[{"action_id":"a",)"
           R"("action_type":"kv.fetch",)"
           R"("action_version":"1.0","payload":{"source_control_endpoint":")" +
           source + R"(","block_hashes":[)" + list + R"(],"mode":"copy"}},)" +
           R"({"action_id":"b","action_type":"kv.pin","action_version":"1.0","payload":{}}]})";
  };
  const auto done = reader.kv().remote()->execute_hints(envelope(address(owner), names)).value();
  ASSERT_EQ(done.size(), 2u);
  EXPECT_EQ(done[0].kind, HintOutcome::Kind::kDone) << done[0].reason;
  EXPECT_EQ(done[0].fetched, 4u);
  EXPECT_EQ(done[1].kind, HintOutcome::Kind::kRejected);
  EXPECT_EQ(done[1].message_id, "m");
  EXPECT_THAT(RemoteNode::to_json(done),
              HasSubstr(R"({"message_id":"m","action_id":"a","action_type":"kv.fetch","outcome":"done")"));
  EXPECT_TRUE(reader.kv().presence(hashes)[3].in(kHost));
  const auto clipped =
      reader.kv().remote()->execute_hints(envelope(address(owner), names + ",12345")).value();
  EXPECT_EQ(clipped[0].kind, HintOutcome::Kind::kClipped);
  EXPECT_EQ(clipped[0].fetched, 4u);
  // What is here already needs no source.
  ASSERT_TRUE(owner.kv().reset(kHost));
  for (const std::string& source : {address(owner), std::string("127.0.0.1:1")})
    EXPECT_EQ(reader.kv().remote()->execute_hints(envelope(source, names)).value()[0].kind,
              HintOutcome::Kind::kDone);
  ASSERT_TRUE(reader.kv().reset(kHost));
  for (const std::string& source : {address(owner), std::string("127.0.0.1:1")}) {
    const auto nobody = reader.kv().remote()->execute_hints(envelope(source, names)).value();
    EXPECT_EQ(nobody[0].kind, HintOutcome::Kind::kRejected);
    EXPECT_FALSE(nobody[0].reason.empty());
  }
  for (const std::string bad :
       {"", "{", "[]", "{}", R"({"actions":{}})", R"({"actions":[],"protocol_version":"2"})",
        R"({"actions":[{"payload":{"block_hashes":["x"]}}],"protocol_version":"1"})"})
    EXPECT_FALSE(reader.kv().remote()->execute_hints(bad)) << bad;
}

TEST(RemoteTierTest, EventsAndMetricsTellOfTheTier) {
  FleetRank owner = rank_of(kModel, undivided());
  KvOptions options = node({address(owner)});
  options.event_capacity = 1024;
  FleetRank reader(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(21, 3);
  store(owner, hashes);
  EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
  struct Heard final : events::EventSink {
    void on_events(std::span<const events::KvEvent> some) override {
      for (const events::KvEvent& event : some)
        if (event.tier == kRemote) (event.kind == events::KvEventKind::kStored ? stored : removed) += 1;
    }
    int stored = 0;
    int removed = 0;
  } heard;
  reader.kv().drain_events(heard);
  EXPECT_EQ(heard.stored, 3);
  MetricRegistry metrics;
  const auto registered = reader.kv().add_metrics(metrics).value();
  const auto served = owner.kv().add_metrics(metrics, {{"node", "owner"}}).value();
  EXPECT_EQ(reader.onboard(hashes), 3u);
  const std::string text = metrics.prometheus_text();
  EXPECT_THAT(text, HasSubstr("ashlar_remote_peers 1"));
  EXPECT_THAT(text, HasSubstr(R"(ashlar_tier_onboarded_total{tier="remote"} 3)"));
  EXPECT_THAT(text, HasSubstr(R"(ashlar_remote_leases_granted_total{node="owner"} 1)"));
  ASSERT_TRUE(owner.kv().reset(kHost));
  eventually([&] { return !reader.kv().presence(hashes)[0].in(kRemote); });
  eventually([&] { return reader.kv().drain_events(heard), heard.removed == 3; });
  EXPECT_TRUE(reader.kv().describe(hashes[0])->in(kHost) != nullptr);
}

TEST(RemoteTierTest, RandomReadersAndWritersNeverSeeOtherBytes) {
  // Owners with little room evict all the time; readers compare every byte.
  FleetRank one(kModel, node({}, 12), undivided());
  FleetRank two(kModel, node({}, 12), undivided());
  KvOptions options = node({address(one), address(two)}, 12);
  FleetRank reader(kModel, options, undivided());
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (FleetRank* const owner : {&one, &two})
    writers.emplace_back([&, owner, seed = owner == &one ? 1u : 2u] {
      Random random(seed);
      while (!stop) {
        const Hashes hashes = KvWorkload::sequence(100 + random.below(4), 1 + random.below(5));
        store(*owner, hashes);
        if (random.below(8) == 0) static_cast<void>(owner->kv().reset(kHost));
      }
    });
  Random random(3);
  std::size_t read = 0;
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (read < 300 && std::chrono::steady_clock::now() < end) {
    read += reader.onboard(KvWorkload::sequence(100 + random.below(4), 5));
    static_cast<void>(reader.kv().reset(kTierId<events::G1>));
    static_cast<void>(reader.kv().reset(kHost));
  }
  EXPECT_GE(read, 300u);
  stop = true;
  for (std::thread& writer : writers) writer.join();
  reader.expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
