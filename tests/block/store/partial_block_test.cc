// Partial blocks: tokens come and go, computations are scheduled, launched and finished.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;

Partial start_one(Manager& manager, const SequenceStart& start = {}) {
  return value_of(take_one(manager).init_sequence(start));
}

// Through one finished computation; the fence has passed at launch.
InflightBlock<G1>::Done compute(Partial partial) {
  return value_of(value_of(std::move(partial).schedule()).launch(Fence::passed_already()).compute_done());
}

TEST(PartialBlockTest, StartsEmptyAndGrows) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  EXPECT_TRUE(block.tokens().empty());
  EXPECT_EQ(block.computed_tokens(), 0u);
  EXPECT_EQ(block.remaining(), kBlockSize);
  EXPECT_FALSE(block.is_full());
  ASSERT_TRUE(block.add_token(Token(7)));
  ASSERT_TRUE(block.add_tokens(tokens_from(8, 2)));
  EXPECT_THAT(block.tokens(), ElementsAreArray(tokens_from(7, 3)));
  EXPECT_EQ(block.remaining(), 1u);
  ASSERT_TRUE(block.add_tokens({}));
  ASSERT_TRUE(block.add_token(Token(10)));
  EXPECT_TRUE(block.is_full());
}

TEST(PartialBlockTest, AddTokensIsAllOrNothing) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
  const auto refused = block.add_tokens(tokens_from(3, 2));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(), HasSubstr("2 tokens for block 0, which has room for 1"));
  EXPECT_THAT(block.tokens(), ElementsAreArray(tokens_from(0, 3)));
  ASSERT_TRUE(block.add_tokens(tokens_from(3, 1)));
  EXPECT_EQ(block.add_token(Token(4)).error().code(), ErrorCode::kCapacity);
}

TEST(PartialBlockTest, PopTakesTokensOffTheEndAndRefusesMoreThanThereAre) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  EXPECT_EQ(block.pop_token().error().code(), ErrorCode::kInvalidArgument);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 4)));
  ASSERT_TRUE(block.pop_token());
  ASSERT_TRUE(block.pop_tokens(0));
  EXPECT_THAT(block.tokens(), ElementsAreArray(tokens_from(0, 3)));
  const auto refused = block.pop_tokens(4);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("4 tokens to take off block 0, which has 3"));
  EXPECT_EQ(block.tokens().size(), 3u) << "a refusal changes nothing";
  ASSERT_TRUE(block.pop_tokens(3));
  EXPECT_TRUE(block.tokens().empty());
}

TEST(PartialBlockTest, CommitOfABlockThatIsNotFullReturnsItUnchanged) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
  auto refused = std::move(block).commit(kReady);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kNotReady);
  EXPECT_THAT(refused.error().error.message(), HasSubstr("block 0 holds 3 of 4 tokens"));
  Partial again = std::move(refused).error().guard;
  EXPECT_THAT(again.tokens(), ElementsAreArray(tokens_from(0, 3)));
  ASSERT_TRUE(again.add_token(Token(3)));
  EXPECT_EQ(value_of(std::move(again).commit(kReady)).sequence_hash(),
            sequence_of(1).blocks()[0].sequence_hash());
}

TEST(PartialBlockTest, NamesContinueTheParentAndTheSalt) {
  Manager manager = manager_of(4);
  const TokenSequence sequence = sequence_of(3);
  SequenceStart start;
  start.parent = sequence.blocks()[1].sequence_hash();
  Partial third = start_one(manager, start);
  ASSERT_TRUE(third.add_tokens(sequence.blocks()[2].tokens()));
  EXPECT_EQ(value_of(std::move(third).commit(kReady)).sequence_hash(), sequence.blocks()[2].sequence_hash());

  SequenceStart salted;
  salted.hasher = tokens::SequenceHasher(tokens::Salt("adapter", ""));
  Partial first = start_one(manager, salted);
  ASSERT_TRUE(first.add_tokens(sequence.blocks()[0].tokens()));
  EXPECT_NE(value_of(std::move(first).commit(kReady)).sequence_hash(), sequence.blocks()[0].sequence_hash());
}

TEST(PartialBlockTest, ResetForgetsTheTokensAndKeepsTheBlock) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
  Mutable empty = std::move(block).reset();
  EXPECT_EQ(empty.block_id(), BlockId(0));
  EXPECT_EQ(places(manager), (Places{.owned = 1}));
  const Partial again = value_of(std::move(empty).init_sequence({}));
  EXPECT_TRUE(again.tokens().empty());
}

TEST(PartialBlockTest, ASlotsNextLifeStartsEmpty) {
  Manager manager = manager_of(1);
  {
    Partial block = start_one(manager);
    ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
    auto done = compute(std::move(block));
    EXPECT_EQ(std::get<Partial>(done).computed_tokens(), 3u);
  }
  const Partial next = start_one(manager);
  EXPECT_TRUE(next.tokens().empty());
  EXPECT_EQ(next.computed_tokens(), 0u);
}

// ---- schedule, cancel, launch, compute_done

TEST(PartialBlockTest, ScheduleWithoutATokenToComputeReturnsTheBlock) {
  Manager manager = manager_of(1);
  auto refused = start_one(manager).schedule();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kNotReady);
  Partial block = std::move(refused).error().guard;
  EXPECT_EQ(block.block_id(), BlockId(0));
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 2)));
  Partial computed = std::get<Partial>(compute(std::move(block)));
  auto again = std::move(computed).schedule();
  ASSERT_FALSE(again) << "all tokens are computed";
  EXPECT_THAT(again.error().error.message(), HasSubstr("(2 tokens, 2 computed)"));
  EXPECT_EQ(again.error().guard.computed_tokens(), 2u);
}

TEST(PartialBlockTest, CancelReturnsToPartialWithTheTokens) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 2)));
  auto scheduled = value_of(std::move(block).schedule());
  EXPECT_EQ(scheduled.block_id(), BlockId(0));
  Partial back = std::move(scheduled).cancel();
  EXPECT_THAT(back.tokens(), ElementsAreArray(tokens_from(0, 2)));
  EXPECT_EQ(back.computed_tokens(), 0u) << "nothing was computed";
  ASSERT_TRUE(back.add_token(Token(2)));
}

TEST(PartialBlockTest, ComputeDoneBeforeTheFenceReturnsTheInflightBlock) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 2)));
  auto [fence, signal] = Fence::create();
  InflightBlock<G1> inflight = value_of(std::move(block).schedule()).launch(fence);
  for (int attempt = 0; attempt < 3; ++attempt) {
    auto refused = std::move(inflight).compute_done();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kNotReady);
    EXPECT_THAT(refused.error().error.message(), HasSubstr("its fence has not passed"));
    inflight = std::move(refused).error().guard;
    EXPECT_EQ(inflight.block_id(), BlockId(0));
  }
  std::move(signal).signal();
  EXPECT_EQ(std::get<Partial>(value_of(std::move(inflight).compute_done())).computed_tokens(), 2u);
}

TEST(PartialBlockTest, ComputeDoneGivesPartialUntilTheBlockIsFullThenComplete) {
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(1);
  Partial block = start_one(manager);
  for (std::uint32_t i = 0; i + 1 < kBlockSize; ++i) {
    ASSERT_TRUE(block.add_token(sequence.blocks()[0].tokens()[i]));
    EXPECT_EQ(block.computed_tokens(), i);
    block = std::get<Partial>(compute(std::move(block)));
    EXPECT_EQ(block.computed_tokens(), i + 1);
  }
  EXPECT_EQ(manager.counters().stagings, 0u);
  ASSERT_TRUE(block.add_token(sequence.blocks()[0].tokens()[3]));
  Complete complete = std::get<Complete>(compute(std::move(block)));
  EXPECT_EQ(complete.sequence_hash(), sequence.blocks()[0].sequence_hash());
  EXPECT_EQ(manager.counters().stagings, 1u);
  const Immutable stored = value_of(manager.register_block(std::move(complete)));
  EXPECT_EQ(manager.match_blocks(sequence.blocks()).size(), 1u) << "tokens of a built block are known";
}

TEST(PartialBlockTest, PopTakesTheComputedWatermarkAlong) {
  Manager manager = manager_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
  block = std::get<Partial>(compute(std::move(block)));
  ASSERT_TRUE(block.pop_tokens(2));
  EXPECT_EQ(block.computed_tokens(), 1u);
  ASSERT_TRUE(block.add_tokens(tokens_from(50, 3)));
  EXPECT_EQ(block.computed_tokens(), 1u) << "the KV of the new tokens does not exist";
  Complete complete = std::get<Complete>(compute(std::move(block)));
  auto tokens = tokens_from(50, 3);
  tokens.insert(tokens.begin(), Token(0));
  const auto expected = tokens::SequenceHasher().hash_block(std::nullopt, tokens);
  EXPECT_EQ(complete.sequence_hash(), expected->sequence);
}

TEST(PartialBlockTest, AFullBlockWhoseKvIsNotComputedIsNotCompleteByItself) {
  // The block completed by the token just appended is full, but its KV does not exist: only a computation or
  // the caller's own word makes it Complete, and nothing makes it findable before.
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(1);
  Partial block = start_one(manager);
  ASSERT_TRUE(block.add_tokens(tokens_from(0, 3)));
  block = std::get<Partial>(compute(std::move(block)));
  ASSERT_TRUE(block.add_token(Token(3)));
  EXPECT_TRUE(block.is_full());
  EXPECT_EQ(block.computed_tokens(), 3u);
  EXPECT_TRUE(manager.match_blocks(sequence.sequence_hashes()).empty());
  static_assert(!std::is_constructible_v<Complete, Partial> && !std::is_convertible_v<Partial, Complete>);
  EXPECT_EQ(std::get<Complete>(compute(std::move(block))).sequence_hash(),
            sequence.blocks()[0].sequence_hash());
}

}  // namespace
}  // namespace ashlar::block
