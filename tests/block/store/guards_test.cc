// Every transition and refusal of the guards, and where each drop leaves its slot.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <type_traits>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::HasSubstr;

template <class Guard>
constexpr bool kUniqueGuard =
    sizeof(Guard) == 16 && std::is_nothrow_move_constructible_v<Guard> &&
    std::is_nothrow_move_assignable_v<Guard> && !std::is_copy_constructible_v<Guard> &&
    !std::is_copy_assignable_v<Guard> && std::is_default_constructible_v<Guard>;
static_assert(kUniqueGuard<MutableBlock<G1>> && kUniqueGuard<PartialBlock<G1>>);
static_assert(kUniqueGuard<ScheduledBlock<G1>> && kUniqueGuard<InflightBlock<G1>>);
static_assert(kUniqueGuard<CompleteBlock<G1>>);
static_assert(sizeof(ImmutableBlock<G1>) == 16 && std::is_copy_constructible_v<ImmutableBlock<G1>>);
static_assert(std::is_copy_assignable_v<ImmutableBlock<G1>> &&
              std::is_nothrow_move_constructible_v<ImmutableBlock<G1>>);
static_assert(std::is_copy_constructible_v<WeakBlock<G1>>);
static_assert(!std::is_copy_constructible_v<Pin> && std::is_move_constructible_v<Pin>);
static_assert(!std::is_default_constructible_v<KvReady> && std::is_copy_constructible_v<KvReady>);
static_assert(!std::is_copy_constructible_v<FenceSignal> && !std::is_default_constructible_v<FenceSignal>);
static_assert(!std::is_copy_constructible_v<BlockManager<G1>> &&
              std::is_move_constructible_v<BlockManager<G1>>);
static_assert(!std::is_copy_constructible_v<BlockList<ImmutableBlock<G1>>>);
static_assert(!std::is_convertible_v<MutableBlock<G1>, MutableBlock<G2>>);
static_assert(!std::is_constructible_v<ImmutableBlock<G1>, ImmutableBlock<G2>>);
static_assert(!std::is_convertible_v<MutableBlock<G1>, bool>, "only an explicit test for emptiness");

TEST(GuardsTest, EmptyGuardsHoldNothingAndDropSafely) {
  EXPECT_FALSE(Mutable());
  EXPECT_FALSE(Partial());
  EXPECT_FALSE(ScheduledBlock<G1>());
  EXPECT_FALSE(InflightBlock<G1>());
  EXPECT_FALSE(Complete());
  EXPECT_FALSE(Immutable());
  EXPECT_FALSE(WeakBlock<G1>().upgrade().has_value());
  const Immutable empty;
  const Immutable copy = empty;  // NOLINT(performance-unnecessary-copy-initialization)
  EXPECT_FALSE(copy);
}

TEST(GuardsTest, MutableDropReturnsSlotToResetPool) {
  Manager manager = manager_of(3);
  {
    const Mutable block = take_one(manager);
    EXPECT_EQ(block.block_size(), kBlockSize);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3}));
}

TEST(GuardsTest, CompleteDropReturnsSlotToResetPoolAndIsNeverFound) {
  Manager manager = manager_of(3);
  const TokenSequence sequence = sequence_of(1);
  {
    const Complete block = complete_one(manager, sequence.blocks()[0]);
    EXPECT_EQ(block.sequence_hash(), sequence.blocks()[0].sequence_hash());
    EXPECT_EQ(block.block_size(), kBlockSize);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
    EXPECT_TRUE(manager.match_blocks(sequence.sequence_hashes()).empty()) << "complete is not yet visible";
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3}));
  EXPECT_TRUE(manager.match_blocks(sequence.sequence_hashes()).empty());
}

TEST(GuardsTest, PartialScheduledAndPassedInflightDropsReachTheResetPoolOnly) {
  Manager manager = manager_of(3);
  {
    Partial partial = value_of(take_one(manager).init_sequence({}));
    EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3}));
  {
    Partial partial = value_of(take_one(manager).init_sequence({}));
    ASSERT_TRUE(partial.add_token(Token(1)));
    const auto scheduled = value_of(std::move(partial).schedule());
    EXPECT_EQ(scheduled.block_size(), kBlockSize);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3}));
  {
    Partial partial = value_of(take_one(manager).init_sequence({}));
    ASSERT_TRUE(partial.add_token(Token(1)));
    const auto inflight = value_of(std::move(partial).schedule()).launch(Fence::passed_already());
    EXPECT_EQ(inflight.block_size(), kBlockSize);
    EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3}));
  EXPECT_EQ(manager.counters().quarantines, 0u);
}

TEST(GuardsTest, RegisteredDropReachesTheInactivePoolAndStaysFindable) {
  Manager manager = manager_of(3);
  const TokenSequence sequence = sequence_of(1);
  Immutable block = store_one(manager, sequence.blocks()[0]);
  const BlockId id = block.block_id();
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 1}));
  block = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 2, .inactive = 1}));
  const Blocks found = manager.match_blocks(sequence.sequence_hashes());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].block_id(), id);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 1}));
}

TEST(GuardsTest, AssignmentDropsWhatTheGuardHeld) {
  Manager manager = manager_of(3);
  Mutable block = take_one(manager);
  const std::uint32_t first = block.block_id().value();
  block = take_one(manager);
  EXPECT_NE(block.block_id().value(), first);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
  Mutable& same = block;
  block = std::move(same);
  EXPECT_TRUE(block) << "self-move keeps the block";
  EXPECT_EQ(places(manager), (Places{.reset = 2, .owned = 1}));
}

TEST(GuardsTest, CompleteWithAnotherBlockSizeReturnsTheSameBlockUnchanged) {
  Manager manager = manager_of(2);
  Mutable block = take_one(manager);
  const BlockId id = block.block_id();
  for (const std::uint32_t size : {1u, 3u, 5u, 1024u}) {
    auto refused = std::move(block).complete(sequence_of(1, 0, size).blocks()[0], kReady);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().error.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().error.message(), HasSubstr("of " + std::to_string(size) + " tokens"));
    EXPECT_THAT(refused.error().error.message(), HasSubstr("blocks of 4 tokens"));
    block = std::move(refused).error().guard;
    EXPECT_EQ(block.block_id(), id);
    EXPECT_EQ(places(manager), (Places{.reset = 1, .owned = 1}));
  }
  EXPECT_EQ(manager.counters().stagings, 0u);
  const TokenSequence sequence = sequence_of(1);
  EXPECT_EQ(value_of(std::move(block).complete(sequence.blocks()[0], kReady)).block_id(), id);
}

TEST(GuardsTest, InitSequenceAtTheLastPositionReturnsTheSameBlock) {
  Manager manager = manager_of(1);
  Mutable block = take_one(manager);
  SequenceStart start;
  start.parent = name_of(SequenceHash::kMaxPosition, 7);
  auto refused = std::move(block).init_sequence(start);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().error.message(), HasSubstr("position 16777215"));
  EXPECT_EQ(refused.error().guard.block_id(), BlockId(0));
  start.parent = name_of(SequenceHash::kMaxPosition - 1, 7);
  EXPECT_TRUE(std::move(refused).error().guard.init_sequence(start)) << "one position is left";
}

TEST(GuardsTest, InitSequenceRefusesAParentOfAnotherKindOfScheme) {
  Manager manager = manager_of(1);
  SequenceStart start;
  start.parent = value_of(SequenceHash::make_keyed(3, 1, 2));
  auto refused = take_one(manager).init_sequence(start);
  ASSERT_FALSE(refused) << "the default scheme cannot continue a keyed name";
  EXPECT_EQ(refused.error().error.code(), ErrorCode::kInvalidArgument);
  start.hasher = tokens::SequenceHasher(tokens::HashScheme::keyed128({1, 2, 3}), {});
  Partial keyed = value_of(std::move(refused).error().guard.init_sequence(start));
  ASSERT_TRUE(keyed.add_tokens(tokens_from(0, kBlockSize)));
  Complete complete = value_of(std::move(keyed).commit(kReady));
  EXPECT_TRUE(complete.sequence_hash().is_keyed());
  EXPECT_EQ(complete.sequence_hash().position(), 4u);
  start.parent = name_of(3, 2);
  EXPECT_FALSE(std::move(complete).reset().init_sequence(start)) << "and the other way round";
}

TEST(GuardsTest, StageTrustsTheName) {
  Manager manager = manager_of(2);
  const SequenceHash name = name_of(5, 99);
  Complete by_hash = stage_one(manager, name);
  EXPECT_EQ(by_hash.sequence_hash(), name);
  Complete by_identity = take_one(manager).stage(BlockIdentity{name, name_of(4, 98), std::nullopt}, kReady);
  EXPECT_EQ(by_identity.sequence_hash(), name);
  EXPECT_EQ(manager.counters().stagings, 2u);
}

TEST(GuardsTest, CompleteResetForgetsNameAndTokens) {
  Manager manager = manager_of(2);
  const TokenSequence sequence = sequence_of(2);
  Complete block = complete_one(manager, sequence.blocks()[0]);
  const BlockId id = block.block_id();
  Mutable again = std::move(block).reset();
  EXPECT_EQ(again.block_id(), id);
  Complete other = value_of(std::move(again).complete(sequence.blocks()[1], kReady));
  EXPECT_EQ(other.block_id(), id);
  EXPECT_EQ(other.sequence_hash(), sequence.blocks()[1].sequence_hash());
  // Staged by name after a completion: the old tokens must not be compared any more.
  Mutable third = std::move(other).reset();
  const Immutable staged =
      value_of(manager.register_block(std::move(third).stage(sequence.blocks()[0].sequence_hash(), kReady)));
  EXPECT_EQ(manager.match_blocks(sequence.blocks().first(1)).size(), 1u);
}

TEST(GuardsTest, EveryBlockSizeFromOneToTheLargestWorks) {
  for (const std::uint32_t size : {1u, 2u, 3u, 7u, 16u, 100u, 512u, 1000u, 1023u, 1024u}) {
    Manager manager = value_of(builder_of(2).block_size(size).build());
    const TokenSequence sequence = sequence_of(2, 17, size);
    {
      const Blocks stored = store_all(manager, sequence);
      EXPECT_EQ(stored[0].block_size(), size);
    }
    EXPECT_EQ(manager.match_blocks(sequence.blocks()).size(), 2u) << size;
    // The same tokens built one by one give the same name.
    Manager built = value_of(builder_of(2).block_size(size).build());
    Partial partial = value_of(take_one(built).init_sequence({}));
    for (const Token token : sequence.blocks()[0].tokens()) ASSERT_TRUE(partial.add_token(token));
    EXPECT_TRUE(partial.is_full());
    EXPECT_EQ(value_of(std::move(partial).commit(kReady)).sequence_hash(),
              sequence.blocks()[0].sequence_hash());
  }
}

TEST(GuardsTest, ImmutableCopiesCountReferences) {
  Manager manager = manager_of(2);
  const TokenSequence sequence = sequence_of(1);
  Immutable block = store_one(manager, sequence.blocks()[0]);
  EXPECT_EQ(block.use_count(), 1u);
  EXPECT_FALSE(block.is_duplicate());
  EXPECT_EQ(block.block_size(), kBlockSize);
  {
    const Immutable copy = block;  // NOLINT(performance-unnecessary-copy-initialization)
    EXPECT_EQ(block.use_count(), 2u);
    Immutable assigned;
    assigned = copy;
    EXPECT_EQ(block.use_count(), 3u);
    const Immutable moved = std::move(assigned);
    EXPECT_EQ(block.use_count(), 3u);
    EXPECT_EQ(moved.sequence_hash(), block.sequence_hash());
  }
  EXPECT_EQ(block.use_count(), 1u);
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1}));
}

TEST(GuardsTest, BulkReleaseDropsTheTailFirstAndSkipsEmptyGuards) {
  Manager manager = manager_of(200);
  const TokenSequence sequence = sequence_of(150);
  Blocks blocks = store_all(manager, sequence);
  Immutable kept = blocks[70];
  blocks[3] = Immutable();
  Immutable::release(blocks.span());
  for (const Immutable& guard : blocks) EXPECT_FALSE(guard);
  EXPECT_EQ(places(manager), (Places{.reset = 50, .inactive = 149, .active = 1}));
  std::vector<SequenceHash> expected = {sequence.blocks()[3].sequence_hash()};  // dropped before the others
  for (std::size_t i = 150; i-- > 0;) {
    if (i != 70 && i != 3) expected.push_back(sequence.blocks()[i].sequence_hash());
  }
  EXPECT_EQ(manager.eviction_candidates(1000), expected);
}

TEST(GuardsTest, BulkReleaseMayMixManagers) {
  Manager a = manager_of(8);
  Manager b = manager_of(8);
  const TokenSequence sequence = sequence_of(2);
  Blocks blocks;
  for (Manager* manager : {&a, &b, &b, &a})
    blocks.push_back(store_one(*manager, sequence.blocks()[manager == &b]));
  blocks.clear();
  a.check_invariants();
  b.check_invariants();
  EXPECT_EQ(a.status().active, 0u);
  EXPECT_EQ(b.status().active, 0u);
}

TEST(GuardsTest, BlockListTakesTruncatesAndMoves) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(4);
  Blocks blocks = store_all(manager, sequence);
  EXPECT_EQ(blocks.front().sequence_hash(), sequence.blocks()[0].sequence_hash());
  EXPECT_EQ(blocks.back().sequence_hash(), sequence.blocks()[3].sequence_hash());
  Immutable last = blocks.take_back();
  EXPECT_EQ(blocks.size(), 3u);
  blocks.truncate(5);
  EXPECT_EQ(blocks.size(), 3u);
  blocks.truncate(1);
  EXPECT_EQ(places(manager), (Places{.reset = 4, .inactive = 2, .active = 2}));
  Blocks other;
  other.push_back(std::move(last));
  other = std::move(blocks);
  EXPECT_EQ(other.size(), 1u);
  EXPECT_EQ(places(manager), (Places{.reset = 4, .inactive = 3, .active = 1}));
}

// ---- use of a guard that holds nothing

TEST(GuardsDeathTest, MovedFromGuardStopsTheProcessWithASentence) {
  Manager manager = manager_of(4);
  Mutable block = take_one(manager);
  const Mutable owner = std::move(block);
  const char* const sentence = "this guard holds no block: it was moved from, or never given one";
  EXPECT_DEATH((void)block.block_id(), sentence);  // NOLINT(bugprone-use-after-move)
  EXPECT_DEATH((void)std::move(block).stage(name_of(0, 1), kReady), sentence);
  EXPECT_DEATH((void)std::move(block).init_sequence({}), sentence);
  EXPECT_DEATH((void)Partial().tokens(), sentence);
  EXPECT_DEATH((void)Partial().commit(kReady), sentence);
  EXPECT_DEATH((void)ScheduledBlock<G1>().cancel(), sentence);
  EXPECT_DEATH((void)InflightBlock<G1>().compute_done(), sentence);
  EXPECT_DEATH((void)Complete().reset(), sentence);
  EXPECT_DEATH((void)manager.register_block(Complete()), sentence);
  EXPECT_DEATH((void)Immutable().sequence_hash(), sentence);
  EXPECT_DEATH(Immutable().release_after(Fence::passed_already()), sentence);
  EXPECT_DEATH((void)Immutable().downgrade(), sentence);
}

TEST(GuardsDeathTest, MovedFromManagerStopsTheProcessWithASentence) {
  Manager first = manager_of(4);
  Manager second = std::move(first);
  const char* const sentence = "this manager was moved from";
  EXPECT_DEATH((void)first.status(), sentence);  // NOLINT(bugprone-use-after-move)
  EXPECT_DEATH((void)first.allocate_blocks(1), sentence);
  first = std::move(second);
  EXPECT_EQ(first.status().reset, 4u);
  EXPECT_DEATH((void)second.status(), sentence);  // NOLINT(bugprone-use-after-move)
}

TEST(GuardsDeathTest, ManagerDestroyedWithGuardsOutstandingSaysHowManyInWhichStates) {
  const TokenSequence sequence = sequence_of(2);
  const auto outstanding = [&] {
    std::optional<Manager> manager = manager_of(8);
    const Mutable mutable_block = take_one(*manager);
    const Partial partial = value_of(take_one(*manager).init_sequence({}));
    const Complete complete = complete_one(*manager, sequence.blocks()[1]);
    const Immutable primary = store_one(*manager, sequence.blocks()[0]);
    const Immutable duplicate = store_one(*manager, sequence.blocks()[0]);
    manager.reset();
  };
  EXPECT_DEATH(
      outstanding(),
      "the g1 block manager was destroyed with 5 blocks outstanding \\(1 mutable, 1 partial, 1 complete, "
      "1 primary, 1 duplicate\\) and 0 waiting allocations");
  const auto replaced = [&] {
    Manager manager = manager_of(8);
    const Immutable primary = store_one(manager, sequence.blocks()[0]);
    manager = manager_of(8);
  };
  EXPECT_DEATH(replaced(), "destroyed with 1 blocks outstanding \\(1 primary\\)");
}

TEST(GuardsDeathTest, RegisteringIntoASpanOfAnotherLengthStopsTheProcess) {
  Manager manager = manager_of(4);
  std::vector<Complete> in(1);
  in[0] = stage_one(manager, name_of(0, 1));
  std::vector<Immutable> out(2);
  EXPECT_DEATH((void)manager.register_blocks(std::span<Complete>(in), out),
               "1 blocks to register, room for 2");
  EXPECT_DEATH((void)manager.match_blocks_scattered(std::vector{name_of(0, 1)}, out), "1 hashes, room for 2");
}

}  // namespace
}  // namespace ashlar::block
