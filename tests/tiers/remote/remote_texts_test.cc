// Names that stand for other texts elsewhere: unknown salts and prefix digests agree with any, two known ones
// that differ never do, also where a third is between them.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tiers/pool/tier_record.h"
#include "tiers/remote/remote_fixture.h"

namespace ashlar::tiers::remote {
namespace {

using tokens::SequenceHash;

BlockText salted(std::uint64_t number) {
  return {.salt = tokens::SaltFingerprint::from_bits(1, number), .prefix = {}};
}
BlockText digested(std::uint64_t number) {
  return {.salt = {}, .prefix = tokens::PrefixDigest::known(2, number)};
}
// What tells two texts apart.
const std::array<BlockText (*)(std::uint64_t), 2> kKinds = {salted, digested};
const BlockText kUnknownText;

// Computes blocks of this text; they stay in G2 only.
void store_text(FleetRank& rank, const Hashes& hashes, const BlockText& text) {
  auto fresh = rank.kv().get_mutable_blocks(hashes.size()).value();
  block::BlockList<block::CompleteBlock<events::G1>> complete;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    rank.compute(fresh[i].block_id(), hashes[i]);
    complete.push_back(std::move(fresh[i]).stage(
        block::BlockIdentity{
            .hash = hashes[i], .parent = {}, .root = {}, .prefix = text.prefix, .salt = text.salt},
        block::KvReady::asserted_by_caller()));
  }
  ASSERT_TRUE(rank.kv().register_blocks(std::move(complete)));
  EXPECT_TRUE(rank.kv().drain());
  EXPECT_TRUE(rank.kv().reset(events::kTierId<events::G1>));
}

// How G2 of a node knows a block.
BlockText text_in_g2(FleetRank& rank, const SequenceHash& hash) {
  const std::optional<KvBlockDescription> known = rank.kv().describe(hash);
  const TierBlock* const here = known ? known->in(kHost) : nullptr;
  if (here == nullptr) {
    ADD_FAILURE() << "G2 does not have it";
    return {};
  }
  return {here->block.identity->salt, here->block.identity->prefix};
}

// Nodes that each have the same blocks, of the text that a test says.
class Owners {
 public:
  FleetRank& add(const layout::Shard& shard, const Hashes& hashes, const BlockText& text) {
    owners_.push_back(std::make_unique<FleetRank>(kModel, node(), shard));
    if (!hashes.empty()) store_text(*owners_.back(), hashes, text);
    return *owners_.back();
  }
  std::vector<std::string> addresses() {
    std::vector<std::string> out;
    for (const auto& owner : owners_) out.push_back(address(*owner));
    return out;
  }
  // In this order, in which peers have their numbers.
  void meet(FleetRank& reader) {
    for (const std::string& one : addresses()) ASSERT_TRUE(reader.kv().remote()->connect(one));
  }
  // How many blocks each of them is known to have.
  std::vector<std::uint64_t> known(FleetRank& reader) {
    std::vector<std::uint64_t> out;
    for (const std::string& one : addresses()) {
      out.push_back(0);
      for (const RemotePeerStatus& peer : reader.kv().remote()->status().peers)
        if (peer.address == one) out.back() = peer.known;
    }
    return out;
  }
  FleetRank& operator[](std::size_t i) { return *owners_[i]; }

 private:
  std::vector<std::unique_ptr<FleetRank>> owners_;
};

using Counts = std::vector<std::uint64_t>;

TEST(RemoteTextsTest, AnOwnerThatDoesNotKnowTheTextSharesWithOneThatDoes) {
  for (const auto kind : kKinds)
    for (const bool unknown_first : {true, false}) {
      const Hashes hashes = KvWorkload::sequence(1, 3);
      Owners owners;
      owners.add(undivided(), hashes, unknown_first ? kUnknownText : kind(1));
      owners.add(undivided(), hashes, unknown_first ? kind(1) : kUnknownText);
      FleetRank reader = rank_of(kModel, undivided());
      owners.meet(reader);
      EXPECT_EQ(reader.kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, 3}}));
      EXPECT_EQ(owners.known(reader), (Counts{3, 3}));
      EXPECT_EQ(reader.onboard(hashes), 3u);
    }
}

TEST(RemoteTextsTest, OwnersOfTwoTextsShareNoBlockAlsoWithAnUnknownOneBetweenThem) {
  for (const auto kind : kKinds) {
    const Hashes hashes = KvWorkload::sequence(2, 3);
    Owners owners;
    for (const BlockText& text : {kUnknownText, kind(1), kind(2), kind(1), kUnknownText})
      owners.add(undivided(), hashes, text);
    FleetRank reader = rank_of(kModel, undivided());
    owners.meet(reader);
    EXPECT_EQ(reader.kv().find(hashes).size(), 1u);
    EXPECT_EQ(owners.known(reader), (Counts{3, 3, 0, 3, 3}));
    // Also for who asks: whatever the first said, the tier knows the text.
    const auto asked = [&](const BlockText& text) {
      OnboardOptions options;
      options.salt = text.salt;
      options.prefixes.assign(hashes.size(), text.prefix);
      const OnboardHandle call = reader.kv().onboard_async(hashes, options).value();
      EXPECT_TRUE(call.wait());
      return call.blocks()[0].miss;
    };
    EXPECT_EQ(asked(kind(2)), kind(2).prefix.is_known() ? Miss::kOtherTokens : Miss::kSaltMismatch);
    EXPECT_EQ(asked(kind(1)), Miss::kNone);
  }
}

TEST(RemoteTextsTest, AnOwnerThatIsFoundLaterIsComparedWithThoseBefore) {
  for (const auto kind : kKinds) {
    const Hashes hashes = KvWorkload::sequence(3, 2);
    Owners owners;
    owners.add(undivided(), {hashes[1]}, kUnknownText);
    for (const std::uint64_t number : {1u, 2u}) owners.add(undivided(), hashes, kind(number));
    KvOptions options = node();
    options.remote->ask_peers = false;
    FleetRank reader(kModel, options, undivided());
    owners.meet(reader);
    const std::vector<std::string> where = owners.addresses();
    const auto look_at = [&](const Hashes& some, std::size_t owner) {
      EXPECT_EQ(reader.kv().prefetch(some, {.sources = {where[owner]}}).value().wait().has_value(), true);
      ASSERT_TRUE(reader.kv().reset(kHost));
    };
    look_at({hashes[1]}, 0);
    look_at(hashes, 1);  // the first block is new, the other is known
    EXPECT_EQ(owners.known(reader), (Counts{1, 2, 0}));
    ASSERT_TRUE(reader.kv().reset_blocks({hashes.data(), 1}));
    look_at(hashes, 2);
    EXPECT_EQ(owners.known(reader), (Counts{1, 1, 1})) << "of the second block it has another text";
  }
}

TEST(RemoteTextsTest, PartsOfABlockAreOfOneText) {
  const std::vector<layout::Shard> ranks = kModel.fleet(4);
  for (const auto kind : kKinds) {
    const BlockText unknown;
    const std::vector<std::pair<std::array<BlockText, 4>, std::optional<BlockText>>> cases = {
        {{unknown, unknown, unknown, unknown}, unknown},
        {{kind(1), unknown, unknown, unknown}, kind(1)},
        {{unknown, unknown, unknown, kind(1)}, kind(1)},
        {{unknown, kind(1), unknown, kind(1)}, kind(1)},
        {{unknown, kind(1), unknown, kind(2)}, std::nullopt},
        {{kind(2), unknown, unknown, kind(1)}, std::nullopt},
        {{kind(1), kind(1), kind(1), kind(2)}, std::nullopt}};
    for (const auto& [texts, expected] : cases) {
      const Hashes hashes = KvWorkload::sequence(4, 1);
      Owners owners;
      for (std::size_t i = 0; i < ranks.size(); ++i) owners.add(ranks[i], hashes, texts[i]);
      FleetRank reader = rank_of(kModel, undivided());
      owners.meet(reader);
      EXPECT_EQ(reader.onboard(hashes), expected ? 1u : 0u);
      if (expected) {
        EXPECT_EQ(text_in_g2(reader, hashes[0]), *expected);
      }
    }
  }
}

// The first fleet that is asked has not all of its text.
TEST(RemoteTextsTest, ABlockIsPutTogetherFromThoseWhoAgree) {
  const std::vector<layout::Shard> halves = kModel.fleet(2);
  for (const auto kind : kKinds) {
    const Hashes hashes = KvWorkload::sequence(5, 2);
    Owners owners;
    owners.add(halves[0], hashes, kind(1));
    owners.add(halves[0], hashes, kind(2));
    owners.add(halves[1], hashes, kind(2));
    FleetRank reader = rank_of(kModel, undivided());
    owners.meet(reader);
    EXPECT_EQ(reader.onboard(hashes), 2u);
    EXPECT_EQ(owners.known(reader), (Counts{0, 2, 2}));
    EXPECT_EQ(text_in_g2(reader, hashes[0]), kind(2));
  }
}

// Between look-up and read an owner has replaced its block, and its withdrawal is not heard yet.
TEST(RemoteTextsTest, ABlockThatIsReplacedAfterTheLookUpIsNotRead) {
  const std::vector<layout::Shard> halves = kModel.fleet(2);
  for (const auto kind : kKinds)
    for (const bool in_parts : {true, false})
      for (const bool was_known : {true, false}) {
        const Hashes hashes = KvWorkload::sequence(6, 2);
        Owners owners;
        if (in_parts) owners.add(halves[0], hashes, kind(1));
        FleetRank& changes =
            owners.add(in_parts ? halves[1] : undivided(), hashes, was_known ? kind(1) : kUnknownText);
        HeldNode reader(node());
        owners.meet(*reader.rank);
        EXPECT_EQ(reader.rank->kv().find(hashes), (std::vector<TierRun>{{kRemote, 0, 2}}));
        reader.hold(changes);
        ASSERT_TRUE(changes.kv().reset_blocks(std::span(hashes).last(1)));
        store_text(changes, {hashes[1]}, kind(2));
        const OnboardHandle call = reader.rank->kv().onboard_async(hashes).value();
        const std::size_t arrived = call.wait().value().size();
        // A name whose text nobody knew is trusted, as before.
        const bool is_trusted = !in_parts && !was_known;
        EXPECT_EQ(arrived, is_trusted ? 2u : 1u);
        EXPECT_EQ(misses_of(call)[1], is_trusted ? Miss::kNone : Miss::kGone);
        reader.go_on();
      }
}

// Owners whose words at the look-up agreed, each with what was known, and whose blocks do not.
TEST(RemoteTextsTest, PartsAreComparedAgainWhenTheyAreLeased) {
  const std::vector<layout::Shard> halves = kModel.fleet(2);
  for (const auto kind : kKinds) {
    const Hashes hashes = KvWorkload::sequence(7, 1);
    Owners owners;
    for (const layout::Shard& shard : halves) owners.add(shard, hashes, kUnknownText);
    HeldNode reader(node());
    owners.meet(*reader.rank);
    EXPECT_EQ(reader.rank->kv().find(hashes).size(), 1u);
    reader.hold(owners[0]);
    for (std::size_t i = 0; i < 2; ++i) {
      ASSERT_TRUE(owners[i].kv().reset_blocks(hashes));
      store_text(owners[i], hashes, kind(i + 1));
    }
    const OnboardHandle call = reader.rank->kv().onboard_async(hashes).value();
    EXPECT_EQ(call.wait().value().size(), 0u);
    EXPECT_EQ(misses_of(call)[0], Miss::kOtherShards);
    reader.go_on();
  }
}

TEST(RemoteTextsTest, APushedBlockOfAnotherTextIsRefusedWhereOneIs) {
  for (const auto kind : kKinds)
    for (const std::size_t ranks : {1u, 2u}) {
      const Hashes hashes = KvWorkload::sequence(8, 2);
      Owners owners;
      const layout::Shard shard = kModel.fleet(static_cast<std::uint32_t>(ranks))[0];
      for (const BlockText& text : {kind(1), kind(2), kUnknownText}) owners.add(shard, hashes, text);
      FleetRank target = rank_of(kModel, undivided());
      store_text(target, hashes, kind(1));
      const auto push = [&](std::size_t owner) {
        RemoteNode& remote = *owners[owner].kv().remote();
        return remote.push(remote.connect(address(target)).value()->identity(), hashes).value();
      };
      for (const std::size_t owner : {0u, 2u})
        for (const Result<Pushed>& one : push(owner)) EXPECT_EQ(one.value(), Pushed::kRegistered);
      for (const Result<Pushed>& one : push(1)) {
        ASSERT_FALSE(one);
        EXPECT_EQ(one.error().code(), ErrorCode::kInvalidArgument);
        EXPECT_NE(one.error().message().find("another text"), std::string::npos) << one.error();
      }
      EXPECT_EQ(target.kv().remote()->status().push_refused, 2u);
      EXPECT_EQ(text_in_g2(target, hashes[0]), kind(1));
      target.expect_counts_exact();
    }
}

// ---- the rule itself

TEST(BlockTextTest, OnlyTwoKnownOnesDisagree) {
  for (const auto kind : kKinds) {
    EXPECT_TRUE(kUnknownText.agrees_with(kind(1)));
    EXPECT_TRUE(kind(1).agrees_with(kUnknownText));
    EXPECT_TRUE(kind(1).agrees_with(kind(1)));
    EXPECT_FALSE(kind(1).agrees_with(kind(2)));
  }
  EXPECT_TRUE(salted(1).agrees_with(digested(2))) << "they know nothing in common";
  BlockText both = salted(1);
  both.learn(digested(2));
  EXPECT_EQ(both, (BlockText{salted(1).salt, digested(2).prefix}));
  EXPECT_FALSE(both.agrees_with(digested(1)));
  EXPECT_FALSE(both.agrees_with(salted(2)));
  both.learn(kUnknownText);
  EXPECT_EQ(both, (BlockText{salted(1).salt, digested(2).prefix})) << "what is known stays";
}

}  // namespace
}  // namespace ashlar::tiers::remote
