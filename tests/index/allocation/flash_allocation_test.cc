#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/flash_index.h"
#include "support/counted_new.h"

namespace ashlar::index {
namespace {

constexpr std::size_t kDepth = 512;

struct Sequence {
  std::vector<StoredBlock> blocks;
  std::vector<LocalHash> locals;
  std::vector<BlockName> backwards;

  // The first half is the same in all of them.
  explicit Sequence(std::uint64_t number) {
    for (std::size_t i = 0; i < kDepth; ++i) {
      Random random((i < kDepth / 2 ? 0 : number) * 1'000'003 + i);
      locals.emplace_back(random.next());
      blocks.push_back({locals.back(), BlockName(random.next())});
      backwards.insert(backwards.begin(), blocks.back().name);
    }
  }
};

class FlashAllocationTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (std::uint64_t i = 0; i < 40; ++i) {
      sequences_.emplace_back(i + 1);
      store(i);
    }
  }
  Worker worker(std::uint64_t i) const { return {WorkerId(i % 20), 0}; }
  void store(std::uint64_t i) {
    index_.store({worker(i), StorageTier::kDevice, {}, {}, sequences_[i].blocks});
  }

  FlashIndex index_;
  std::vector<Sequence> sequences_;
};

TEST_F(FlashAllocationTest, ASecondQueryAllocatesNothing) {
  MatchScores scores;
  std::vector<MatchScores> several(9);
  std::vector<std::span<const LocalHash>> queries;
  for (std::size_t i = 0; i < several.size(); ++i) queries.emplace_back(sequences_[i].locals);
  const auto ask = [&] {
    for (const Sequence& sequence : sequences_) index_.find_matches(sequence.locals, scores);
    for (const Sequence& sequence : sequences_)
      index_.find_matches(sequence.locals, scores, {.early_exit = true});
    index_.find_matches(queries, several);
  };
  ask();
  const std::size_t before = g_allocations;
  ask();
  EXPECT_EQ(g_allocations, before);
}

TEST_F(FlashAllocationTest, StoringWhatIsThereAllocatesNothing) {
  for (std::uint64_t i = 0; i < sequences_.size(); ++i) store(i);
  const std::size_t before = g_allocations;
  for (std::uint64_t i = 0; i < sequences_.size(); ++i) store(i);
  EXPECT_EQ(g_allocations, before);
}

// Content that comes and goes lives in slabs: some allocations per thousand blocks, for slabs, sets of owners
// and retired objects.
TEST_F(FlashAllocationTest, ChurnAllocatesSeldom) {
  const auto churn = [&](int rounds) {
    for (int round = 0; round < rounds; ++round)
      for (std::uint64_t i = 0; i < sequences_.size(); ++i) {
        index_.remove(worker(i), StorageTier::kDevice, std::span(sequences_[i].backwards).first(kDepth / 2));
        store(i);
      }
  };
  churn(5);
  const std::size_t before = g_allocations;
  churn(5);
  const std::size_t blocks = 5 * sequences_.size() * kDepth / 2;
  EXPECT_LE((g_allocations - before) * 1'000, blocks * 8);
}

// 16 bytes for hash and name, one for the node, and a cell of the name table, which is between 41% and 81%
// full; shared blocks cost a bit or two per worker.
TEST(FlashMemoryTest, BytesPerBlockStayWithinTheFormula) {
  for (const std::uint64_t sequences : {488u, 512u, 635u}) {
    FlashIndex index;
    for (std::uint64_t i = 0; i < sequences; ++i) {
      std::vector<StoredBlock> blocks;
      for (std::size_t k = 0; k < 1024; ++k) {
        Random random((k < 256 ? i % 4 : 100 + i) * 1'000'003 + k);
        blocks.push_back({LocalHash(random.next()), BlockName(random.next())});
      }
      ASSERT_EQ(index.store({{WorkerId(i % 128), 0}, StorageTier::kDevice, {}, {}, blocks}),
                StoreVerdict::kApplied);
    }
    const IndexSizes sizes = index.sizes();
    EXPECT_LE(static_cast<double>(sizes.bytes) / static_cast<double>(sizes.contents), 17.5 + 8 / 0.40 + 2)
        << sequences;
  }
}

// Sequences of `depth` blocks, a worker each.
void fill(FlashIndex& index, std::uint64_t sequences, std::size_t depth, std::size_t event_size) {
  for (std::uint64_t i = 0; i < sequences; ++i) {
    const Worker worker{WorkerId(i % 16), 0};
    std::vector<StoredBlock> blocks;
    for (std::size_t k = 0; k < depth; ++k) {
      Random random((100 + i) * 1'000'003 + k);
      blocks.push_back({LocalHash(random.next()), BlockName(random.next())});
    }
    for (std::size_t k = 0; k < depth; k += event_size) {
      const auto event = std::span(blocks).subspan(k, event_size);
      const auto parent = k == 0 ? std::optional<BlockName>() : blocks[k - 1].name;
      ASSERT_EQ(index.store({worker, StorageTier::kDevice, parent, {}, event}), StoreVerdict::kApplied);
    }
  }
}

// What the expected blocks need is there from the start, and stays when they go.
TEST(FlashSizedTest, StoresGrowNothing) {
  constexpr std::uint64_t kSequences = 200;
  constexpr std::size_t kLength = 1'024;
  for (const std::size_t event_size : {kLength, kLength / 64}) {
    FlashIndex index({.expected_blocks = kSequences * kLength});
    fill(index, 1, 64, 64);  // a worker, the directory of edges
    const std::size_t empty = index.sizes().bytes;
    EXPECT_LE(empty, kSequences * kLength * 35);
    const std::size_t before = g_allocations;
    fill(index, kSequences, kLength, event_size);
    // The sequences of fill() itself, workers, edges and a few pages of names that outgrew their room.
    EXPECT_LE(g_allocations - before, kSequences * 16);
    const IndexSizes full = index.sizes();
    EXPECT_EQ(full.contents, kSequences * kLength);
    EXPECT_LE(full.bytes, empty + empty / 16) << event_size;
    for (std::uint64_t w = 0; w < 16; ++w) index.remove_worker(WorkerId(w));
    EXPECT_GE(index.sizes().bytes, empty - empty / 64);
    fill(index, kSequences, kLength, event_size);
    EXPECT_LE(index.sizes().bytes, empty + empty / 16) << event_size;
  }
}

// More than expected, and much less.
TEST(FlashSizedTest, AnyNumberMayCome) {
  for (const std::size_t expected : {1u, 100u, 70'000u}) {
    FlashIndex index({.expected_blocks = expected});
    fill(index, 60, 512, 32);
    EXPECT_EQ(index.sizes().contents, 60u * 512u) << expected;
  }
}

}  // namespace
}  // namespace ashlar::index
