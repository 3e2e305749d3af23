// Registration: order, refusals that return everything, collisions, duplicates under both policies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_fixture.h"
#include "support/colliding_tokens.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using Ids = std::vector<std::uint32_t>;

// Sequences with equal names and, from the first token on, different tokens.
TokenSequence colliding(std::uint32_t variant, std::size_t blocks = 1) {
  std::vector<Token> tokens;
  for (std::uint32_t i = 0; i < blocks; ++i) {
    const auto more = testing::colliding_block(kBlockSize, i, variant);
    tokens.insert(tokens.end(), more.begin(), more.end());
  }
  return value_of(TokenSequence::create(std::span<const Token>(tokens), kBlockSize));
}

TEST(RegisterTest, BecomesFindableAndKeepsItsId) {
  Manager manager = manager_of(4);
  const TokenSequence sequence = sequence_of(1);
  Complete complete = complete_one(manager, sequence.blocks()[0]);
  const BlockId id = complete.block_id();
  const Immutable block = value_of(manager.register_block(std::move(complete)));
  EXPECT_EQ(block.block_id(), id);
  EXPECT_EQ(block.sequence_hash(), sequence.blocks()[0].sequence_hash());
  EXPECT_EQ(block.registration_handle().sequence_hash(), block.sequence_hash());
  EXPECT_TRUE(manager.block_registry().is_registered(block.sequence_hash()));
  EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
}

TEST(RegisterTest, ABatchKeepsItsOrderAcrossChunkBorders) {
  for (const std::size_t n : {0u, 1u, 31u, 32u, 33u, 63u, 64u, 65u, 128u, 1000u}) {
    Manager manager = manager_of(1000);
    auto names = names_from(n + 1, n);
    std::reverse(names.begin(), names.end());  // falling positions: the slower way through the check
    for (int direction = 0; direction < 2; ++direction) {
      const Blocks blocks = store_names(manager, names);
      ASSERT_EQ(blocks.size(), n);
      for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(blocks[i].sequence_hash(), names[i]);
      ASSERT_EQ(places(manager).active, n);
      names = names_from(n + 77, n);
    }
    EXPECT_EQ(manager.counters().registrations, 2 * n);
  }
}

TEST(RegisterTest, TheSpanFormEmptiesTheInputAndReplacesTheOutput) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(3);
  std::vector<Immutable> out(2);
  out[0] = store_one(manager, sequence.blocks()[2]);
  std::vector<Complete> in;
  in.push_back(complete_one(manager, sequence.blocks()[0]));
  in.push_back(complete_one(manager, sequence.blocks()[1]));
  EXPECT_TRUE(manager.register_blocks(std::span<Complete>(in), out));
  EXPECT_FALSE(in[0]);
  EXPECT_FALSE(in[1]);
  EXPECT_EQ(out[1].sequence_hash(), sequence.blocks()[1].sequence_hash());
  EXPECT_EQ(places(manager), (Places{.reset = 5, .inactive = 1, .active = 2}));
}

TEST(RegisterTest, ABlockOfAnotherManagerIsRefusedAndReturned) {
  const BlockRegistry registry = make_registry();
  Manager mine = manager_of(4, registry);
  Manager other = manager_of(4, registry);
  const TokenSequence sequence = sequence_of(3);
  auto refused = mine.register_block(complete_one(other, sequence.blocks()[0]));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().error.message(), HasSubstr("block 0 belongs to another g1 manager"));
  EXPECT_TRUE(other.register_block(std::move(refused).error().guard)) << "it is still good where it belongs";

  BlockList<Complete> batch;
  batch.push_back(complete_one(mine, sequence.blocks()[0]));
  batch.push_back(complete_one(other, sequence.blocks()[1]));
  batch.push_back(complete_one(mine, sequence.blocks()[2]));
  auto all_refused = mine.register_blocks(std::move(batch));
  ASSERT_FALSE(all_refused);
  EXPECT_EQ(all_refused.error().guard.size(), 3u);
  EXPECT_EQ(places(mine), (Places{.reset = 2, .owned = 2}));
  EXPECT_TRUE(mine.match_blocks(sequence.sequence_hashes()).empty());
  EXPECT_EQ(mine.counters().registrations, 0u);
}

TEST(RegisterTest, AForeignBlockLateInALargeBatchRefusesTheWholeBatch) {
  Manager mine = manager_of(100);
  Manager other = manager_of(1);
  const auto names = names_from(1, 70);
  BlockList<Complete> batch;
  for (std::size_t i = 0; i < 69; ++i) batch.push_back(stage_one(mine, names[i]));
  batch.push_back(stage_one(other, names[69]));
  auto refused = mine.register_blocks(std::move(batch));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().guard.size(), 70u);
  for (const Complete& guard : refused.error().guard) EXPECT_TRUE(guard);
  EXPECT_EQ(places(mine), (Places{.reset = 31, .owned = 69}));
  EXPECT_EQ(mine.block_registry().registered_count(), 0u);
}

// ---- collisions: one hash, different tokens

TEST(CollisionTest, ARegistrationWithOtherTokensIsRefusedAndReturned) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(4).duplicate_policy(policy).build());
    const TokenSequence good = colliding(0);
    const TokenSequence evil = colliding(1);
    ASSERT_EQ(good.sequence_hashes(), evil.sequence_hashes());
    Immutable stored = store_one(manager, good.blocks()[0]);
    auto refused = manager.register_block(complete_one(manager, evil.blocks()[0]));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
    EXPECT_THAT(refused.error().error.message(), HasSubstr("a hash collision"));
    EXPECT_THAT(refused.error().error.message(), HasSubstr(good.sequence_hashes()[0].to_string()));
    EXPECT_EQ(refused.error().guard.block_id(), BlockId(1));
    EXPECT_EQ(stored.use_count(), 1u);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 1, .owned = 1}));
    EXPECT_EQ(manager.counters().collisions, 1u);

    // Also against an inactive block, which then is not revived.
    stored = Immutable();
    auto again = manager.register_block(std::move(refused).error().guard);
    ASSERT_FALSE(again);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .inactive = 1, .owned = 1}));
    EXPECT_EQ(manager.counters().revivals, 0u);
    EXPECT_EQ(manager.counters().registrations, 1u);
    // And once the block is gone there is nothing to collide with.
    EXPECT_EQ(manager.reset_inactive_pool(), 1u);
    EXPECT_TRUE(manager.register_block(std::move(again).error().guard));
  }
}

TEST(CollisionTest, ACollisionAnywhereInABatchReturnsEverything) {
  Manager manager = manager_of(100);
  const TokenSequence good = colliding(0, 40);
  const TokenSequence evil = colliding(1, 40);
  const Immutable stored = store_one(manager, good.blocks()[35]);
  BlockList<Complete> batch;
  for (const TokenBlock& block : evil.blocks()) batch.push_back(complete_one(manager, block));
  auto refused = manager.register_blocks(std::move(batch));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(refused.error().guard.size(), 40u);
  for (const Complete& guard : refused.error().guard) EXPECT_TRUE(guard);
  EXPECT_EQ(places(manager), (Places{.reset = 59, .active = 1, .owned = 40}));
  EXPECT_EQ(manager.block_registry().registered_count(), 1u);
  // The others can go.
  for (std::size_t i = 0; i < 35; ++i) {
    EXPECT_TRUE(manager.register_block(std::move(refused.error().guard[i])));
  }
}

TEST(CollisionTest, TwoBlocksOfOneBatchMayCollide) {
  Manager manager = manager_of(8);
  const TokenSequence good = colliding(0);
  const TokenSequence evil = colliding(1);
  BlockList<Complete> batch;
  batch.push_back(complete_one(manager, good.blocks()[0]));
  batch.push_back(complete_one(manager, evil.blocks()[0]));
  auto refused = manager.register_blocks(std::move(batch));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
  EXPECT_EQ(refused.error().guard.size(), 2u);
  EXPECT_EQ(manager.counters().collisions, 1u);
}

TEST(CollisionTest, AStagedBlockBetweenTwoCollidingOnesDoesNotHideThem) {
  // Whatever order a check walks them in, the two with tokens meet.
  for (const std::vector<int>& order :
       {std::vector{0, 2, 1}, {2, 0, 1}, {0, 1, 2}, {2, 0, 2, 1, 2}, {0, 2, 2, 2, 1}}) {
    Manager manager = manager_of(8);
    const TokenSequence good = colliding(0);
    const TokenSequence evil = colliding(1);
    BlockList<Complete> batch;
    for (const int which : order) {
      if (which == 2) {
        batch.push_back(stage_one(manager, good.sequence_hashes()[0]));
      } else {
        batch.push_back(complete_one(manager, (which == 0 ? good : evil).blocks()[0]));
      }
    }
    const auto refused = manager.register_blocks(std::move(batch));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
    EXPECT_EQ(places(manager).active, 0u);
  }
}

TEST(CollisionTest, AVerifiedMatchTreatsOtherTokensAsAMiss) {
  Manager manager = manager_of(8);
  const TokenSequence good = colliding(0, 3);
  const TokenSequence evil = colliding(1, 3);
  const Blocks stored = store_all(manager, good);
  EXPECT_EQ(manager.match_blocks(good.blocks()).size(), 3u);
  EXPECT_EQ(manager.match_blocks(evil.blocks()).size(), 0u);
  EXPECT_EQ(manager.match_blocks(evil.sequence_hashes()).size(), 3u) << "a match by name alone cannot know";
  for (const Immutable& block : stored) EXPECT_EQ(block.use_count(), 1u);
}

TEST(CollisionTest, StagedNamesHaveNoTokensToCompareAndAreTrusted) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = colliding(0);
  const TokenSequence other = colliding(1);
  const Immutable staged = store_name(manager, sequence.sequence_hashes()[0]);
  EXPECT_EQ(manager.match_blocks(other.blocks()).size(), 1u);
  const Immutable completed = store_one(manager, sequence.blocks()[0]);
  EXPECT_TRUE(staged.is_duplicate());
  EXPECT_EQ(manager.match_blocks(other.blocks()).size(), 0u) << "tokens are known now";
  const Immutable again = store_name(manager, sequence.sequence_hashes()[0]);
  EXPECT_TRUE(completed.is_duplicate());
  EXPECT_EQ(manager.match_blocks(other.blocks()).size(), 0u);
  EXPECT_EQ(manager.counters().collisions, 0u);
}

TEST(CollisionTest, ANameThatTakesTheirPlaceIsComparedWithTheTokensThatWereThere) {
  for (const bool inactive : {false, true}) {
    Manager manager = manager_of(8);
    const TokenSequence sequence = colliding(0);
    Immutable completed = store_one(manager, sequence.blocks()[0]);
    if (inactive) completed = Immutable();
    const Immutable staged = store_name(manager, sequence.sequence_hashes()[0]);
    completed = Immutable();
    EXPECT_FALSE(staged.is_duplicate());
    EXPECT_EQ(manager.match_blocks(colliding(1).blocks()).size(), 0u);
    EXPECT_EQ(manager.match_blocks(sequence.blocks())[0].block_id(), staged.block_id());
  }
}

TEST(CollisionTest, ABlockAfterOtherTokensIsAnotherBlock) {
  // The two differ in their first block alone.
  const auto sequence = [](std::uint32_t variant) {
    std::vector<Token> tokens = testing::colliding_block(kBlockSize, 0, variant);
    for (const Token token : tokens_from(0, 3 * kBlockSize)) tokens.push_back(token);
    return value_of(TokenSequence::create(std::span<const Token>(tokens), kBlockSize));
  };
  const TokenSequence good = sequence(0);
  const TokenSequence evil = sequence(1);
  ASSERT_EQ(good.sequence_hashes(), evil.sequence_hashes());
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(8).duplicate_policy(policy).build());
    Blocks stored = store_all(manager, good);
    std::vector<Immutable> rest;
    while (stored.size() > 1) rest.push_back(stored.take_back());
    (void)stored.take_back();
    ASSERT_EQ(manager.reset_inactive_pool(), 1u);  // the first block is gone, the others stay

    const Immutable first = store_one(manager, evil.blocks()[0]);
    EXPECT_EQ(manager.match_blocks(evil.blocks()).size(), 1u);
    EXPECT_EQ(manager.match_blocks(good.blocks()).size(), 0u);
    for (std::size_t i = 1; i < 4; ++i) {
      const auto refused = manager.register_block(complete_one(manager, evil.blocks()[i]));
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
    }
    EXPECT_EQ(manager.counters().collisions, 3u);
  }
}

TEST(CollisionTest, AWeakBlockDoesNotFindOtherTokensUnderItsName) {
  Manager manager = manager_of(4);
  const TokenSequence good = colliding(0);
  Immutable first = store_one(manager, good.blocks()[0]);
  const auto weak = first.downgrade();
  first = Immutable();
  ASSERT_EQ(manager.reset_inactive_pool(), 1u);
  {
    const Immutable other = store_one(manager, colliding(1).blocks()[0]);
    ASSERT_EQ(other.sequence_hash(), good.sequence_hashes()[0]);
    EXPECT_FALSE(weak.upgrade());
  }
  EXPECT_FALSE(weak.upgrade()) << "nor an inactive one";
  ASSERT_EQ(manager.reset_inactive_pool(), 1u);
  const Immutable again = store_one(manager, good.blocks()[0]);
  EXPECT_TRUE(weak.upgrade()) << "the same tokens again";
}

TEST(CollisionTest, AnIdentityMayBringTheDigest) {
  Manager manager = manager_of(4);
  const TokenSequence good = colliding(0);
  const TokenSequence evil = colliding(1);
  const BlockIdentity identity{.hash = good.sequence_hashes()[0],
                               .parent = std::nullopt,
                               .root = std::nullopt,
                               .prefix = good.blocks()[0].prefix_digest()};
  const Immutable staged = value_of(manager.register_block(take_one(manager).stage(identity, kReady)));
  EXPECT_EQ(staged.prefix_digest(), good.blocks()[0].prefix_digest());
  EXPECT_EQ(manager.match_blocks(good.blocks()).size(), 1u);
  EXPECT_EQ(manager.match_blocks(evil.blocks()).size(), 0u);
}

TEST(CollisionTest, APartialBlockIsComparedWhereItKnowsItsPrefix) {
  Manager manager = manager_of(8);
  const TokenSequence good = colliding(0, 2);
  const TokenSequence evil = colliding(1, 2);
  const Blocks stored = store_all(manager, good);
  const auto partial = [&](tokens::PrefixDigest parent_prefix) {
    SequenceStart start{{}, evil.sequence_hashes()[0], std::nullopt, parent_prefix};
    Partial block = value_of(take_one(manager).init_sequence(start));
    EXPECT_TRUE(block.add_tokens(good.blocks()[1].tokens()));  // the same tokens, after others
    return value_of(std::move(block).commit(kReady));
  };
  const auto refused = manager.register_block(partial(evil.blocks()[0].prefix_digest()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
  EXPECT_TRUE(manager.register_block(partial(good.blocks()[0].prefix_digest())));
  Complete trusted = partial({});
  EXPECT_FALSE(trusted.prefix_digest().is_known());
  EXPECT_TRUE(manager.register_block(std::move(trusted)));
}

TEST(SaltTest, OneNameIsOfOneSaltWhereSaltsAreKept) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(
        builder_of(8).duplicate_policy(policy).event_log(std::make_shared<events::EventLog>(16)).build());
    const auto staged = [&](const char* tenant) {
      BlockIdentity identity{name_of(0, 7), std::nullopt, std::nullopt};
      if (tenant != nullptr) identity.salt = tokens::salt_fingerprint(tokens::Salt("", tenant));
      return take_one(manager).stage(identity, kReady);
    };
    const auto batch = [&](std::initializer_list<const char*> tenants) {
      BlockList<Complete> list;
      for (const char* const tenant : tenants) list.push_back(staged(tenant));
      return manager.register_blocks(std::move(list));
    };
    const auto two = batch({nullptr, "a", nullptr, "b"});
    ASSERT_FALSE(two);
    EXPECT_THAT(two.error().error.message(), HasSubstr("another salt"));
    EXPECT_FALSE(manager.block_registry().is_registered(name_of(0, 7))) << "nothing was registered";
    const auto stored = batch({"a", nullptr});
    ASSERT_TRUE(stored);
    const auto refused = manager.register_block(staged("b"));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kCorruption);
    EXPECT_TRUE(manager.register_block(staged("a")));
    EXPECT_TRUE(manager.register_block(staged(nullptr)));
    EXPECT_EQ(manager.counters().collisions, 2u);
  }
}

TEST(KeepTokensTest, TokensAreKeptWhenAskedFor) {
  const TokenSequence sequence = sequence_of(1);
  for (const bool keep : {false, true}) {
    Manager manager = value_of(builder_of(4).keep_tokens(keep).build());
    const Immutable block = store_one(manager, sequence.blocks()[0]);
    EXPECT_EQ(manager.tokens_of(block.sequence_hash()).has_value(), keep);
    if (keep) {
      EXPECT_EQ(*manager.tokens_of(block.sequence_hash()), tokens_from(0, kBlockSize));
    }
    const Immutable named = store_name(manager, name_of(0, 7));
    EXPECT_FALSE(manager.tokens_of(named.sequence_hash()));
  }
}

}  // namespace
}  // namespace ashlar::block
