// Pushes whose blocks several ranks fill, each with its layers and heads.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/interleaving.h"
#include "ashlar/transfer/block_checksum.h"
#include "tiers/remote/remote_fixture.h"
#include "tiers/remote/remote_messages.h"

namespace ashlar::tiers::remote {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using ::testing::HasSubstr;
using tokens::SequenceHash;
using Outcomes = std::vector<Result<Pushed>>;
using Ranks = std::vector<std::unique_ptr<FleetRank>>;

RemoteNode& remote_of(FleetRank& rank) {
  return *rank.kv().remote();
}
transfer::AgentIdentity meet(FleetRank& from, FleetRank& to) {
  return remote_of(from).connect(address(to)).value()->identity();
}
Outcomes push(FleetRank& from, FleetRank& to, const Hashes& hashes) {
  return remote_of(from).push(meet(from, to), hashes).value();
}
void expect_all(const Outcomes& outcomes, Pushed what) {
  for (const Result<Pushed>& one : outcomes) {
    ASSERT_TRUE(one) << one.error();
    EXPECT_EQ(*one, what);
  }
}
void expect_all(const Outcomes& outcomes, ErrorCode code, const char* text) {
  for (const Result<Pushed>& one : outcomes) {
    ASSERT_FALSE(one);
    EXPECT_EQ(one.error().code(), code) << one.error();
    EXPECT_THAT(one.error().message(), HasSubstr(text));
  }
}
std::uint64_t incomplete(FleetRank& rank) {
  return remote_of(rank).status().incomplete_blocks;
}
// All layers of these heads.
layout::Shard heads(std::uint32_t first, std::uint32_t count, std::uint32_t rank, std::uint32_t ranks) {
  return {kModel.all_layers(), {first, count}, rank, ranks};
}

// Where no lease ends while threads wait for each other, however slow the machine is.
KvOptions patient(std::uint32_t blocks = 64) {
  KvOptions options = node({}, blocks);
  options.remote->lease = minutes(30);
  return options;
}

// Nothing is left over, and the blocks are what ranks compute.
void expect_pushed(FleetRank& target, const Hashes& hashes) {
  EXPECT_EQ(target.onboard(hashes), hashes.size()) << target.options().shard.to_string();
  const RemoteStatus status = remote_of(target).status();
  EXPECT_EQ(status.pushed, hashes.size());
  EXPECT_EQ(status.incomplete_blocks, 0u);
  EXPECT_EQ(status.reserved_blocks, 0u);
  EXPECT_EQ(status.push_refused, 0u);
  target.expect_counts_exact();
}

bool share_something(const layout::Shard& a, const layout::Shard& b) {
  return intersect(a.layers, b.layers).count != 0 && intersect(a.heads, b.heads).count != 0;
}

Ranks writers_of(const ShardedModel& model, const std::vector<layout::Shard>& shards, const Hashes& hashes,
                 const KvOptions& options = node({}, 8)) {
  Ranks ranks;
  for (const layout::Shard& shard : shards) {
    ranks.push_back(std::make_unique<FleetRank>(model, options, shard));
    store(*ranks.back(), hashes);
  }
  return ranks;
}

// Each rank pushes each block by itself, all in random order.
void expect_fleets_push(const ShardedModel& model, const std::vector<layout::Shard>& from,
                        const std::vector<layout::Shard>& to, Random& random) {
  const Hashes hashes = KvWorkload::sequence(3, 3);
  const Ranks writers = writers_of(model, from, hashes);
  for (const layout::Shard& shard : to) {
    FleetRank target(model, node(), shard);
    std::vector<std::pair<FleetRank*, SequenceHash>> pushes;
    for (const auto& writer : writers) {
      if (!share_something(writer->options().shard, shard)) continue;
      for (const SequenceHash& hash : hashes) pushes.emplace_back(writer.get(), hash);
    }
    for (std::size_t i = pushes.size(); i > 1; --i) std::swap(pushes[i - 1], pushes[random.below(i)]);
    for (const auto& [writer, hash] : pushes)
      for (const Result<Pushed>& one : push(*writer, target, {hash})) EXPECT_TRUE(one) << one.error();
    expect_pushed(target, hashes);
  }
}

// Also where no rank's heads are a part of another's, and where ranks hold the same heads.
TEST(RemotePushTest, FleetsOfEveryShapeFillEachOthersBlocks) {
  struct Fleet {
    ShardedModel model;
    std::vector<std::pair<std::uint32_t, std::uint32_t>> pairs;
  };
  const std::vector<Fleet> fleets = {
      {{.heads = 8}, {{8, 4}, {4, 8}, {8, 1}, {1, 8}, {2, 2}}},
      {{.heads = 8, .head_scales = true, .moved_axes = true}, {{8, 4}, {4, 8}}},
      {{.heads = 12, .head_scales = true}, {{6, 4}, {4, 6}, {2, 3}, {3, 2}}},
      {{.heads = 4, .token_scales = true}, {{4, 2}, {2, 4}, {8, 2}, {8, 1}, {2, 8}}},
      {{.heads = 2, .token_scales = true, .moved_axes = true}, {{8, 1}, {4, 1}, {1, 4}}}};
  Random random(1);
  for (const auto& [model, pairs] : fleets)
    for (const auto& [from, to] : pairs) {
      SCOPED_TRACE(std::to_string(model.heads) + " heads, " + std::to_string(from) + " ranks to " +
                   std::to_string(to));
      expect_fleets_push(model, model.fleet(from), model.fleet(to), random);
    }
}

TEST(RemotePushTest, LayersAreFilledAsHeadsAre) {
  const ShardedModel model = {.layers = 4, .token_scales = true};
  const auto fleet = [&](std::uint32_t stages, std::uint32_t ranks) {
    std::vector<layout::Shard> shards;
    const std::uint32_t layers = model.layers / stages;
    for (std::uint32_t stage = 0; stage < stages; ++stage) {
      const std::vector<layout::Shard> some =
          layout::Shard::tensor_ranks(ranks, model.heads, {stage * layers, layers}).value();
      shards.insert(shards.end(), some.begin(), some.end());
    }
    return shards;
  };
  Random random(2);
  expect_fleets_push(model, fleet(2, 2), fleet(1, 1), random);
  expect_fleets_push(model, fleet(4, 1), fleet(2, 2), random);
  expect_fleets_push(model, fleet(1, 4), fleet(2, 1), random);
}

TEST(RemotePushTest, ABlockIsFoundOnlyWhenItsLastPartHasCome) {
  const Hashes hashes = KvWorkload::sequence(4, 2);
  const Ranks writers = writers_of(kModel, kModel.fleet(4), hashes);
  KvOptions options = node();
  std::size_t heard = 0;
  options.remote->on_pushed = [&](const transfer::AgentIdentity&, std::span<const SequenceHash> some) {
    heard += some.size();
  };
  FleetRank target(kModel, options, undivided());
  for (const std::size_t w : {2, 0, 3}) {
    expect_all(push(*writers[w], target, hashes), Pushed::kIncomplete);
    EXPECT_EQ(incomplete(target), 2u);
    EXPECT_FALSE(target.kv().presence(hashes)[0].anywhere());
  }
  EXPECT_EQ(heard, 0u);
  expect_all(push(*writers[1], target, hashes), Pushed::kRegistered);
  EXPECT_EQ(heard, 2u);
  // What is there needs no part.
  expect_all(push(*writers[2], target, hashes), Pushed::kRegistered);
  expect_pushed(target, hashes);
}

TEST(RemotePushTest, APartThatIsThereIsNotTakenAgainAndAnOverlapIsRefused) {
  const Hashes hashes = KvWorkload::sequence(5, 2);
  FleetRank target = rank_of(kModel, undivided());
  FleetRank first = rank_of(kModel, heads(0, 3, 0, 2));
  FleetRank within = rank_of(kModel, heads(1, 1, 1, 4));
  FleetRank across = rank_of(kModel, heads(2, 2, 1, 2));
  FleetRank rest = rank_of(kModel, heads(3, 1, 3, 4));
  for (FleetRank* const rank : {&first, &within, &across, &rest}) store(*rank, hashes);
  expect_all(push(first, target, hashes), Pushed::kIncomplete);
  expect_all(push(first, target, hashes), Pushed::kIncomplete);
  expect_all(push(within, target, hashes), Pushed::kIncomplete);
  expect_all(push(across, target, hashes), ErrorCode::kAlreadyExists, "heads 0 to 2 already");
  EXPECT_EQ(remote_of(target).status().push_refused, 2u);
  // The same block twice in one push.
  expect_all(push(rest, target, {hashes[0], hashes[0]}), Pushed::kRegistered);
  expect_all(push(rest, target, {hashes[1]}), Pushed::kRegistered);
  EXPECT_EQ(target.onboard(hashes), 2u);
  EXPECT_EQ(incomplete(target), 0u);
  target.expect_counts_exact();
}

// Who has the whole block does not wait for ranks that have parts of it.
TEST(RemotePushTest, AWholeBlockGoesBeforeItsParts) {
  const Hashes hashes = KvWorkload::sequence(6, 2);
  const Ranks halves = writers_of(kModel, kModel.fleet(2), hashes);
  const Ranks whole = writers_of(kModel, {undivided()}, hashes);
  FleetRank target = rank_of(kModel, undivided());
  expect_all(push(*halves[0], target, hashes), Pushed::kIncomplete);
  expect_all(push(*whole[0], target, hashes), Pushed::kRegistered);
  EXPECT_EQ(incomplete(target), 0u);
  for (const auto& half : halves) expect_all(push(*half, target, hashes), Pushed::kRegistered);
  expect_pushed(target, hashes);
}

// Its own engine computes the block: nothing tells those who push.
TEST(RemotePushTest, PartsOfABlockThatIsThereNeedNoRoomAndLeaveNothing) {
  const Hashes hashes = KvWorkload::sequence(16, 3);
  KvOptions options = node();
  options.remote->limits.incomplete_blocks_per_peer = 1;
  options.remote->limits.incomplete_blocks = 1;
  FleetRank target(kModel, options, undivided());
  FleetRank first = rank_of(kModel, heads(0, 3, 0, 2));
  FleetRank across = rank_of(kModel, heads(2, 2, 1, 2));
  for (FleetRank* const rank : {&first, &across}) store(*rank, hashes);
  expect_all(push(first, target, {hashes[0]}), Pushed::kIncomplete);
  expect_all(push(first, target, {hashes[1]}), ErrorCode::kCapacity, "push this one again later");
  store(target, {hashes[1]});
  expect_all(push(first, target, {hashes[1]}), Pushed::kRegistered);
  EXPECT_EQ(incomplete(target), 1u);
  store(target, {hashes[0]});
  expect_all(push(across, target, {hashes[0]}), Pushed::kRegistered);
  EXPECT_EQ(incomplete(target), 0u);
  expect_all(push(first, target, {hashes[2]}), Pushed::kIncomplete);
  store(target, {hashes[2]});
  expect_all(push(first, target, {hashes[2]}), Pushed::kRegistered);
  EXPECT_EQ(incomplete(target), 0u);
  target.expect_counts_exact();
}

// ---- what goes wrong

TEST(RemotePushTest, APartThatNeverComesEndsTheBlock) {
  ManualClock clock;
  KvOptions options = node();
  options.clock = &clock;
  FleetRank target(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(7, 2);
  const Ranks writers = writers_of(kModel, kModel.fleet(4), hashes);
  expect_all(push(*writers[0], target, hashes), Pushed::kIncomplete);
  clock.advance(seconds(29));
  expect_all(push(*writers[1], target, {hashes[0]}), Pushed::kIncomplete);  // 30 s from now on
  clock.advance(seconds(2));
  eventually([&] { return incomplete(target) == 1; });
  EXPECT_EQ(remote_of(target).status().incomplete_expired, 1u);
  clock.advance(seconds(29));
  eventually([&] { return incomplete(target) == 0; });
  EXPECT_EQ(remote_of(target).status().incomplete_expired, 2u);
  // Late parts begin anew.
  expect_all(push(*writers[2], target, hashes), Pushed::kIncomplete);
  for (const std::size_t w : {0, 1}) expect_all(push(*writers[w], target, hashes), Pushed::kIncomplete);
  expect_all(push(*writers[3], target, hashes), Pushed::kRegistered);
  expect_pushed(target, hashes);
}

TEST(RemotePushTest, ADeadPusherTakesOnlyBlocksThatNobodyElseFills) {
  const Hashes hashes = KvWorkload::sequence(8, 3);
  FleetRank target = rank_of(kModel, undivided());
  Ranks writers = writers_of(kModel, kModel.fleet(4), hashes);
  expect_all(push(*writers[0], target, hashes), Pushed::kIncomplete);
  expect_all(push(*writers[1], target, {hashes[1]}), Pushed::kIncomplete);
  writers[0].reset();
  eventually([&] { return incomplete(target) == 1; });
  for (const std::size_t w : {2, 3}) push(*writers[w], target, hashes);
  EXPECT_TRUE(target.kv().presence(hashes)[1].in(kHost)) << "its part came before it died";
  EXPECT_FALSE(target.kv().presence(hashes)[0].anywhere());
  // It comes back.
  const Ranks again = writers_of(kModel, {kModel.fleet(4)[0]}, hashes);
  push(*again[0], target, hashes);
  expect_all(push(*writers[1], target, hashes), Pushed::kRegistered);
  expect_pushed(target, hashes);
}

TEST(RemotePushTest, ResetAndRemovalEndIncompleteBlocks) {
  const Hashes hashes = KvWorkload::sequence(9, 2);
  FleetRank target = rank_of(kModel, undivided());
  const Ranks writers = writers_of(kModel, kModel.fleet(2), hashes);
  expect_all(push(*writers[0], target, hashes), Pushed::kIncomplete);
  ASSERT_TRUE(target.kv().reset_blocks(std::span(hashes).first(1)));
  EXPECT_EQ(incomplete(target), 1u);
  ASSERT_TRUE(target.kv().reset(kHost));
  EXPECT_EQ(incomplete(target), 0u);
  // Parts from before are not put together with later ones.
  expect_all(push(*writers[1], target, hashes), Pushed::kIncomplete);
  target.kv().drain();
  ASSERT_TRUE(target.kv().reset(kHost));
  target.expect_counts_exact();
}

// A block that is dropped while it is being registered does not stay, and nobody is told of it.
TEST(RemotePushTest, ResetAndRemovalEndBlocksThatAreBeingRegistered) {
  const Hashes hashes = KvWorkload::sequence(19, 3);
  const Ranks halves = writers_of(kModel, kModel.fleet(2), hashes);
  const Ranks whole = writers_of(kModel, {undivided()}, hashes);
  for (const bool in_parts : {true, false})
    for (const bool all : {true, false}) {
      SCOPED_TRACE(std::string(in_parts ? "in parts, " : "whole, ") + (all ? "reset" : "removal"));
      KvOptions options = node();
      std::size_t heard = 0;
      options.remote->on_pushed = [&](const transfer::AgentIdentity&, std::span<const SequenceHash> some) {
        heard += some.size();
      };
      FleetRank target(kModel, options, undivided());
      if (in_parts) expect_all(push(*halves[0], target, hashes), Pushed::kIncomplete);
      FleetRank& last = in_parts ? *halves[1] : *whole[0];
      const char* const point = in_parts ? "push_assembly.before_publish" : "remote_server.before_publish";
      testing::Interleaving order;
      order.pause_at(point);
      Outcomes outcomes;
      std::jthread pusher([&] { outcomes = push(last, target, hashes); });
      order.wait_until_paused(point);
      const std::size_t gone = all ? hashes.size() : 1;
      if (all) {
        ASSERT_TRUE(target.kv().reset(kHost));
      } else {
        ASSERT_TRUE(target.kv().reset_blocks(std::span(hashes).first(1)));
      }
      order.resume(point);
      pusher.join();
      ASSERT_EQ(outcomes.size(), hashes.size());
      const auto middle = outcomes.begin() + static_cast<std::ptrdiff_t>(gone);
      expect_all(Outcomes(outcomes.begin(), middle), ErrorCode::kNotReady, "push it again");
      expect_all(Outcomes(middle, outcomes.end()), Pushed::kRegistered);
      EXPECT_EQ(heard, hashes.size() - gone);
      for (std::size_t i = 0; i < hashes.size(); ++i)
        EXPECT_EQ(target.kv().presence(hashes)[i].anywhere(), i >= gone) << i;
      EXPECT_EQ(incomplete(target), 0u);
      target.expect_counts_exact();
    }
}

// What a peer may send that is no node of ours.
struct Stranger {
  Stranger(FleetRank& its_rank, FleetRank& its_target)
      : rank(its_rank), target(its_target), peer(remote_of(rank).connect(address(target)).value()) {}
  // Reserves a slot, writes the bytes of the block's part, and commits this record of it.
  Result<Pushed> commit(const SequenceHash& hash, const RemotePart& part, const TierRecord& record) {
    const std::vector<std::uint64_t> request = {1, 60'000};
    const auto reserved =
        decode_numbers(call(RemoteMethod::kReserve, encode_numbers(request)).value()).value();
    Result<std::vector<std::byte>> said =
        call(RemoteMethod::kCommitPart,
             CommitRequest{.reservation = write(hash, reserved), .part = part, .records = {record}}.encode());
    if (!said) return said.error();
    return CommitAnswer::decode(*said, 1).value().blocks[0];
  }
  // The record of its block, as it is.
  TierRecord record(const SequenceHash& hash, const RemotePart& part,
                    const tokens::NamespaceFingerprint& keys = node().keys) {
    const std::uint32_t slot = slot_of(hash);
    TierRecord out{.hash = hash};
    out.checksum =
        transfer::checksum_part(*rank.kv().g1_blocks(), slot, {hash, keys}, part.layers, part.heads).value();
    return out;
  }

  FleetRank& rank;
  FleetRank& target;
  std::shared_ptr<transfer::RemotePeer> peer;

 private:
  Result<std::vector<std::byte>> call(RemoteMethod method, const std::vector<std::byte>& bytes) {
    return peer->call(static_cast<std::uint16_t>(method), bytes,
                      {.deadline = Clock::real().now() + minutes(2)});
  }
  std::uint32_t slot_of(const SequenceHash& hash) {
    if (table.empty()) table = rank.kv().onboard({&hash, 1});
    EXPECT_EQ(table.size(), 1u);
    return table[0].block_id().value();
  }
  std::uint64_t write(const SequenceHash& hash, const std::vector<std::uint64_t>& reserved) {
    std::shared_ptr<const transfer::RemoteBlockSet> landing;
    for (const auto& set : remote_of(rank).remote_blocksets())
      if (set->id() == kLandingSet) landing = set;
    const std::uint32_t from = slot_of(hash);
    const auto to = static_cast<std::uint32_t>(reserved[1]);
    const layout::Shard& shard = rank.options().shard;
    const auto plan =
        transfer::plan(rank.kv().g1_blocks(), std::span(&from, 1), landing->blocks(), std::span(&to, 1),
                       {shard.layers, shard.heads, transfer::SharedHeads::kMove})
            .value();
    EXPECT_TRUE(remote_of(rank).agent().executor().submit({.plan = plan}).value().wait_for_end());
    return reserved[0];
  }
  OnboardTable table;
};

TEST(RemotePushTest, APartThatIsNotWhatItSaysIsRefusedAndSpoilsNothing) {
  const SequenceHash hash = KvWorkload::sequence(10, 1)[0];
  FleetRank target = rank_of(kModel, undivided());
  const Ranks writers = writers_of(kModel, kModel.fleet(2), {hash});
  Stranger stranger(*writers[1], target);
  const RemotePart part{kModel.all_layers(), {2, 2}};
  const TierRecord record = stranger.record(hash, part);
  const auto refusal = [&](const RemotePart& its_part, const TierRecord& its) {
    const Result<Pushed> pushed = stranger.commit(hash, its_part, its);
    return pushed ? ErrorCode::kInternal : pushed.error().code();
  };
  // The first part of a block: nothing is left of it.
  TierRecord wrong = record;
  wrong.checksum = transfer::BlockChecksum(1);
  EXPECT_EQ(refusal(part, wrong), ErrorCode::kCorruption);
  EXPECT_EQ(incomplete(target), 0u);
  EXPECT_EQ(refusal(part, {}), ErrorCode::kNotFound);

  expect_all(push(*writers[0], target, {hash}), Pushed::kIncomplete);
  EXPECT_EQ(refusal(part, wrong), ErrorCode::kCorruption);
  // Another model has the same bytes under another namespace.
  EXPECT_EQ(refusal(part, stranger.record(hash, part, tokens::NamespaceFingerprint::from_bits(7, 9))),
            ErrorCode::kCorruption);
  // Parts that this rank does not hold, or that are none.
  for (const RemotePart& other :
       {RemotePart{}, RemotePart{kModel.all_layers(), {3, 2}}, RemotePart{{1, 2}, {2, 2}},
        RemotePart{{0, 0}, {2, 2}}, RemotePart{{0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}}})
    EXPECT_EQ(refusal(other, record), ErrorCode::kInvalidArgument);
  EXPECT_EQ(incomplete(target), 1u);
  EXPECT_EQ(*stranger.commit(hash, part, record), Pushed::kRegistered);
  EXPECT_EQ(target.onboard({hash}), 1u);
  EXPECT_EQ(remote_of(target).status().reserved_blocks, 0u);
}

TEST(RemotePushTest, PartsOfOtherSaltsAndTextsAreRefusedAndUnknownOnesTrusted) {
  const SequenceHash hash = KvWorkload::sequence(17, 1)[0];
  FleetRank target = rank_of(kModel, undivided());
  const Ranks writers = writers_of(kModel, kModel.fleet(2), {hash});
  Stranger stranger(*writers[1], target);
  const RemotePart third{kModel.all_layers(), {2, 1}};
  const RemotePart fourth{kModel.all_layers(), {3, 1}};
  const auto named = [&](const RemotePart& part, const tokens::SaltFingerprint& salt,
                         const tokens::PrefixDigest& prefix) {
    TierRecord record = stranger.record(hash, part);
    record.salt = salt;
    record.prefix = prefix;
    return record;
  };
  const auto salt = tokens::SaltFingerprint::from_bits(1, 2);
  const auto prefix = tokens::PrefixDigest::known(3, 4);
  expect_all(push(*writers[0], target, {hash}), Pushed::kIncomplete);
  EXPECT_EQ(stranger.commit(hash, third, named(third, salt, prefix)).value(), Pushed::kIncomplete);
  // What the second part said is kept.
  for (const TierRecord& other : {named(fourth, tokens::SaltFingerprint::from_bits(1, 3), prefix),
                                  named(fourth, salt, tokens::PrefixDigest::known(3, 5))}) {
    const Result<Pushed> pushed = stranger.commit(hash, fourth, other);
    ASSERT_FALSE(pushed);
    EXPECT_EQ(pushed.error().code(), ErrorCode::kInvalidArgument) << pushed.error();
  }
  EXPECT_EQ(stranger.commit(hash, fourth, named(fourth, {}, {})).value(), Pushed::kRegistered);
  std::size_t found = 0;
  target.kv().g2()->for_each_registered([&](const SequenceHash&, block::BlockId id) {
    const auto described = target.kv().g2()->describe(id);
    ASSERT_TRUE(described && described->identity);
    EXPECT_EQ(described->identity->salt, salt);
    EXPECT_EQ(described->identity->prefix, prefix);
    ++found;
  });
  EXPECT_EQ(found, 1u);
}

TEST(RemotePushTest, APeerThatDividesItsPartGainsNoTime) {
  ManualClock clock;
  KvOptions options = node();
  options.clock = &clock;
  FleetRank target(kModel, options, undivided());
  const SequenceHash hash = KvWorkload::sequence(18, 1)[0];
  const Ranks writers = writers_of(kModel, kModel.fleet(2), {hash});
  Stranger stranger(*writers[1], target);
  const RemotePart third{kModel.all_layers(), {2, 1}};
  const RemotePart fourth{kModel.all_layers(), {3, 1}};
  EXPECT_EQ(stranger.commit(hash, third, stranger.record(hash, third)).value(), Pushed::kIncomplete);
  clock.advance(seconds(29));
  EXPECT_EQ(stranger.commit(hash, fourth, stranger.record(hash, fourth)).value(), Pushed::kIncomplete);
  clock.advance(seconds(2));
  eventually([&] { return incomplete(target) == 0; });
  EXPECT_EQ(remote_of(target).status().incomplete_expired, 1u);
}

TEST(RemotePushTest, OtherModelsAndOtherHeadsHaveNowhereToPush) {
  FleetRank target = rank_of(kModel, kModel.fleet(2)[0]);
  KvOptions options = node();
  options.keys = tokens::NamespaceFingerprint::from_bits(7, 9);
  const Hashes hashes = KvWorkload::sequence(11, 1);
  FleetRank other(kModel, options, kModel.fleet(4)[0]);
  FleetRank others_heads = rank_of(kModel, kModel.fleet(4)[3]);
  for (FleetRank* const rank : {&other, &others_heads}) {
    store(*rank, hashes);
    EXPECT_FALSE(remote_of(*rank).connect(address(target)));
    const auto pushed = remote_of(*rank).push(remote_of(target).agent().identity(), hashes);
    ASSERT_FALSE(pushed);
    EXPECT_EQ(pushed.error().code(), ErrorCode::kNotFound) << pushed.error();
  }
  EXPECT_EQ(incomplete(target), 0u);
}

// ---- limits

TEST(RemotePushTest, IncompleteBlocksAreLimitedPerPeerAndInAll) {
  KvOptions options = node();
  options.remote->limits.incomplete_blocks_per_peer = 2;
  options.remote->limits.incomplete_blocks = 3;
  FleetRank target(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(12, 3);
  const Hashes more = KvWorkload::sequence(13, 3);
  Ranks writers = writers_of(kModel, kModel.fleet(2), hashes);
  for (const auto& writer : writers) store(*writer, more);
  const auto begun = [&](std::size_t w, const Hashes& some) {
    std::size_t count = 0;
    for (const Result<Pushed>& one : push(*writers[w], target, some)) {
      if (one) {
        ++count;
      } else {
        EXPECT_EQ(one.error().code(), ErrorCode::kCapacity) << one.error();
        EXPECT_THAT(one.error().message(), HasSubstr("push this one again later"));
      }
    }
    return count;
  };
  EXPECT_EQ(begun(0, hashes), 2u);  // its own limit
  EXPECT_EQ(begun(1, more), 1u);    // that of all
  EXPECT_EQ(remote_of(target).status().push_refused, 3u);
  // Whoever completes a block is not held up, and makes room.
  expect_all(push(*writers[1], target, {hashes[0]}), Pushed::kRegistered);
  EXPECT_EQ(incomplete(target), 2u);
  EXPECT_EQ(begun(0, {hashes[2]}), 1u);
  EXPECT_EQ(begun(1, {more[1]}), 0u);
  // So does a death.
  writers[0].reset();
  eventually([&] { return incomplete(target) == 1; });
  EXPECT_EQ(begun(1, {more[1]}), 1u);
  EXPECT_EQ(begun(1, {more[2]}), 0u);
  options.remote->limits.incomplete_blocks = 1;
  EXPECT_FALSE(options.remote->validate());
  options.remote->limits.incomplete_blocks_per_peer = 0;
  EXPECT_FALSE(options.remote->validate());
}

TEST(RemotePushTest, ASmallG2IsSharedAmongPeersAsALargeOne) {
  KvOptions options = node({}, 8);  // four blocks may be incomplete
  options.remote->limits.incomplete_blocks_per_peer = 4;
  options.remote->limits.incomplete_blocks = 8;
  FleetRank target(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(20, 3);
  const Hashes more = KvWorkload::sequence(21, 3);
  const Ranks writers = writers_of(kModel, {kModel.fleet(2)[0]}, hashes);
  const Ranks others = writers_of(kModel, {kModel.fleet(2)[1]}, more);
  for (const auto& [rank, its] : {std::pair(writers[0].get(), &hashes), {others[0].get(), &more}}) {
    const Outcomes outcomes = push(*rank, target, *its);
    expect_all({outcomes[0], outcomes[1]}, Pushed::kIncomplete);
    expect_all({outcomes[2]}, ErrorCode::kCapacity, "one peer may begin");
  }
  EXPECT_EQ(incomplete(target), 4u);
}

// Bytes that find no room are sent for nothing.
TEST(RemotePushTest, WhoWaitsForRoomTriesAFewBlocks) {
  KvOptions options = patient();
  options.remote->limits.incomplete_blocks_per_peer = 1;
  options.remote->limits.incomplete_blocks = 1;
  options.remote->landing_blocks = 24;
  FleetRank target(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(22, 17);
  const Ranks writers = writers_of(kModel, kModel.fleet(2), hashes, patient());
  const auto push_all = [&](FleetRank& rank) {
    const auto done = remote_of(rank).push(meet(rank, target), hashes, Clock::real().now() + minutes(5));
    ASSERT_TRUE(done) << done.error();
    for (const Result<Pushed>& one : *done) EXPECT_TRUE(one) << one.error();
  };
  std::jthread ahead([&] { push_all(*writers[0]); });
  // All of them once; then two blocks in each of eight attempts.
  eventually([&] { return remote_of(target).status().push_refused >= 16 + 8 * 2; });
  const std::uint64_t refused = remote_of(target).status().push_refused;
  const std::uint64_t attempts = remote_of(target).status().reservations;  // those, or more by now
  EXPECT_LE(refused, 16 + (attempts - 1) * 2);
  push_all(*writers[1]);
  ahead.join();
  EXPECT_EQ(target.onboard(hashes), 17u);
  EXPECT_EQ(incomplete(target), 0u);
}

// One rank is far ahead of the other; then the other is. Both wait for room.
TEST(RemotePushTest, RanksWaitForEachOther) {
  KvOptions options = patient();
  options.remote->limits.incomplete_blocks_per_peer = 2;
  options.remote->landing_blocks = 3;
  FleetRank target(kModel, options, undivided());
  const Hashes hashes = KvWorkload::sequence(14, 24);
  const Ranks writers = writers_of(kModel, kModel.fleet(2), hashes, patient());
  std::vector<std::thread> threads;
  for (const auto& writer : writers)
    threads.emplace_back([&, rank = writer.get()] {
      const auto done = remote_of(*rank).push(meet(*rank, target), hashes, Clock::real().now() + minutes(5));
      ASSERT_TRUE(done) << done.error();
      for (const Result<Pushed>& one : *done) EXPECT_TRUE(one) << one.error();
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(target.onboard(hashes), 24u);
  EXPECT_EQ(incomplete(target), 0u);
  EXPECT_EQ(remote_of(target).status().pushed, 24u);
  target.expect_counts_exact();
}

// ---- many at once

TEST(RemotePushTest, ManyRanksFillTheSameBlocksAtOnce) {
  for (const auto& [from, to] : {std::pair(8u, 4u), {4u, 8u}, {8u, 1u}}) {
    SCOPED_TRACE(std::to_string(from) + " to " + std::to_string(to));
    const ShardedModel model = {.heads = 8, .token_scales = true};
    const Hashes hashes = KvWorkload::sequence(15, 8);
    Ranks writers;
    for (const layout::Shard& shard : model.fleet(from)) {
      writers.push_back(std::make_unique<FleetRank>(model, patient(16), shard));
      store(*writers.back(), hashes);
    }
    Ranks targets;
    for (const layout::Shard& shard : model.fleet(to))
      targets.push_back(std::make_unique<FleetRank>(model, patient(32), shard));
    std::vector<std::thread> threads;
    for (std::size_t w = 0; w < writers.size(); ++w)
      threads.emplace_back([&, w] {
        Random random(w + 1);
        for (const auto& target : targets) {
          if (!share_something(writers[w]->options().shard, target->options().shard)) continue;
          const transfer::AgentIdentity peer = meet(*writers[w], *target);
          Hashes left = hashes;
          while (!left.empty()) {
            Hashes some;
            for (std::uint64_t n = 1 + random.below(left.size()); n > 0; --n) {
              const auto at = left.begin() + static_cast<std::ptrdiff_t>(random.below(left.size()));
              some.push_back(*at);
              left.erase(at);
            }
            const auto done = remote_of(*writers[w]).push(peer, some, Clock::real().now() + minutes(5));
            ASSERT_TRUE(done) << done.error();
            for (const Result<Pushed>& one : *done) EXPECT_TRUE(one) << one.error();
          }
        }
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& target : targets) {
      EXPECT_EQ(target->onboard(hashes), 8u) << target->options().shard.to_string();
      EXPECT_EQ(incomplete(*target), 0u);
      EXPECT_EQ(remote_of(*target).status().pushed, 8u);
      target->expect_counts_exact();
    }
  }
}

// Ranks that vanish at any time, among ranks that push again and again: what is found has the right bytes.
TEST(RemotePushTest, RanksThatComeAndGoNeverMakeAWrongBlock) {
  FleetRank target = rank_of(kModel, undivided());
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < 4; ++r)
    threads.emplace_back([&, r] {
      Random random(r + 1);
      for (int life = 0; life < 6; ++life) {
        FleetRank writer(kModel, node({}, 16), kModel.fleet(4)[r]);
        const transfer::AgentIdentity peer = meet(writer, target);
        for (int i = 0; i < 6; ++i) {
          const Hashes hashes = KvWorkload::sequence(200 + random.below(3), 1 + random.below(4));
          store(writer, hashes);
          static_cast<void>(remote_of(writer).push(peer, hashes));
          if (random.below(16) == 0) static_cast<void>(target.kv().reset(kHost));
        }
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (std::uint64_t number = 200; number < 203; ++number) target.onboard(KvWorkload::sequence(number, 4));
  eventually([&] { return remote_of(target).agent().peers().empty(); });
  eventually([&] { return remote_of(target).status().reserved_blocks == 0; });
  ASSERT_TRUE(target.kv().reset(kHost));
  EXPECT_EQ(incomplete(target), 0u);
  target.expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers::remote
