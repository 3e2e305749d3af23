// Lengths and divergences around the sizes at which structures change shape: words, vectors, jumps, segments.
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "index/conformance_suite.h"
#include "support/rounds.h"

namespace ashlar::index::conformance {
namespace {

class IndexBoundariesTest : public IndexTest {};

constexpr std::size_t kDeep = 1000;
const std::vector<std::uint32_t> kBoundaries = {1,   2,   7,   8,   9,   15,  16,  17,  30,  31,
                                                32,  33,  63,  64,  65,  95,  96,  97,  127, 128,
                                                129, 255, 256, 257, 499, 511, 512, 513, 999};

TEST_P(IndexBoundariesTest, ChainsOfEveryLengthAreFound) {
  for (const std::uint32_t length : kBoundaries) {
    const Chain chain = chain_of(length, length + 1);
    ASSERT_EQ(store(kA, chain, 0, length), kApplied);
    for (const std::uint32_t asked : {length - 1, length, length + 1}) {
      Depths expected;
      if (asked > 0) expected[kA] = std::min(asked, length);
      EXPECT_EQ(depths(chain.first(asked)), expected) << length << " stored, " << asked << " asked";
    }
  }
}

TEST_P(IndexBoundariesTest, EventsMayBeCutAnywhere) {
  for (const std::size_t chunk : {1u, 7u, 8u, 10u, 16u, 31u, 32u, 33u, 64u, 100u, 128u, 513u}) {
    const Chain chain = chain_of(chunk, kDeep);
    for (std::size_t from = 0; from < kDeep; from += chunk)
      ASSERT_EQ(store(kA, chain, from, std::min(chunk, kDeep - from)), kApplied);
    ASSERT_EQ(depths(chain), (Depths{{kA, kDeep}}));
    for (std::size_t end = kDeep; end > 0;) {
      const std::size_t count = std::min(chunk, end);
      end -= count;
      ASSERT_EQ(remove(kA, chain, end, count), count);
      if (end % (5 * chunk) == 0 && end > 0) {
        ASSERT_EQ(depths(chain), (Depths{{kA, static_cast<std::uint32_t>(end)}}));
      }
    }
    expect_empty();
  }
}

// One worker per boundary leaves the stem there and goes its own way to the same depth.
TEST_P(IndexBoundariesTest, DivergenceIsFoundWhereItIs) {
  const Chain stem = chain_of(1, kDeep);
  store(worker_of(0), stem);
  Depths along_stem = {{worker_of(0), kDeep}};
  for (const std::uint32_t kept : kBoundaries) {
    ASSERT_EQ(store(worker_of(kept), branch_of(stem, kept, 10 + kept, kDeep)), kApplied);
    along_stem[worker_of(kept)] = kept;
  }
  EXPECT_EQ(depths(stem), along_stem);
  for (const std::uint32_t kept : kBoundaries) {
    const Chain branch = branch_of(stem, kept, 10 + kept, kDeep);
    Depths expected = {{worker_of(0), kept}};
    for (const std::uint32_t other : kBoundaries) expected[worker_of(other)] = std::min(kept, other);
    expected[worker_of(kept)] = kDeep;
    EXPECT_EQ(depths(branch), expected);
    // Nobody has this continuation.
    Depths shared = expected;
    shared[worker_of(kept)] = kept;
    for (auto& [worker, depth] : shared) depth = std::min(depth, kept);
    EXPECT_EQ(depths(branch_of(stem, kept, 5, kDeep)), shared);
  }
}

TEST_P(IndexBoundariesTest, QueriesDivergeFromAStoredChainAnywhere) {
  const Chain stem = chain_of(1, kDeep);
  store(kA, stem);
  store(kB, stem, 0, 600);
  for (const std::uint32_t kept : kBoundaries) {
    Chain query = stem;
    query.locals[kept] = LocalHash(kept);
    EXPECT_EQ(depths(query), (Depths{{kA, kept}, {kB, std::min(kept, 600u)}}));
    EXPECT_EQ(depths(query, true), (Depths{{kA, std::min(kept, 601u)}, {kB, std::min(kept, 600u)}}));
    EXPECT_EQ(exact(), kept < 601);
  }
}

TEST_P(IndexBoundariesTest, TailsAreRemovedDownToEveryBoundary) {
  const Chain chain = chain_of(1, kDeep);
  store(kA, chain);
  store(kB, chain);
  std::size_t length = kDeep;
  for (std::size_t i = kBoundaries.size(); i > 0; --i) {
    const std::uint32_t next = kBoundaries[i - 1];
    ASSERT_EQ(remove(kA, chain, next, length - next), length - next);
    length = next;
    ASSERT_EQ(depths(chain), (Depths{{kA, next}, {kB, kDeep}}));
    ASSERT_EQ(sizes().blocks, kDeep + next);
  }
}

TEST_P(IndexBoundariesTest, AWorkerGrowsThroughAnothersChain) {
  const Chain chain = chain_of(1, kDeep);
  store(kA, chain);
  std::size_t length = 0;
  for (const std::uint32_t next : kBoundaries) {
    ASSERT_EQ(store(kB, chain, length, next - length), kApplied);
    length = next;
    ASSERT_EQ(depths(chain), (Depths{{kA, kDeep}, {kB, next}}));
  }
  EXPECT_EQ(sizes().contents, kDeep);
}

TEST_P(IndexBoundariesTest, AClearedIndexIsRebuilt) {
  const Chain stem = chain_of(1, 300);
  for (int round = 0; round < 4; ++round) {
    Depths expected;
    for (std::uint64_t id = 0; id < 10; ++id) {
      const auto kept = static_cast<std::uint32_t>(30 * (id + 1));
      store(worker_of(id), branch_of(stem, kept, 10 * round + id + 2, 310));
      expected[worker_of(id)] = kept;
    }
    ASSERT_EQ(depths(stem), expected);
    for (std::uint64_t id = 0; id < 10; ++id) clear(worker_of(id));
    expect_empty();
  }
}

// A stem with branches at seeded places, workers with prefixes only, and queries that wander off; then
// without tails.
TEST_P(IndexBoundariesTest, AnOracleAgreesOnRandomQueries) {
  constexpr std::size_t kLength = 1300;
  constexpr std::uint64_t kBranches = 14;
  Random random(42);
  testing::IndexOracle oracle;
  const Chain stem = chain_of(1, kLength);
  std::vector<Chain> chains = {stem};
  const auto store_both = [&](const Worker& worker, const Chain& chain, std::size_t length) {
    const std::vector<StoredBlock> blocks = chain.blocks(0, length);
    const BlocksStored event{worker, kDevice, std::nullopt, 0, blocks};
    ASSERT_EQ(store(event), oracle.store(event));
  };
  store_both(worker_of(0), stem, kLength);
  for (std::uint64_t i = 1; i <= kBranches; ++i) {
    chains.push_back(branch_of(stem, 1 + random.below(kLength - 1), 10 + i, kLength));
    store_both(worker_of(i), chains.back(), kLength);
  }
  for (std::uint64_t i = 0; i < 5; ++i) store_both(worker_of(100 + i), stem, 1 + random.below(kLength));

  MatchScores expected;
  for (int phase = 0; phase < 2; ++phase) {
    for (std::uint64_t i = 0; i < testing::rounds(120); ++i) {
      std::vector<LocalHash> query = chains[random.below(chains.size())].locals;
      if (random.chance(0.4)) query.resize(random.below(kLength + 1));
      if (!query.empty() && random.chance(0.5)) query[random.below(query.size())] = LocalHash(random.next());
      for (const bool early_exit : {false, true}) {
        oracle.find_matches(query, expected, {.early_exit = early_exit});
        ASSERT_EQ(scores(query, early_exit), scores_of(expected));
        ASSERT_EQ(exact(), expected.exact());
      }
    }
    for (std::uint64_t i = 0; i < chains.size(); i += 2) {
      const std::size_t kept = random.below(kLength);
      const std::vector<BlockName> names = chains[i].names_from_the_end(kept, kLength - kept);
      ASSERT_EQ(remove(worker_of(i), kDevice, names), oracle.remove(worker_of(i), kDevice, names));
    }
  }
}

ASHLAR_INDEX_SUITE(IndexBoundariesTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
