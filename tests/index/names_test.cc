// Names belong to one (worker, rank), and a store that contradicts what is held is refused whole.
#include <gtest/gtest.h>

#include "index/conformance_suite.h"

namespace ashlar::index::conformance {
namespace {

class IndexNamesTest : public IndexTest {
 protected:
  // One block behind a parent.
  StoreVerdict store_one(const Worker& worker, std::optional<BlockName> parent, LocalHash local,
                         BlockName name, StorageTier tier = kDevice,
                         std::optional<std::uint32_t> position = std::nullopt) {
    const StoredBlock block{local, name};
    return store({worker, tier, parent, position, {&block, 1}});
  }
};

TEST_P(IndexNamesTest, WorkersNameTheSameContentDifferently) {
  const Chain chain = chain_of(1, 6);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  store(kB, other);
  EXPECT_EQ(sizes().contents, 6u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 6}, {kB, 6}}));
  expect_unchanged([&] {
    EXPECT_EQ(remove(kA, other), 0u);
    EXPECT_EQ(remove(kB, chain), 0u);
  });
  EXPECT_EQ(remove(kB, other, 2, 4), 4u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 6}, {kB, 2}}));
}

TEST_P(IndexNamesTest, OneNameMeansDifferentContentOnTwoWorkers) {
  const Chain left = chain_of(1, 5);
  Chain right = chain_of(2, 5);
  right.names = left.names;
  store(kA, left);
  store(kB, right);
  store(worker_of(1, 1), right);  // another rank of A's worker
  EXPECT_EQ(depths(left), (Depths{{kA, 5}}));
  EXPECT_EQ(depths(right), (Depths{{worker_of(1, 1), 5}, {kB, 5}}));
  EXPECT_EQ(remove(kB, right, 3, 2), 2u);
  EXPECT_EQ(depths(left), (Depths{{kA, 5}}));
  EXPECT_EQ(depths(right), (Depths{{worker_of(1, 1), 5}, {kB, 3}}));
  EXPECT_EQ(remove(kA, left), 5u);
  EXPECT_EQ(depths(right), (Depths{{worker_of(1, 1), 5}, {kB, 3}}));
}

// The names run against each other, so that a global table of names would mix positions up.
TEST_P(IndexNamesTest, OneNameMeansDifferentPositionsOnTwoWorkers) {
  const Chain left = chain_of(1, 40);
  Chain right = left;
  std::ranges::reverse(right.names);
  store(kA, left);
  ASSERT_EQ(store(kB, right), kApplied);
  EXPECT_EQ(remove_one(kA, left.names[39]), 1u);
  EXPECT_EQ(depths(left), (Depths{{kA, 39}, {kB, 40}}));
  EXPECT_EQ(remove_one(kB, right.names[39]), 1u);
  EXPECT_EQ(depths(left), (Depths{{kA, 39}, {kB, 39}}));
  Chain grown = left;
  grow(grown, 3, 45);
  grown.names[38] = right.names[38];
  grown.names[39] = right.names[39];
  EXPECT_EQ(store(kB, grown, 39, 6), kApplied);
  EXPECT_EQ(depths(grown), (Depths{{kA, 39}, {kB, 45}}));
}

// A sequence that grows event by event is refused, or named otherwise, like one that begins.
TEST_P(IndexNamesTest, AGrowingSequenceFollowsTheSameRules) {
  const Chain taken = chain_of(2, 3);
  store(kB, taken);
  Chain chain = chain_of(1, 40);
  chain.names[14] = taken.names[1];  // means other content on another worker
  ASSERT_EQ(store(kA, chain, 0, 6), kApplied);
  ASSERT_EQ(store(kA, chain, 6, 2), kApplied);
  for (std::size_t step = 8; step < 40; step += 4) {
    const auto with = [&](std::size_t i, BlockName name) {
      std::vector<StoredBlock> blocks = chain.blocks(step, 4);
      blocks[i].name = name;
      return blocks;
    };
    const BlocksStored good{kA, kDevice, chain.names[step - 1], {}, {}};
    const auto store_as = [&](std::span<const StoredBlock> blocks, std::optional<std::uint32_t> at = {}) {
      BlocksStored event = good;
      event.blocks = blocks;
      event.start_position = at;
      return store(event);
    };
    expect_unchanged([&] {
      EXPECT_EQ(store_as(with(2, chain.names[1])), kNameInUse) << "elsewhere in the sequence";
      EXPECT_EQ(store_as(with(0, chain.names[step - 1])), kNameInUse) << "the parent's own";
      EXPECT_EQ(store_as(with(3, chain.names[step + 1])), kNameInUse) << "twice in the event";
      EXPECT_EQ(store_as(chain.blocks(step, 4), step + 1), kWrongPosition);
    });
    ASSERT_EQ(store_as(chain.blocks(step, 4), step), kApplied);
    ASSERT_EQ(depths(chain), (Depths{{kA, static_cast<std::uint32_t>(step + 4)}}));
  }
  EXPECT_EQ(store(kA, chain, 36, 4, kHost), kApplied) << "in a lower tier";
  EXPECT_EQ(remove(kB, taken), 3u);
  EXPECT_EQ(remove_one(kA, chain.names[14]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 14}}));
}

TEST_P(IndexNamesTest, ContentStaysUntilItsLastNameGoes) {
  const Chain chain = chain_of(1, 4);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  EXPECT_EQ(store(kA, other), kApplied);
  EXPECT_EQ(counters().repeated, 0u);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 4, 4, 0, 0, 0}));
  EXPECT_EQ(remove_one(kA, chain.names[3]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 4}}));
  EXPECT_EQ(remove_one(kA, chain.names[3]), 0u);
  EXPECT_EQ(remove_one(kA, other.names[3]), 1u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
  EXPECT_EQ(remove(kA, chain, 0, 3), 3u);
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
  EXPECT_EQ(remove(kA, other, 0, 3), 3u);
  expect_empty();
}

TEST_P(IndexNamesTest, AContentMayHaveManyNames) {
  const LocalHash local(9);
  for (std::uint64_t name = 0; name < 100; ++name)
    ASSERT_EQ(store_one(kA, std::nullopt, local, BlockName(name)), kApplied);
  EXPECT_EQ(counted(sizes()), (IndexSizes{1, 1, 1, 0, 0, 0}));
  for (std::uint64_t i = 0; i < 100; ++i) {
    ASSERT_EQ(depths(std::span(&local, 1)), (Depths{{kA, 1}}));
    ASSERT_EQ(remove_one(kA, BlockName((i * 37) % 100)), 1u);
  }
  expect_empty();
}

TEST_P(IndexNamesTest, AnyNameOfABlockIsAParent) {
  const Chain chain = chain_of(1, 3);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  store(kA, other);
  EXPECT_EQ(store_one(kA, other.names[2], LocalHash(1), BlockName(1)), kApplied);
  EXPECT_EQ(store_one(kA, chain.names[2], LocalHash(1), BlockName(1)), kApplied);
  EXPECT_EQ(counters().repeated, 1u);
  EXPECT_EQ(remove_one(kA, chain.names[2]), 1u);
  EXPECT_EQ(store_one(kA, chain.names[2], LocalHash(2), BlockName(2)), kUnknownParent);
  EXPECT_EQ(store_one(kA, other.names[2], LocalHash(2), BlockName(2)), kApplied);
  EXPECT_EQ(sizes().contents, 5u);
}

TEST_P(IndexNamesTest, ARemovedNameIsFreeForOtherContent) {
  const Chain chain = chain_of(1, 4);
  store(kA, chain);
  EXPECT_EQ(remove_one(kA, chain.names[3]), 1u);
  EXPECT_EQ(store_one(kA, std::nullopt, LocalHash(5), chain.names[3]), kApplied);
  const LocalHash local(5);
  EXPECT_EQ(depths(std::span(&local, 1)), (Depths{{kA, 1}}));
  EXPECT_EQ(depths(chain), (Depths{{kA, 3}}));
  expect_unchanged([&] { EXPECT_EQ(store(kA, chain, 3, 1), kNameInUse); });
  EXPECT_EQ(remove_one(kA, chain.names[3]), 1u);
  EXPECT_EQ(store(kA, chain, 3, 1), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 4}}));
}

TEST_P(IndexNamesTest, NamesAreFreeAfterAClear) {
  const Chain left = chain_of(1, 5);
  Chain right = chain_of(2, 5);
  right.names = left.names;
  store(kA, left);
  store(kB, left);
  clear(kA);
  EXPECT_EQ(store(kA, right), kApplied);
  EXPECT_EQ(depths(left), (Depths{{kB, 5}}));
  EXPECT_EQ(depths(right), (Depths{{kA, 5}}));
  remove_worker(1);
  EXPECT_EQ(store(kA, left), kApplied);
  EXPECT_EQ(depths(left), (Depths{{kA, 5}, {kB, 5}}));
}

TEST_P(IndexNamesTest, ANameOfOtherContentIsRefused) {
  const Chain chain = chain_of(1, 6);
  store(kA, chain);
  store(kA, chain_of(2, 3), kHost);
  expect_unchanged([&] {
    // At the start, at another position, behind another parent, in another tier.
    EXPECT_EQ(store_one(kA, std::nullopt, LocalHash(1), chain.names[0]), kNameInUse);
    EXPECT_EQ(store_one(kA, std::nullopt, chain.locals[0], chain.names[1]), kNameInUse);
    EXPECT_EQ(store_one(kA, chain.names[2], chain.locals[3], chain.names[4]), kNameInUse);
    EXPECT_EQ(store_one(kA, chain.names[1], chain.locals[3], chain.names[3]), kNameInUse);
    EXPECT_EQ(store_one(kA, std::nullopt, LocalHash(1), chain.names[0], kDisk), kNameInUse);
    EXPECT_EQ(store_one(kA, std::nullopt, LocalHash(1), chain_of(2, 3).names[2]), kNameInUse);
  });
  EXPECT_EQ(counters().names_in_use, 6u);
  EXPECT_EQ(store_one(kB, std::nullopt, LocalHash(1), chain.names[0]), kApplied);
}

TEST_P(IndexNamesTest, TheParentsOwnNameIsRefused) {
  const Chain chain = chain_of(1, 3);
  store(kA, chain);
  expect_unchanged([&] {
    EXPECT_EQ(store_one(kA, chain.names[2], LocalHash(1), chain.names[2]), kNameInUse);
    Chain longer = branch_of(chain, 3, 2, 6);
    longer.names[5] = chain.names[2];
    EXPECT_EQ(store(kA, longer, 3, 3), kNameInUse);
  });
}

TEST_P(IndexNamesTest, ANameTwiceInAnEventIsRefused) {
  const Chain chain = chain_of(1, 10);
  store(kA, chain, 0, 4);
  expect_unchanged([&] {
    for (const std::size_t at : {5u, 8u, 9u}) {
      Chain twice = chain;
      twice.names[at] = twice.names[4];
      EXPECT_EQ(store(kA, twice, 4, 6), kNameInUse);
    }
    // Even where both places have the same local hash.
    Chain same = chain;
    same.names[5] = same.names[4];
    same.locals[5] = same.locals[4];
    EXPECT_EQ(store(kA, same, 4, 2), kNameInUse);
  });
  Chain fresh = chain_of(2, 5);
  fresh.names[4] = fresh.names[0];
  EXPECT_EQ(store(kB, fresh), kNameInUse);
  EXPECT_EQ(depths(fresh), Depths());
  EXPECT_EQ(sizes().workers, 1u);
}

// Long events may be cut into pieces inside; the last piece decides about the first.
TEST_P(IndexNamesTest, AFaultAtTheEndOfALongEventUndoesAllOfIt) {
  for (const std::size_t length : {2u, 17u, 64u, 65u, 300u, 2000u}) {
    Chain chain = chain_of(length, length);
    store(kA, chain_of(1, 3));
    chain.names[length - 1] = chain_of(1, 3).names[2];
    expect_unchanged([&] { EXPECT_EQ(store(kA, chain), kNameInUse); });
    EXPECT_EQ(depths(chain), Depths());
    // Also where it runs through blocks that are held already.
    Chain longer = branch_of(chain_of(1, 3), 3, 7, 3 + length);
    longer.names.back() = longer.names[0];
    expect_unchanged([&] { EXPECT_EQ(store(kA, longer, 3, length), kNameInUse); });
    EXPECT_EQ(depths(longer), (Depths{{kA, 3}}));
    clear(kA);
    expect_empty();
  }
}

TEST_P(IndexNamesTest, ARefusedStoreInASecondTierLeavesBothTiers) {
  Chain chain = chain_of(1, 8);
  store(kA, chain);
  store(kB, chain);
  chain.names[7] = chain.names[0];
  expect_unchanged([&] { EXPECT_EQ(store(kA, chain, kHost), kNameInUse); });
  EXPECT_EQ(scores(chain)[kA], (Score{8, 8, {8, 0, 0, 0}}));
}

TEST_P(IndexNamesTest, AnUnknownParentIsRefused) {
  const Chain chain = chain_of(1, 6);
  expect_unchanged([&] { EXPECT_EQ(store(kA, chain, 3, 3), kUnknownParent); });
  expect_empty();
  store(kA, chain);
  store(kB, chain_of(2, 2));
  const Chain behind = branch_of(chain, 6, 3, 9);
  expect_unchanged([&] {
    EXPECT_EQ(store(kB, behind, 6, 3), kUnknownParent);               // a chain that only A holds
    EXPECT_EQ(store(worker_of(1, 1), behind, 6, 3), kUnknownParent);  // another rank of A
    EXPECT_EQ(store_one(kA, BlockName(3), LocalHash(1), BlockName(4)), kUnknownParent);
  });
  EXPECT_EQ(counters().unknown_parents, 4u);
}

// A worker may hold the parent's content under a name of its own, which does not make the other's name known.
TEST_P(IndexNamesTest, TheParentIsLookedUpByNameAndNotByContent) {
  const Chain chain = chain_of(1, 6);
  const Chain other = renamed(chain, 2);
  store(kA, chain);
  store(kB, other, 0, 3);
  expect_unchanged([&] { EXPECT_EQ(store(kB, chain, 3, 3), kUnknownParent); });
  EXPECT_EQ(store(kB, other, 3, 3), kApplied);
}

TEST_P(IndexNamesTest, APositionIsChecked) {
  const Chain chain = chain_of(1, 9);
  const std::vector<StoredBlock> front = chain.blocks(0, 5);
  const std::vector<StoredBlock> back = chain.blocks(5, 4);
  expect_unchanged([&] {
    EXPECT_EQ(store({kA, kDevice, std::nullopt, 1, front}), kWrongPosition);
    EXPECT_EQ(store({kA, kDevice, std::nullopt, UINT32_MAX, front}), kWrongPosition);
  });
  EXPECT_EQ(store({kA, kDevice, std::nullopt, 0, front}), kApplied);
  expect_unchanged([&] {
    for (const std::uint32_t position : {0u, 4u, 6u, UINT32_MAX})
      EXPECT_EQ(store({kA, kDevice, chain.names[4], position, back}), kWrongPosition);
    EXPECT_EQ(store({kA, kDevice, std::nullopt, 5, back}), kWrongPosition);
  });
  EXPECT_EQ(store({kA, kDevice, chain.names[4], 5, back}), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, 9}}));
  EXPECT_EQ(counters().wrong_positions, 7u);
}

TEST_P(IndexNamesTest, AnEventWithoutBlocksIsRefused) {
  const Chain chain = chain_of(1, 3);
  EXPECT_EQ(store({kA, kDevice, std::nullopt, std::nullopt, {}}), kEmpty);
  expect_empty();
  store(kA, chain);
  expect_unchanged([&] {
    EXPECT_EQ(store({kA, kDevice, chain.names[2], 3, {}}), kEmpty);
    EXPECT_EQ(store({kB, kHost, std::nullopt, 0, {}}), kEmpty);
  });
  EXPECT_EQ(counters().empty_stores, 3u);
}

TEST_P(IndexNamesTest, ANumberThatNamesNoTierIsRefused) {
  const Chain chain = chain_of(1, 3);
  for (const int number : {5, 6, 8, 63, 64, 200, 255}) {
    const auto tier = static_cast<StorageTier>(number);
    EXPECT_EQ(store({kA, tier, std::nullopt, std::nullopt, chain.blocks(0, 3)}), StoreVerdict::kUnknownTier);
  }
  expect_empty();
  store(kA, chain, kHost);
  expect_unchanged([&] {
    EXPECT_EQ(store({kB, static_cast<StorageTier>(5), std::nullopt, std::nullopt, chain.blocks(0, 3)}),
              StoreVerdict::kUnknownTier);
    EXPECT_EQ(remove(kA, static_cast<StorageTier>(5), chain.names), 0u);
    EXPECT_EQ(remove(kA, static_cast<StorageTier>(255), chain.names), 0u);
  });
  EXPECT_EQ(counters().unknown_tiers, 8u);
  EXPECT_EQ(counters().unknown_removals, 6u);
}

TEST_P(IndexNamesTest, TheFirstFaultInTheOrderOfVerdictsIsReported) {
  const Chain chain = chain_of(1, 3);
  store(kA, chain);
  const std::vector<StoredBlock> twice = {{LocalHash(1), BlockName(1)}, {LocalHash(2), BlockName(1)}};
  EXPECT_EQ(store({kA, kDevice, BlockName(99), 7, {}}), kEmpty);
  EXPECT_EQ(store({kA, static_cast<StorageTier>(9), BlockName(99), 7, twice}), StoreVerdict::kUnknownTier);
  EXPECT_EQ(store({kA, kDevice, BlockName(99), 7, twice}), kUnknownParent);
  EXPECT_EQ(store({kA, kDevice, chain.names[2], 7, twice}), kWrongPosition);
  EXPECT_EQ(store({kA, kDevice, chain.names[2], 3, twice}), kNameInUse);
  const IndexCounters seen = counters();
  EXPECT_EQ(seen.empty_stores + seen.unknown_parents + seen.wrong_positions + seen.names_in_use, 4u);
  EXPECT_EQ(seen.stored, 3u);
}

TEST_P(IndexNamesTest, ARefusalDoesNotBringAWorkerIntoBeing) {
  store(kA, chain_of(1, 3));
  const IndexSizes before = sizes();
  for (std::uint64_t id = 10; id < 200; ++id) {
    ASSERT_EQ(store(worker_of(id), chain_of(1, 5), 3, 2), kUnknownParent);
    ASSERT_EQ(remove(worker_of(id), chain_of(1, 3)), 0u);
  }
  EXPECT_EQ(sizes(), before);
}

ASHLAR_INDEX_SUITE(IndexNamesTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
