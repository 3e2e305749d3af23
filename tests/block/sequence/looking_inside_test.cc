// What sequences and requests show of their blocks; blocks of every size.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "block/sequence/sequence_fixture.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAreArray;

TEST(SequenceInsideTest, ASequenceShowsItsBlocks) {
  Manager manager = manager_of(8);
  const Sequences sequences(manager);
  auto first = value_of(sequences.make_sequence(tokens_from(0, 10)));
  EXPECT_THAT(first.sequence_hashes(), ElementsAreArray(names_of(tokens_from(0, 10))));
  const SequenceBlock before = first.block(1);
  EXPECT_EQ(before.id, kNoBlock) << "nothing is allocated";
  EXPECT_THAT(before.tokens, ElementsAreArray(tokens_from(4, 4)));
  EXPECT_EQ(before.hash, names_of(tokens_from(0, 10))[1]);
  EXPECT_EQ(first.use_count(1), 0u);

  value_of(sequences.allocate(first));
  EXPECT_EQ(first.block(1).id, first.block_table()[1]);
  EXPECT_FALSE(first.block(1).registered);
  EXPECT_EQ(first.use_count(1), 1u);
  value_of(sequences.computed(first, 10));
  EXPECT_TRUE(first.block(0).registered);
  EXPECT_THAT(first.block(2).tokens, ElementsAreArray(tokens_from(8, 2)));
  EXPECT_FALSE(first.block(2).hash) << "not full";
  EXPECT_FALSE(first.block(2).registered);

  auto second = value_of(sequences.make_sequence(tokens_from(0, 10)));
  value_of(sequences.allocate(second));
  EXPECT_EQ(first.use_count(0), 2u);
  EXPECT_EQ(second.use_count(0), 2u);
  EXPECT_EQ(second.use_count(2), 1u);
  const auto guard = manager.match_blocks(first.sequence_hashes());
  EXPECT_EQ(first.use_count(0), 3u);
  ASSERT_TRUE(sequences.deallocate(second));
  EXPECT_EQ(first.use_count(0), 2u);
}

TEST(SequenceInsideDeathTest, ABlockBeyondTheTokensStopsTheProcess) {
  Manager manager = manager_of(8);
  const Sequences sequences(manager);
  const auto sequence = value_of(sequences.make_sequence(tokens_from(0, 8)));
  EXPECT_DEATH((void)sequence.block(2), "block 2 of group 0; the sequence has 8 tokens in blocks of 4");
}

TEST(SequenceInsideTest, ARequestShowsTheBlocksOfEachGroup) {
  Manager manager = manager_of(16);
  auto request =
      value_of(Request::create(manager, tokens_from(0, 14),
                               {.groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(4)}}));
  ASSERT_TRUE(request.schedule_prefill(14));
  ASSERT_TRUE(request.apply_prefill(Token(99)));
  const SequenceBlock plain = request.block(0);
  EXPECT_EQ(plain.id, request.block_table(0)[0]);
  EXPECT_EQ(plain.hash, request.sequence_hashes()[0]);
  EXPECT_TRUE(plain.registered);
  const SequenceBlock gone = request.block(0, 1);
  EXPECT_EQ(gone.id, kNoBlock) << "outside the window";
  EXPECT_FALSE(gone.registered);
  EXPECT_EQ(request.use_count(0, 1), 0u);
  EXPECT_NE(request.block(2, 1).hash, request.block(2, 0).hash) << "names differ from group to group";
  EXPECT_EQ(request.block(3).tokens.size(), 3u) << "with the token that the step yielded";

  auto fork = value_of(request.fork());
  EXPECT_EQ(request.use_count(0), 2u) << "registered";
  EXPECT_EQ(request.use_count(3), 2u) << "shared, though nobody else can find it";
  fork.release();
  EXPECT_EQ(request.use_count(3), 1u);
  EXPECT_EQ(request.use_count(0), 1u);
}

// ---- sizes

class BlockSizesTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(BlockSizesTest, RequestsAndSequencesShareAPrefix) {
  const std::uint32_t size = GetParam();
  Manager manager = value_of(builder_of(8).block_size(size).keep_tokens(true).build());
  const std::vector<Token> prompt = tokens_from(7, 2 * std::size_t{size} + 1);
  const std::vector<SequenceHash> names = names_of(prompt, size);
  {
    auto request = value_of(Request::create(manager, prompt, {}));
    // In chunks that end within blocks.
    while (request.tokens_to_compute() > 0 && request.computed_tokens() < prompt.size()) {
      const std::size_t chunk = std::min<std::size_t>(request.tokens_to_compute(), size / 2 + 3);
      ASSERT_TRUE(request.schedule_prefill(chunk));
      const bool last = request.computed_tokens() + chunk == prompt.size();
      ASSERT_TRUE(request.apply_prefill(last ? std::optional(Token(1)) : std::nullopt));
    }
    EXPECT_THAT(request.sequence_hashes(), ElementsAreArray(names));
  }
  EXPECT_THAT(manager.tokens_of(names[1]).value(), ElementsAreArray(std::span(prompt).subspan(size, size)));
  const Sequences sequences(manager);
  auto sequence = value_of(sequences.make_sequence(prompt));
  EXPECT_EQ(value_of(sequences.allocate(sequence)), 2 * std::size_t{size});
  // One token at a time, over the end of the open block.
  for (std::uint32_t i = 0; i < size; ++i) {
    sequence.append(Token(i));
    value_of(sequences.may_append(sequence));
  }
  EXPECT_EQ(sequence.block_table().size(), 4u);
  value_of(sequences.computed(sequence, sequence.size()));
  EXPECT_TRUE(sequence.block(2).registered);
  manager.check_invariants();
}

TEST_P(BlockSizesTest, APartialBlockIsFilledAndNamed) {
  const std::uint32_t size = GetParam();
  Manager manager = value_of(builder_of(1).block_size(size).build());
  const std::vector<Token> tokens = tokens_from(3, size);
  Partial partial = value_of(take_one(manager).init_sequence({}));
  ASSERT_TRUE(partial.add_tokens(std::span(tokens).first(size - 1)));
  EXPECT_FALSE(partial.sequence_hash());
  ASSERT_TRUE(partial.add_token(tokens.back()));
  EXPECT_FALSE(partial.add_token(Token(1)));
  EXPECT_EQ(partial.sequence_hash(), names_of(tokens, size)[0]);
}

INSTANTIATE_TEST_SUITE_P(Sizes, BlockSizesTest, ::testing::Values(16, 784, 1056, 1600, 65536),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace ashlar::block
