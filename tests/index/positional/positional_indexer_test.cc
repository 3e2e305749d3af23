// What PositionalIndexer has beyond the contract of all indexes: options, jumps, entries.
#include "ashlar/index/positional_indexer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "index/chain.h"
#include "support/rounds.h"

namespace ashlar::index {
namespace {

using conformance::branch_of;
using conformance::Chain;
using conformance::chain_of;

constexpr Worker worker_of(std::uint64_t id) {
  return {WorkerId(id), 0};
}

void store(PositionalIndexer& index, std::uint64_t id, const Chain& chain, std::size_t count,
           StorageTier tier = StorageTier::kDevice) {
  const std::vector<StoredBlock> blocks = chain.blocks(0, count);
  ASSERT_EQ(index.store({worker_of(id), tier, std::nullopt, std::nullopt, blocks}), StoreVerdict::kApplied);
}

std::uint32_t depth_of(const PositionalIndexer& index, std::uint64_t id, std::span<const LocalHash> locals) {
  MatchScores scores;
  index.find_matches(locals, scores, {});
  return scores.of(worker_of(id)).value_or(Score{}).depth;
}

TEST(PositionalOptionsTest, ValuesOutOfRangeAreRefused) {
  EXPECT_TRUE(PositionalOptions{}.validate());
  EXPECT_TRUE((PositionalOptions{.jump_size = 1, .shards = 1}.validate()));
  EXPECT_TRUE((PositionalOptions{.jump_size = ~0u, .shards = PositionalOptions::kMaxShards}.validate()));
  for (const PositionalOptions& wrong : {PositionalOptions{.jump_size = 0}, PositionalOptions{.shards = 0},
                                         PositionalOptions{.shards = PositionalOptions::kMaxShards + 1}}) {
    const Result<void> valid = wrong.validate();
    ASSERT_FALSE(valid);
    EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(PositionalIndexer::create(wrong).error(), valid.error());
  }
  EXPECT_TRUE(PositionalIndexer::create({.jump_size = 4}));
}

TEST(PositionalIndexerTest, WorkersThatEndAtEveryDepthHaveTheirDepth) {
  const Chain chain = chain_of(1, 150);
  for (const std::uint32_t jump_size : {1u, 2u, 3u, 8u, 32u, 64u, 149u, 150u, 1000u, ~0u}) {
    PositionalIndexer index = PositionalIndexer::create({.jump_size = jump_size, .shards = 5}).value();
    for (std::uint64_t id = 1; id <= 150; ++id) store(index, id, chain, id);
    MatchScores scores;
    for (const std::size_t length : {1u, 2u, 31u, 32u, 33u, 64u, 65u, 149u, 150u}) {
      index.find_matches(chain.first(length), scores, {});
      for (std::uint64_t id = 1; id <= 150; ++id)
        ASSERT_EQ(scores.of(worker_of(id))->depth, std::min<std::size_t>(id, length))
            << "jump " << jump_size << ", query of " << length;
    }
  }
}

// --- The number of look-ups. ---

// The first block, the last one twice (is there an entry; who holds it), and every jump between them; plus,
// for every depth at which workers end, the halvings of a window.
std::size_t most_lookups(std::size_t depth, std::size_t jump_size, std::size_t ends) {
  return 3 + (depth + jump_size - 1) / jump_size + ends * (std::bit_width(jump_size - 1) + 1);
}

TEST(PositionalLookupsTest, ADepthCostsOneLookupPerJump) {
  constexpr std::size_t kDepth = 4'096;
  const Chain chain = chain_of(1, kDepth);
  const Chain beyond = branch_of(chain, kDepth, 2, 2 * kDepth);
  const Chain other_end = branch_of(chain, kDepth - 1, 3, kDepth);
  for (const std::uint32_t jump_size : {1u, 8u, 32u, 64u, 1'000u, ~0u}) {
    PositionalIndexer index = PositionalIndexer::create({.jump_size = jump_size}).value();
    for (std::uint64_t id = 1; id <= testing::rounds(200); ++id) store(index, id, chain, kDepth);
    const auto lookups_for = [&](std::span<const LocalHash> query, std::size_t shared) {
      EXPECT_EQ(depth_of(index, 1, query), shared) << jump_size;
      return PositionalIndexer::lookups_of_last_find();
    };
    // Everybody holds all of it: the last position tells.
    EXPECT_LE(lookups_for(chain.locals, kDepth), 3u) << jump_size;
    // New content behind what all hold, and one new block in the place of the last.
    EXPECT_LE(lookups_for(beyond.locals, kDepth), most_lookups(2 * kDepth, jump_size, 1)) << jump_size;
    EXPECT_LE(lookups_for(other_end.locals, kDepth - 1), most_lookups(kDepth, jump_size, 1)) << jump_size;
    // A stranger's request: its first block.
    MatchScores scores;
    index.find_matches(chain_of(9, kDepth).locals, scores, {});
    EXPECT_EQ(PositionalIndexer::lookups_of_last_find(), 1u);
  }
}

TEST(PositionalLookupsTest, EveryDepthAtWhichWorkersEndCostsALogarithm) {
  constexpr std::size_t kDepth = 2'048;
  const Chain chain = chain_of(1, kDepth);
  for (const std::uint32_t jump_size : {8u, 32u, 64u}) {
    PositionalIndexer index = PositionalIndexer::create({.jump_size = jump_size}).value();
    Random random(jump_size);
    std::set<std::size_t> ends;
    for (std::uint64_t id = 1; id <= 100; ++id) {
      const std::size_t count = 1 + random.below(kDepth - 1);
      store(index, id, chain, count);
      ends.insert(count);
      MatchScores scores;
      index.find_matches(chain.locals, scores, {});
      ASSERT_LE(PositionalIndexer::lookups_of_last_find(), most_lookups(kDepth, jump_size, ends.size()));
      ASSERT_EQ(scores.of(worker_of(id))->depth, count);
    }
    // Fewer than a walk takes.
    EXPECT_LT(PositionalIndexer::lookups_of_last_find(), kDepth);
  }
}

// A worker with a hole is walked block by block, and only as far as it goes.
TEST(PositionalLookupsTest, AHoleCostsOneLookupPerBlock) {
  constexpr std::size_t kDepth = 1'024;
  const Chain chain = chain_of(1, kDepth);
  PositionalIndexer index = PositionalIndexer::create({.jump_size = 32}).value();
  store(index, 1, chain, kDepth);
  const BlockName gone = chain.names[500];
  ASSERT_EQ(index.remove(worker_of(1), StorageTier::kDevice, std::span(&gone, 1)), 1u);
  EXPECT_EQ(depth_of(index, 1, chain.locals), 500u);
  EXPECT_GE(PositionalIndexer::lookups_of_last_find(), 500u);
  EXPECT_LE(PositionalIndexer::lookups_of_last_find(), 506u);
}

// A jump lands on the right block at the right position, but another path led there.
TEST(PositionalIndexerTest, TheSameBlockBehindAnotherPrefixIsNoMatch) {
  const Chain chain = chain_of(1, 100);
  for (const std::uint32_t jump_size : {1u, 8u, 32u, 99u}) {
    PositionalIndexer index = PositionalIndexer::create({.jump_size = jump_size}).value();
    store(index, 1, chain, 100);
    for (std::size_t changed = 0; changed < 100; ++changed) {
      std::vector<LocalHash> query = chain.locals;
      query[changed] = LocalHash(query[changed].value() + 1);
      ASSERT_EQ(depth_of(index, 1, query), changed) << "jump " << jump_size;
    }
  }
}

TEST(PositionalIndexerTest, EntriesAreSharedWherePrefixesMeetInOneBlock) {
  PositionalIndexer index;
  const IndexSizes empty = index.sizes();
  Chain left = chain_of(1, 40);
  Chain right = chain_of(2, 40);
  std::copy(left.locals.begin() + 10, left.locals.end(), right.locals.begin() + 10);
  store(index, 1, left, 40);
  EXPECT_EQ(index.sizes().nodes, 40u);
  store(index, 2, right, 40);
  EXPECT_EQ(index.sizes().contents, 80u);
  EXPECT_EQ(index.sizes().nodes, 50u);
  EXPECT_EQ(depth_of(index, 1, left.locals), 40u);
  EXPECT_EQ(depth_of(index, 2, left.locals), 0u);
  EXPECT_EQ(depth_of(index, 2, right.locals), 40u);
  EXPECT_EQ(index.remove(worker_of(1), StorageTier::kDevice, left.names), 40u);
  EXPECT_EQ(index.sizes().contents, 40u);
  EXPECT_EQ(index.sizes().nodes, 40u);
  EXPECT_EQ(depth_of(index, 2, right.locals), 40u);
  EXPECT_EQ(index.remove(worker_of(2), StorageTier::kDevice, right.names), 40u);
  EXPECT_EQ(index.sizes(), empty);
}

// Holes make a worker one that is walked; when they are closed, or what lies behind them goes, it jumps
// again. The answer is the same.
TEST(PositionalIndexerTest, HolesComeAndGo) {
  const Chain chain = chain_of(1, 80);
  PositionalIndexer index = PositionalIndexer::create({.jump_size = 16}).value();
  store(index, 1, chain, 80);
  store(index, 2, chain, 60);
  for (std::size_t hole = 0; hole < 80; hole += 7) {
    EXPECT_EQ(index.remove(worker_of(1), StorageTier::kDevice, std::span(chain.names).subspan(hole, 1)), 1u);
    EXPECT_EQ(depth_of(index, 1, chain.locals), hole);
    EXPECT_EQ(depth_of(index, 2, chain.locals), 60u);
    store(index, 1, chain, hole + 1);
    EXPECT_EQ(depth_of(index, 1, chain.locals), 80u);
  }
  index.remove(worker_of(1), StorageTier::kDevice, std::span(chain.names).subspan(40, 1));
  EXPECT_EQ(index.sizes().blocks, 79u + 60);
  index.remove(worker_of(1), StorageTier::kDevice, std::span(chain.names).subspan(41));
  EXPECT_EQ(depth_of(index, 1, chain.locals), 40u);
  EXPECT_EQ(index.sizes().blocks, 40u + 60);
}

TEST(PositionalIndexerTest, AMovedIndexGoesOn) {
  const Chain chain = chain_of(1, 10);
  PositionalIndexer index;
  store(index, 1, chain, 10);
  PositionalIndexer other = std::move(index);
  EXPECT_EQ(depth_of(other, 1, chain.locals), 10u);
}

}  // namespace
}  // namespace ashlar::index
