// A worker that is cleared: out of every answer at once, while its blocks are still on their way out, and
// nobody waits.
#include <gtest/gtest.h>

#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/interleaving.h"
#include "index/chain.h"

namespace ashlar::index::clearing {
namespace {

using conformance::Chain;
using conformance::chain_of;
using testing::Interleaving;

constexpr const char* kRetired = "index.retired";

Worker worker(std::uint64_t id, std::uint32_t rank = 0) {
  return {WorkerId(id), rank};
}

template <class Index>
class ClearingTest : public ::testing::Test {
 protected:
  void store(const Worker& who, const Chain& chain, std::size_t count) {
    const std::vector<StoredBlock> blocks = chain.blocks(0, count);
    ASSERT_EQ(index_.store({who, StorageTier::kDevice, std::nullopt, std::nullopt, blocks}),
              StoreVerdict::kApplied);
  }
  std::uint32_t depth(const Worker& who, const Chain& chain, bool early_exit = false) {
    MatchScores scores;
    index_.find_matches(chain.locals, scores, {.early_exit = early_exit});
    scores.for_each([](const Worker& matched, const Score&) { EXPECT_NE(matched.id, WorkerId(0)); });
    const auto score = scores.of(who);
    return score ? score->depth : 0;
  }

  Interleaving order_;
  Index index_;
};
using Structures = ::testing::Types<ConcurrentRadixTree, PositionalIndexer>;
TYPED_TEST_SUITE(ClearingTest, Structures);

TYPED_TEST(ClearingTest, AClearedWorkerIsOutOfAnswersAndInNobodysWay) {
  const Chain chain = chain_of(1, 200);
  this->store(worker(1), chain, 200);
  this->store(worker(2), chain, 150);
  this->order_.pause_at(kRetired);
  std::thread clearing([this] { this->index_.clear(worker(1)); });
  this->order_.wait_until_paused(kRetired);
  for (const bool early_exit : {false, true}) EXPECT_EQ(this->depth(worker(1), chain, early_exit), 0u);
  EXPECT_EQ(this->depth(worker(2), chain), 150u);
  EXPECT_EQ(this->index_.sizes().workers, 1u);
  // Others come, go and write; the worker itself may come back.
  this->store(worker(3), chain, 20);
  this->index_.clear(worker(4));
  this->store(worker(1), chain, 30);
  EXPECT_EQ(this->depth(worker(1), chain), 30u);
  EXPECT_EQ(this->index_.remove(worker(3), StorageTier::kDevice, chain.names_from_the_end(0, 20)), 20u);
  testing::IndexOracle meanwhile;
  this->index_.dump(meanwhile);
  EXPECT_EQ(meanwhile.sizes().workers, 2u);
  EXPECT_EQ(meanwhile.sizes().blocks, 180u);
  this->order_.resume(kRetired);
  clearing.join();
  EXPECT_EQ(this->depth(worker(1), chain), 30u);
  EXPECT_EQ(this->depth(worker(2), chain), 150u);
  EXPECT_EQ(this->index_.sizes().workers, 2u);
  EXPECT_EQ(this->index_.sizes().blocks, 180u);
  EXPECT_EQ(this->index_.sizes().contents, 150u);
}

TYPED_TEST(ClearingTest, AWorkerWithManyRanksIsRemovedWhole) {
  const IndexSizes empty = this->index_.sizes();
  const Chain chain = chain_of(1, 70);
  for (std::uint32_t rank = 0; rank < 700; ++rank) this->store(worker(1, rank), chain, 1 + rank % 70);
  this->store(worker(2), chain, 70);
  this->order_.pause_at(kRetired);
  std::thread removing([this] { this->index_.remove_worker(WorkerId(1)); });
  this->order_.wait_until_paused(kRetired);
  EXPECT_EQ(this->index_.sizes().workers, 1u);
  EXPECT_EQ(this->depth(worker(1, 69), chain), 0u);
  this->store(worker(1, 69), chain, 3);
  this->order_.resume(kRetired);
  removing.join();
  EXPECT_EQ(this->depth(worker(1, 69), chain), 3u);
  EXPECT_EQ(this->depth(worker(2), chain), 70u);
  EXPECT_EQ(this->index_.sizes().blocks, 73u);
  this->index_.remove_worker(WorkerId(1));
  this->index_.clear(worker(2));
  EXPECT_EQ(this->index_.sizes(), empty);
}

}  // namespace
}  // namespace ashlar::index::clearing
