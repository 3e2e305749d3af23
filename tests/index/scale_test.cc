// Shapes that break structures which recurse, scan or reserve: very deep, very wide, very many.
#include <gtest/gtest.h>

#include "ashlar/base/random.h"
#include "index/conformance_suite.h"
#include "support/sanitizers.h"

namespace ashlar::index::conformance {
namespace {

class IndexScaleTest : public IndexTest {};

constexpr std::uint32_t kVeryDeep = 100'000;
constexpr std::uint64_t kWide = testing::kSanitized ? 5'000 : 20'000;  // depth breaks the stack; width, time

TEST_P(IndexScaleTest, ADeepChainIsRemovedFromTheEnd) {
  const Chain chain = chain_of(1, kVeryDeep);
  ASSERT_EQ(store(kA, chain), kApplied);
  ASSERT_EQ(store(kB, chain, 0, kVeryDeep / 2), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, kVeryDeep}, {kB, kVeryDeep / 2}}));
  EXPECT_EQ(sizes().contents, kVeryDeep);
  EXPECT_EQ(remove(kA, chain), kVeryDeep);
  EXPECT_EQ(depths(chain), (Depths{{kB, kVeryDeep / 2}}));
  EXPECT_EQ(remove(kB, chain, 0, kVeryDeep / 2), kVeryDeep / 2);
  expect_empty();
}

TEST_P(IndexScaleTest, ADeepChainIsClearedAtOnce) {
  const Chain chain = chain_of(1, kVeryDeep);
  for (std::size_t from = 0; from < kVeryDeep; from += 1000)
    ASSERT_EQ(store(kA, chain, from, 1000), kApplied);
  EXPECT_EQ(depths(chain), (Depths{{kA, kVeryDeep}}));
  clear(kA);
  expect_empty();
}

TEST_P(IndexScaleTest, ADeepTreeOfShortRunsIsClearedAtOnce) {
  // A branch of one block at every tenth position: nothing is long enough to hide in one node.
  const Chain stem = chain_of(1, 20'000);
  store(kA, stem);
  for (std::size_t kept = 10; kept < stem.size(); kept += 10) {
    const StoredBlock block{LocalHash(kept), BlockName(kept)};
    ASSERT_EQ(store({kA, kDevice, stem.names[kept - 1], std::nullopt, {&block, 1}}), kApplied);
  }
  EXPECT_EQ(sizes().contents, 20'000u + 1999);
  EXPECT_EQ(depths(stem), (Depths{{kA, 20'000}}));
  remove_worker(1);
  expect_empty();
}

TEST_P(IndexScaleTest, ADeepChainIsDroppedWithItsIndex) {
  const std::unique_ptr<AnyIndex> other = GetParam().make();
  const std::vector<StoredBlock> blocks = chain_of(1, kVeryDeep).blocks(0, kVeryDeep);
  other->store({kA, kDevice, std::nullopt, std::nullopt, blocks});
  other->settle();
  EXPECT_EQ(other->sizes().blocks, kVeryDeep);
}

TEST_P(IndexScaleTest, ABlockHasManyChildren) {
  const Chain stem = chain_of(1, 4);
  for (const Worker& worker : {kA, kB, kC}) store(worker, stem);
  for (std::uint64_t i = 0; i < kWide; ++i) {
    const std::vector<StoredBlock> blocks = {{LocalHash(i), BlockName(2 * i)},
                                             {LocalHash(7), BlockName(2 * i + 1)}};
    ASSERT_EQ(store({worker_of(1 + i % 3), kDevice, stem.names[3], 4, blocks}), kApplied);
  }
  EXPECT_EQ(sizes().contents, 4 + 2 * kWide);
  std::vector<LocalHash> query = stem.locals;
  query.resize(6, LocalHash(7));
  for (std::uint64_t i = 0; i < kWide; i += 97) {
    query[4] = LocalHash(i);
    Depths expected = {{kA, 4}, {kB, 4}, {kC, 4}};
    expected[worker_of(1 + i % 3)] = 6;
    ASSERT_EQ(depths(query), expected);
  }
  query[4] = LocalHash(kWide);
  EXPECT_EQ(depths(query), (Depths{{kA, 4}, {kB, 4}, {kC, 4}}));
  for (std::uint64_t i = 0; i < kWide; ++i) {
    const std::uint64_t child = (i * 7919) % kWide;
    const std::vector<BlockName> names = {BlockName(2 * child + 1), BlockName(2 * child)};
    ASSERT_EQ(remove(worker_of(1 + child % 3), kDevice, names), 2u);
  }
  EXPECT_EQ(counted(sizes()), (IndexSizes{3, 12, 4, 0, 0, 0}));
  for (const Worker& worker : {kA, kB, kC}) EXPECT_EQ(remove(worker, stem), 4u);
  expect_empty();
}

TEST_P(IndexScaleTest, AnIndexHasManyFirstBlocks) {
  for (std::uint64_t i = 0; i < kWide; ++i) {
    const StoredBlock block{LocalHash(i << 20), BlockName(i)};
    ASSERT_EQ(store({worker_of(i % 100), kDevice, std::nullopt, 0, {&block, 1}}), kApplied);
  }
  for (std::uint64_t i = 0; i < kWide; i += 331) {
    const LocalHash local(i << 20);
    ASSERT_EQ(depths(std::span(&local, 1)), (Depths{{worker_of(i % 100), 1}}));
  }
  for (std::uint64_t id = 0; id < 100; ++id) clear(worker_of(id));
  expect_empty();
}

// Tables grow and shrink several times.
TEST_P(IndexScaleTest, ManySequencesComeAndGo) {
  constexpr std::uint64_t kSequences = 2000;
  constexpr std::uint64_t kLive = 500;
  const auto sequence = [](std::uint64_t i) { return branch_of(chain_of(1 + i % 4, 16), 16, 100 + i, 48); };
  for (std::uint64_t i = 0; i < kSequences; ++i) {
    ASSERT_EQ(store(worker_of(i % 32), sequence(i)), kApplied);
    if (i >= kLive) {
      ASSERT_EQ(remove(worker_of((i - kLive) % 32), sequence(i - kLive), 16, 32), 32u);
    }
    if (i % 250 == 0) {
      ASSERT_EQ(depths(sequence(i)).at(worker_of(i % 32)), 48u);
    }
  }
  EXPECT_EQ(counted(sizes()), (IndexSizes{32, kLive * 32 + 32 * 16, kLive * 32 + 4 * 16, 0, 0, 0}));
  for (std::uint64_t id = 0; id < 32; ++id) clear(worker_of(id));
  expect_empty();
}

ASHLAR_INDEX_SUITE(IndexScaleTest, all_index_cases);

}  // namespace
}  // namespace ashlar::index::conformance
