// SequenceManager: what each call does, what it refuses, and that a refusal changes nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "block/sequence/sequence_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Everything that a refused call must leave as it was.
struct Snapshot {
  Places at;
  std::vector<SequenceHash> victims;
  Ids table;
  std::size_t size;
  std::size_t cached;
  std::size_t computed;
  friend bool operator==(const Snapshot&, const Snapshot&) = default;
};

class SequenceManagerTest : public ::testing::Test {
 protected:
  static Sequences over(Manager& manager, RegisterBlocks when = RegisterBlocks::kWhenComputed) {
    return Sequences(manager, {.hasher = {}, .register_blocks = when, .reuse_last_token = false});
  }
  Snapshot see(const Sequence<G1>& sequence) const {
    return {places(manager_),
            manager_.eviction_candidates(manager_.total_blocks()),
            ids(sequence.block_table()),
            sequence.size(),
            sequence.cached_tokens(),
            sequence.computed_tokens()};
  }
  template <class T>
  static Why why(const Result<T, SequenceError>& refused) {
    EXPECT_FALSE(refused.has_value());
    return refused.error().reason;
  }

  Manager manager_ = manager_of(8);
  Sequences sequences_{manager_};
};

// ---- make_sequence

TEST_F(SequenceManagerTest, ASequenceHasNoBlocksUntilItIsAllocated) {
  const auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 10)));
  EXPECT_EQ(sequence.size(), 10u);
  EXPECT_EQ(sequence.block_count(), 3u);
  EXPECT_THAT(sequence.block_table(), IsEmpty());
  EXPECT_EQ(sequence.cached_tokens(), 0u);
  EXPECT_EQ(sequence.computed_tokens(), 0u);
  EXPECT_EQ(places(manager_), (Places{.reset = 8}));
}

TEST_F(SequenceManagerTest, BlockCountRoundsUp) {
  for (const std::size_t size : {0u, 1u, 4u, 5u, 8u}) {
    const auto sequence = value_of(sequences_.make_sequence(tokens_from(0, size)));
    EXPECT_EQ(sequence.block_count(), (size + 3) / 4) << size;
  }
}

TEST_F(SequenceManagerTest, MoreNamesThanFullBlocksAreRefused) {
  const auto refused = sequences_.make_sequence(tokens_from(0, 7), names_of(tokens_from(0, 8)));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(SequenceManagerTest, NamesAtOtherPositionsAreRefused) {
  auto names = names_of(tokens_from(0, 12));
  std::swap(names[1], names[2]);
  const auto swapped = sequences_.make_sequence(tokens_from(0, 12), names);
  ASSERT_FALSE(swapped.has_value());
  EXPECT_EQ(swapped.error().code(), ErrorCode::kInvalidArgument);
  const auto late = sequences_.make_sequence(tokens_from(0, 12), {names_of(tokens_from(0, 12))[1]});
  ASSERT_FALSE(late.has_value());
  EXPECT_EQ(late.error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(SequenceManagerTest, SomeNamesAreEnough) {
  const auto prompt = tokens_from(0, 13);
  const auto first = computed(sequences_, prompt);
  for (std::size_t given = 0; given <= 3; ++given) {
    auto names = names_of(prompt);
    names.resize(given);
    auto sequence = value_of(sequences_.make_sequence(prompt, names));
    EXPECT_EQ(value_of(sequences_.allocate(sequence)), 12u) << given << " names";
  }
}

// ---- allocate

TEST_F(SequenceManagerTest, AllocateTakesABlockForEveryStartedBlock) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 9)));
  EXPECT_TRUE(sequences_.can_allocate(sequence));
  EXPECT_EQ(value_of(sequences_.allocate(sequence)), 0u);
  EXPECT_THAT(ids(sequence.block_table()), ElementsAre(0, 1, 2));
  EXPECT_EQ(sequence.computed_tokens(), 0u);
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .owned = 3}));
}

TEST_F(SequenceManagerTest, AllocateSharesWhatIsRegistered) {
  const auto first = computed(sequences_, tokens_from(0, 9));
  auto second = value_of(sequences_.make_sequence(joined(tokens_from(0, 8), tokens_from(70, 3))));
  EXPECT_EQ(value_of(sequences_.allocate(second)), 8u);
  EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 3));
  EXPECT_EQ(second.cached_tokens(), 8u);
  EXPECT_EQ(second.computed_tokens(), 8u) << "the KV of a hit exists";
  EXPECT_EQ(places(manager_), (Places{.reset = 4, .active = 2, .owned = 2}));
}

TEST_F(SequenceManagerTest, AllocateTwiceIsRefused) {
  auto sequence = started(sequences_, tokens_from(0, 9));
  const Snapshot before = see(sequence);
  EXPECT_EQ(why(sequences_.allocate(sequence)), Why::kWrongState);
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, AnEmptySequenceHasNothingToCompute) {
  auto sequence = value_of(sequences_.make_sequence({}));
  const Snapshot before = see(sequence);
  EXPECT_EQ(why(sequences_.allocate(sequence)), Why::kNothingToCompute);
  EXPECT_EQ(see(sequence), before);
  sequence.append(Token(1));
  EXPECT_EQ(value_of(sequences_.allocate(sequence)), 0u) << "it may begin to grow before it has blocks";
  EXPECT_EQ(sequence.block_table().size(), 1u);
}

TEST_F(SequenceManagerTest, ARefusedAllocateLeavesHitsAndTheirOrderAlone) {
  const auto old = tokens_from(0, 13);
  {
    const auto done = computed(sequences_, old);
  }
  {
    const auto done = computed(sequences_, tokens_from(200, 8));
  }
  const auto running = started(sequences_, tokens_from(300, 10));  // the last three empty blocks
  ASSERT_EQ(victim_positions(manager_), (Ids{2, 1, 0, 1, 0}));
  auto sequence = value_of(sequences_.make_sequence(joined(old, tokens_from(400, 20))));
  const Snapshot before = see(sequence);
  EXPECT_FALSE(sequences_.can_allocate(sequence));
  const auto refused = sequences_.allocate(sequence);
  EXPECT_EQ(why(refused), Why::kNoRoom);
  ASSERT_TRUE(refused.error().refusal.has_value());
  EXPECT_EQ(refused.error().refusal->reason, Reason::kNoRoom);
  EXPECT_EQ(see(sequence), before) << "three hits were neither kept nor moved to the end of the order";
}

TEST_F(SequenceManagerTest, MoreBlocksThanThePoolHasAreTooMany) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 33)));
  const Snapshot before = see(sequence);
  const auto refused = sequences_.allocate(sequence);
  EXPECT_EQ(why(refused), Why::kNoRoom);
  ASSERT_TRUE(refused.error().refusal.has_value());
  EXPECT_EQ(refused.error().refusal->reason, Reason::kTooMany);
  EXPECT_FALSE(refused.error().to_error().message().empty());
  EXPECT_EQ(see(sequence), before);
}

// ---- can_allocate

TEST_F(SequenceManagerTest, BlocksThatOthersUseCostNothing) {
  const auto prompt = tokens_from(0, 24);
  const auto first = computed(sequences_, prompt);  // six of eight
  auto second = value_of(sequences_.make_sequence(joined(prompt, tokens_from(50, 8))));
  EXPECT_TRUE(sequences_.can_allocate(second)) << "eight blocks, six of them in use by another: two are new";
  auto third = value_of(sequences_.make_sequence(joined(prompt, tokens_from(50, 9))));
  EXPECT_FALSE(sequences_.can_allocate(third)) << "one more";
  EXPECT_EQ(value_of(sequences_.allocate(second)), 24u);
  EXPECT_EQ(places(manager_), (Places{.active = 6, .owned = 2}));
}

TEST_F(SequenceManagerTest, CachedBlocksCostTheirPlace) {
  const auto prompt = tokens_from(0, 16);
  {
    const auto done = computed(sequences_, prompt);
  }
  const auto running = started(sequences_, tokens_from(100, 8));
  ASSERT_EQ(places(manager_), (Places{.reset = 2, .inactive = 4, .owned = 2}));
  const auto fits = value_of(sequences_.make_sequence(joined(prompt, tokens_from(50, 8))));
  EXPECT_TRUE(sequences_.can_allocate(fits)) << "four hits and two empty blocks";
  auto too_long = value_of(sequences_.make_sequence(joined(prompt, tokens_from(50, 9))));
  const auto room = sequences_.can_allocate(too_long);
  ASSERT_FALSE(room) << "six are available, and four of them are the hits";
  EXPECT_EQ(room.error().reason, Reason::kNoRoom);
  EXPECT_EQ(why(sequences_.allocate(too_long)), Why::kNoRoom);
}

TEST_F(SequenceManagerTest, AskingChangesNothing) {
  {
    const auto done = computed(sequences_, tokens_from(0, 16));
  }
  {
    const auto done = computed(sequences_, tokens_from(100, 16));
  }
  const auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 16)));
  const Snapshot before = see(sequence);
  EXPECT_TRUE(sequences_.can_allocate(sequence));
  EXPECT_EQ(see(sequence), before);
}

// ---- the last token

TEST_F(SequenceManagerTest, TheLastTokenIsNeverCached) {
  const auto prompt = tokens_from(0, 12);
  const auto first = computed(sequences_, prompt);
  const auto same = started(sequences_, prompt);
  EXPECT_EQ(same.cached_tokens(), 8u) << "the third block has the last token";
  const auto shorter = started(sequences_, tokens_from(0, 8));
  EXPECT_EQ(shorter.cached_tokens(), 4u);
  const auto longer = started(sequences_, tokens_from(0, 13));
  EXPECT_EQ(longer.cached_tokens(), 12u);
}

TEST_F(SequenceManagerTest, CallersWithoutLogitsMayReuseTheLastToken) {
  const Sequences all(
      manager_, {.hasher = {}, .register_blocks = RegisterBlocks::kWhenComputed, .reuse_last_token = true});
  const auto first = computed(sequences_, tokens_from(0, 12));
  const auto same = started(all, tokens_from(0, 12));
  EXPECT_EQ(same.cached_tokens(), 12u);
  EXPECT_EQ(same.computed_tokens(), 12u);
  EXPECT_EQ(ids(same.block_table()), ids(first.block_table()));
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .active = 3}));
}

// ---- computed, RegisterBlocks

TEST_F(SequenceManagerTest, NothingIsFoundBeforeItIsComputed) {
  const auto first = started(sequences_, tokens_from(0, 12));
  const auto second = started(sequences_, tokens_from(0, 12));
  EXPECT_EQ(second.cached_tokens(), 0u);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 12))), 0u);
}

TEST_F(SequenceManagerTest, ComputedRegistersTheFullBlocksOnce) {
  auto sequence = started(sequences_, tokens_from(0, 11));
  const auto names = names_of(tokens_from(0, 12));
  EXPECT_EQ(value_of(sequences_.computed(sequence, 3)), 0u);
  EXPECT_EQ(value_of(sequences_.computed(sequence, 4)), 1u);
  EXPECT_EQ(present(manager_, names), 1u);
  EXPECT_EQ(value_of(sequences_.computed(sequence, 7)), 0u) << "the second block lacks a token";
  EXPECT_EQ(value_of(sequences_.computed(sequence, 11)), 1u);
  EXPECT_EQ(present(manager_, names), 2u);
  EXPECT_EQ(value_of(sequences_.computed(sequence, 11)), 0u) << "said before";
  EXPECT_EQ(sequence.computed_tokens(), 11u);
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .active = 2, .owned = 1}));
}

TEST_F(SequenceManagerTest, ComputedDoesNotRegisterHitsAgain) {
  const auto first = computed(sequences_, tokens_from(0, 9));
  auto second = started(sequences_, tokens_from(0, 13));
  EXPECT_EQ(value_of(sequences_.computed(second, 13)), 1u);
  EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 3, 4));
}

TEST_F(SequenceManagerTest, ComputedOfWhatHasNoBlocksIsRefused) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 8)));
  Snapshot before = see(sequence);
  const auto refused = sequences_.computed(sequence, 1);
  EXPECT_EQ(why(refused), Why::kWrongState);
  EXPECT_THAT(refused.error().to_string(),
              HasSubstr("is not allocated; this call is for one that is allocated"));
  EXPECT_EQ(see(sequence), before);

  EXPECT_TRUE(sequences_.allocate(sequence).has_value());
  before = see(sequence);
  EXPECT_EQ(why(sequences_.computed(sequence, 9)), Why::kPrefillOverrun);
  EXPECT_EQ(see(sequence), before);

  sequence.append(Token(5));
  before = see(sequence);
  EXPECT_EQ(why(sequences_.computed(sequence, 9)), Why::kPrefillOverrun) << "may_append() comes first";
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, ComputedNeverGoesBack) {
  auto sequence = started(sequences_, tokens_from(0, 8));
  EXPECT_EQ(value_of(sequences_.computed(sequence, 5)), 1u);
  const Snapshot before = see(sequence);
  const auto refused = sequences_.computed(sequence, 4);
  EXPECT_EQ(why(refused), Why::kPrefillOverrun);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("4 tokens reported"));
  EXPECT_THAT(refused.error().to_string(), HasSubstr("the last value (5) and 8"));
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, AtOnceMeansWhenHandedOut) {
  const Sequences eager = over(manager_, RegisterBlocks::kAtOnce);
  auto first = started(eager, tokens_from(0, 10));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 2u);
  EXPECT_EQ(first.computed_tokens(), 0u) << "findable, not computed";
  const auto second = started(eager, tokens_from(0, 10));
  EXPECT_EQ(second.cached_tokens(), 8u);
  EXPECT_EQ(value_of(eager.computed(first, 10)), 0u) << "registered long ago";
  EXPECT_EQ(first.computed_tokens(), 10u);
}

TEST_F(SequenceManagerTest, AtOnceRegistersWhatMayAppendFills) {
  const Sequences eager = over(manager_, RegisterBlocks::kAtOnce);
  auto sequence = started(eager, tokens_from(0, 7));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 1u);
  sequence.append(Token(7));
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 1u) << "may_append() has not seen it yet";
  EXPECT_TRUE(value_of(eager.may_append(sequence)).block_full);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 2u);
}

TEST_F(SequenceManagerTest, WhenComputedLeavesAFilledBlockHidden) {
  auto sequence = computed(sequences_, tokens_from(0, 7));
  sequence.append(Token(7));
  EXPECT_TRUE(value_of(sequences_.may_append(sequence)).block_full);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 1u);
  EXPECT_EQ(value_of(sequences_.computed(sequence, 8)), 1u);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 2u);
}

// ---- append

TEST_F(SequenceManagerTest, MayAppendHasThreeCases) {
  auto sequence = started(sequences_, tokens_from(0, 4));
  sequence.append(Token(50));
  AppendOutcome outcome = value_of(sequences_.may_append(sequence));
  EXPECT_TRUE(outcome.new_block) << "the token begins a block";
  EXPECT_FALSE(outcome.block_full);
  EXPECT_THAT(ids(sequence.block_table()), ElementsAre(0, 1));

  for (const std::uint32_t token : {51u, 52u}) {
    sequence.append(Token(token));
    outcome = value_of(sequences_.may_append(sequence));
    EXPECT_FALSE(outcome.new_block) << "the token stands inside a block";
    EXPECT_FALSE(outcome.block_full);
  }

  sequence.append(Token(53));
  outcome = value_of(sequences_.may_append(sequence));
  EXPECT_FALSE(outcome.new_block);
  EXPECT_TRUE(outcome.block_full) << "the token fills a block";
  EXPECT_THAT(ids(sequence.block_table()), ElementsAre(0, 1));
}

TEST_F(SequenceManagerTest, ABlockOfOneTokenIsNewAndFullAtOnce) {
  for (const RegisterBlocks when : {RegisterBlocks::kWhenComputed, RegisterBlocks::kAtOnce}) {
    Manager manager = value_of(builder_of(3).block_size(1).build());
    const Sequences sequences = over(manager, when);
    auto sequence = started(sequences, tokens_from(0, 1));
    sequence.append(Token(1));
    const AppendOutcome outcome = value_of(sequences.may_append(sequence));
    EXPECT_TRUE(outcome.new_block);
    EXPECT_TRUE(outcome.block_full);
    EXPECT_EQ(present(manager, names_of(tokens_from(0, 2), 1)), when == RegisterBlocks::kAtOnce ? 2u : 0u);
  }
}

TEST_F(SequenceManagerTest, MayAppendAgainFindsNothingToDo) {
  auto sequence = started(sequences_, tokens_from(0, 4));
  sequence.append(Token(50));
  EXPECT_TRUE(value_of(sequences_.may_append(sequence)).new_block);
  const Snapshot before = see(sequence);
  EXPECT_FALSE(value_of(sequences_.may_append(sequence)).new_block);
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, MayAppendCatchesUpWithManyTokens) {
  auto sequence = started(sequences_, tokens_from(0, 3));
  for (const Token token : tokens_from(3, 9)) sequence.append(token);
  EXPECT_TRUE(sequences_.can_append(sequence));
  const AppendOutcome outcome = value_of(sequences_.may_append(sequence));
  EXPECT_TRUE(outcome.new_block);
  EXPECT_TRUE(outcome.block_full);
  EXPECT_THAT(ids(sequence.block_table()), ElementsAre(0, 1, 2));
  EXPECT_EQ(value_of(sequences_.computed(sequence, 12)), 3u);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 12))), 3u);
}

TEST_F(SequenceManagerTest, MayAppendWithoutBlocksIsRefused) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 4)));
  const Snapshot before = see(sequence);
  EXPECT_EQ(why(sequences_.may_append(sequence)), Why::kWrongState);
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, MayAppendIsRefusedInAFullPool) {
  const auto other = started(sequences_, tokens_from(100, 28));
  auto sequence = started(sequences_, tokens_from(0, 4));
  EXPECT_TRUE(sequences_.can_append(sequence)) << "no token waits for a block";
  sequence.append(Token(50));
  EXPECT_FALSE(sequences_.can_append(sequence));
  const Snapshot before = see(sequence);
  const auto refused = sequences_.may_append(sequence);
  EXPECT_EQ(why(refused), Why::kNoRoom);
  ASSERT_TRUE(refused.error().refusal.has_value());
  EXPECT_EQ(refused.error().refusal->reason, Reason::kNoRoom);
  EXPECT_EQ(refused.error().refusal->requested, 1u);
  EXPECT_EQ(see(sequence), before);
}

TEST_F(SequenceManagerTest, MayAppendInsideABlockNeedsNoRoom) {
  const auto other = started(sequences_, tokens_from(100, 28));
  auto sequence = started(sequences_, tokens_from(0, 2));
  sequence.append(Token(50));
  EXPECT_TRUE(sequences_.can_append(sequence));
  EXPECT_FALSE(value_of(sequences_.may_append(sequence)).new_block);
}

TEST_F(SequenceManagerTest, MayAppendEvictsTheOldestCachedBlock) {
  {
    const auto done = computed(sequences_, tokens_from(0, 8));
  }
  const auto other = started(sequences_, tokens_from(100, 20));
  auto sequence = started(sequences_, tokens_from(200, 4));
  ASSERT_EQ(places(manager_), (Places{.inactive = 2, .owned = 6}));
  sequence.append(Token(50));
  EXPECT_TRUE(value_of(sequences_.may_append(sequence)).new_block);
  EXPECT_EQ(present(manager_, names_of(tokens_from(0, 8))), 1u) << "the tail of the prefix went first";
}

// ---- deallocate

TEST_F(SequenceManagerTest, DeallocateGivesTheLastBlockBackFirst) {
  auto sequence = computed(sequences_, tokens_from(0, 14));
  EXPECT_TRUE(sequences_.deallocate(sequence).has_value());
  EXPECT_THAT(sequence.block_table(), IsEmpty());
  EXPECT_EQ(sequence.cached_tokens(), 0u);
  EXPECT_EQ(sequence.computed_tokens(), 0u);
  EXPECT_EQ(sequence.size(), 14u) << "the tokens stay";
  EXPECT_EQ(victim_positions(manager_), (Ids{2, 1, 0}));
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .inactive = 3}));
}

TEST_F(SequenceManagerTest, EmptyBlocksComeBackLastFirstToo) {
  auto sequence = started(sequences_, tokens_from(0, 30));
  EXPECT_TRUE(sequences_.deallocate(sequence).has_value());
  const auto next = started(sequences_, tokens_from(100, 30));
  EXPECT_THAT(ids(next.block_table()), ElementsAre(7, 6, 5, 4, 3, 2, 1, 0));
}

TEST_F(SequenceManagerTest, DeallocateWithoutBlocksIsRefused) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 4)));
  EXPECT_EQ(why(sequences_.deallocate(sequence)), Why::kWrongState);
  EXPECT_TRUE(sequences_.allocate(sequence).has_value());
  EXPECT_TRUE(sequences_.deallocate(sequence).has_value());
  EXPECT_EQ(why(sequences_.deallocate(sequence)), Why::kWrongState);
}

TEST_F(SequenceManagerTest, SharedBlocksStayWithTheOtherSequence) {
  auto first = computed(sequences_, tokens_from(0, 9));
  auto second = started(sequences_, tokens_from(0, 10));
  EXPECT_TRUE(sequences_.deallocate(first).has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .active = 2, .owned = 1}));
  EXPECT_TRUE(sequences_.deallocate(second).has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 6, .inactive = 2}));
}

TEST_F(SequenceManagerTest, DroppingASequenceGivesItsBlocksBack) {
  {
    const auto sequence = computed(sequences_, tokens_from(0, 9));
  }
  EXPECT_EQ(places(manager_), (Places{.reset = 6, .inactive = 2}));
  EXPECT_EQ(victim_positions(manager_), (Ids{1, 0}));
}

TEST_F(SequenceManagerTest, ASequenceCanBeAllocatedAgain) {
  auto sequence = computed(sequences_, tokens_from(0, 9));
  EXPECT_TRUE(sequences_.deallocate(sequence).has_value());
  EXPECT_EQ(value_of(sequences_.allocate(sequence)), 8u) << "it finds its own blocks";
  EXPECT_EQ(ids(sequence.block_table()).at(0), 0u);
  EXPECT_EQ(ids(sequence.block_table()).at(1), 1u);
}

// ---- what is never a hit

TEST_F(SequenceManagerTest, AReusedBlockIsNotFoundByItsOldContent) {
  const auto old = tokens_from(0, 33);
  {
    const auto done = computed(sequences_, tokens_from(0, 32));
  }
  {
    const auto done = computed(sequences_, tokens_from(500, 32));
  }  // takes all eight blocks
  EXPECT_EQ(present(manager_, names_of(old)), 0u);
  const auto again = started(sequences_, tokens_from(0, 13));
  EXPECT_EQ(again.cached_tokens(), 0u);
}

TEST_F(SequenceManagerTest, AForgedNameIsAMiss) {
  const auto truth = tokens_from(0, 12);
  const auto first = computed(sequences_, truth);
  auto forger = value_of(sequences_.make_sequence(tokens_from(500, 13), names_of(truth)));
  EXPECT_EQ(value_of(sequences_.allocate(forger)), 0u);
  for (const BlockId id : forger.block_table()) EXPECT_GE(id.value(), 3u) << "none of the first one's blocks";
}

TEST_F(SequenceManagerTest, AForgedNameCannotReplaceTheTruth) {
  const auto truth = tokens_from(0, 12);
  const auto first = computed(sequences_, truth);
  auto forger = value_of(sequences_.make_sequence(tokens_from(500, 13), names_of(truth)));
  EXPECT_TRUE(sequences_.allocate(forger).has_value());
  const Ids table = ids(forger.block_table());
  const auto registered = sequences_.computed(forger, 13);
  ASSERT_TRUE(registered.has_value()) << "a collision costs the sharing, not the life";
  EXPECT_EQ(*registered, 0u);
  EXPECT_EQ(ids(forger.block_table()), table);
  EXPECT_TRUE(sequences_.deallocate(forger).has_value());
  const auto honest = started(sequences_, tokens_from(0, 13));
  EXPECT_EQ(honest.cached_tokens(), 12u);
  EXPECT_EQ(ids(honest.block_table()).at(0), ids(first.block_table()).at(0));
}

TEST_F(SequenceManagerTest, APrefixThatIsForgedHalfwayIsAHitToThere) {
  const auto truth = tokens_from(0, 12);
  const auto first = computed(sequences_, truth);
  auto forger =
      value_of(sequences_.make_sequence(joined(tokens_from(0, 4), tokens_from(500, 9)), names_of(truth)));
  EXPECT_EQ(value_of(sequences_.allocate(forger)), 4u);
}

// ---- duplicates

TEST_F(SequenceManagerTest, DuplicatesKeepTheirOwnBlocksWhenAllowed) {
  auto first = started(sequences_, tokens_from(0, 9));
  auto second = started(sequences_, tokens_from(0, 9));
  EXPECT_EQ(value_of(sequences_.computed(first, 9)), 2u);
  const Ids table = ids(second.block_table());
  EXPECT_EQ(value_of(sequences_.computed(second, 9)), 2u);
  EXPECT_EQ(ids(second.block_table()), table);
  EXPECT_EQ(places(manager_), (Places{.reset = 2, .active = 4, .owned = 2}));

  EXPECT_TRUE(sequences_.deallocate(first).has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 5, .active = 2, .owned = 1}))
      << "the second one's blocks are enough";
  EXPECT_EQ(ids(second.block_table()), table);
  EXPECT_TRUE(sequences_.deallocate(second).has_value());
  EXPECT_EQ(places(manager_), (Places{.reset = 6, .inactive = 2}));
}

TEST_F(SequenceManagerTest, ARequestThatFitsAColdCacheFitsAWarmOne) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    for (const RegisterBlocks when : {RegisterBlocks::kWhenComputed, RegisterBlocks::kAtOnce}) {
      Manager manager = value_of(builder_of(5).duplicate_policy(policy).build());
      const Sequences sequences = over(manager, when);
      for (const std::size_t cached : {0u, 12u}) {
        auto sequence = value_of(sequences.make_sequence(tokens_from(0, 16)));
        EXPECT_EQ(value_of(sequences.allocate(sequence)), cached);
        EXPECT_TRUE(sequences.computed(sequence, 16).has_value());
        sequence.append(Token(99));
        EXPECT_TRUE(sequences.can_append(sequence)) << "the last block is there once, not twice";
        EXPECT_TRUE(value_of(sequences.may_append(sequence)).new_block);
      }
    }
  }
}

TEST_F(SequenceManagerTest, OfTwoEqualPromptsTheFirstGivesAllItsBlocksBack) {
  Manager manager = manager_of(16);
  const Sequences sequences = over(manager);
  auto first = started(sequences, tokens_from(0, 30));
  auto second = started(sequences, tokens_from(0, 30));
  EXPECT_EQ(value_of(sequences.computed(first, 30)), 7u);
  EXPECT_EQ(value_of(sequences.computed(second, 30)), 7u);
  EXPECT_EQ(manager.available_blocks(), 0u);
  EXPECT_TRUE(sequences.deallocate(first).has_value());
  EXPECT_EQ(manager.available_blocks(), 8u);
  EXPECT_EQ(present(manager, names_of(tokens_from(0, 30))), 7u);
}

TEST_F(SequenceManagerTest, AtOnceASequenceKeepsTheBlocksThatItComputes) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = value_of(builder_of(16).duplicate_policy(policy).build());
    const Sequences sequences = over(manager, RegisterBlocks::kAtOnce);
    auto first = started(sequences, tokens_from(0, 16));
    auto second = started(sequences, tokens_from(0, 16));
    EXPECT_EQ(second.cached_tokens(), 12u);
    EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 2, 4))
        << "block 3 is the first one's to compute";
    // Both generate the same tokens: the token that fills a block is computed after may_append().
    for (std::uint32_t token = 100; token < 104; ++token) {
      for (Sequence<G1>* each : {&first, &second}) {
        each->append(Token(token));
        EXPECT_TRUE(sequences.may_append(*each).has_value());
      }
    }
    EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1, 2, 3, 5));
    EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 2, 4, 6));
    EXPECT_TRUE(sequences.deallocate(first).has_value());
    EXPECT_EQ(manager.available_blocks(), 11u);
    EXPECT_EQ(present(manager, names_of(std::vector<Token>(second.tokens().begin(), second.tokens().end()))),
              5u);
    manager.check_invariants();
  }
}

TEST_F(SequenceManagerTest, DuplicatesAreExchangedWhenRejected) {
  Manager manager = value_of(builder_of(8).duplicate_policy(DuplicatePolicy::kReject).build());
  const Sequences sequences = over(manager);
  auto first = started(sequences, tokens_from(0, 9));
  auto second = started(sequences, tokens_from(0, 9));
  EXPECT_EQ(value_of(sequences.computed(first, 9)), 2u);
  EXPECT_THAT(ids(second.block_table()), ElementsAre(3, 4, 5));
  EXPECT_EQ(value_of(sequences.computed(second, 9)), 2u);
  EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 5)) << "the partial block stays its own";
  EXPECT_EQ(places(manager), (Places{.reset = 4, .active = 2, .owned = 2}));
  const auto third = started(sequences, tokens_from(100, 16));
  EXPECT_THAT(ids(third.block_table()), ElementsAre(6, 7, 3, 4)) << "the candidates came back in order";
}

TEST_F(SequenceManagerTest, ASequenceOfAnotherManagerIsRefused) {
  Manager other = manager_of(8);
  const Sequences others(other);
  auto sequence = value_of(others.make_sequence(tokens_from(0, 5)));
  EXPECT_EQ(why(sequences_.allocate(sequence)), Why::kOtherManager);
  EXPECT_EQ(value_of(others.allocate(sequence)), 0u);
  const Ids table = ids(sequence.block_table());
  EXPECT_EQ(why(sequences_.deallocate(sequence)), Why::kOtherManager);
  EXPECT_EQ(why(sequences_.may_append(sequence)), Why::kOtherManager);
  EXPECT_EQ(why(sequences_.computed(sequence, 4)), Why::kOtherManager);
  EXPECT_EQ(ids(sequence.block_table()), table);
  EXPECT_EQ(places(manager_), (Places{.reset = 8}));
  EXPECT_EQ(sequences_.can_allocate(sequence).error().reason, AllocationRefusal::Reason::kOtherManager);
  const auto refused = sequences_.can_append(sequence);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, AllocationRefusal::Reason::kOtherManager);
  EXPECT_EQ(refused.error().to_error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().to_string(), HasSubstr("another manager"));
}

TEST_F(SequenceManagerTest, ASequenceThatWasMovedFromStopsTheProcessWithASentence) {
  auto sequence = value_of(sequences_.make_sequence(tokens_from(0, 5)));
  const auto taken = std::move(sequence);
  EXPECT_EQ(taken.size(), 5u);
  EXPECT_DEATH((void)sequence.size(), "moved from");  // NOLINT(bugprone-use-after-move)
}

}  // namespace
}  // namespace ashlar::block
