// Registration: order, refusals that return everything, collisions, duplicates under both policies.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;
using Ids = std::vector<std::uint32_t>;

// Another first block whose tokens differ from `original`, staged under the original's name afterwards.
Complete with_foreign_tokens(Manager& manager, const TokenBlock& tokens) { return complete_one(manager, tokens); }

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
  EXPECT_FALSE(manager.register_blocks(std::span<Complete>(in), out));
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

class CollisionTest : public ::testing::Test {
 protected:
  // A Complete block with the first block's name and other tokens behind it: what a collision looks like.
  // The name is the same because the tokens of `evil` were registered under another salt with an equal hash; a test
  // makes it by completing with the tokens and staging the name, so it uses the registered block's side instead.
  ManualClock clock_;
};

// A hash that two contents share cannot be computed on purpose in 64 bits within a test, so the tests give one block a
// wrong identity: `start.parent` of a Partial block decides its position and chain, and a one-token block leaves the
// content to a search over a tiny space that is known to collide under truncation. Where that is not possible the name
// is staged.
TEST_F(CollisionTest, StagedNamesAreTrustedInEitherOrder) {
  Manager manager = manager_of(4);
  const TokenSequence sequence = sequence_of(1);
  const Immutable staged = store_name(manager, sequence.blocks()[0].sequence_hash());
  const Immutable completed = store_one(manager, sequence.blocks()[0]);
  EXPECT_TRUE(completed.is_duplicate());
  const Immutable again = store_name(manager, sequence.blocks()[0].sequence_hash());
  EXPECT_TRUE(again.is_duplicate());
  EXPECT_EQ(manager.counters().collisions, 0u);
}

}  // namespace
}  // namespace ashlar::block
