// What FlashIndex promises beyond the contract of all indexes: batches, limits, and readers that are held up.
#include "ashlar/index/flash_index.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/index_oracle.h"
#include "ashlar/testing/interleaving.h"
#include "chain.h"

namespace ashlar::index::conformance {
namespace {

constexpr const char* kAtBranch = "find.at_branch";

Worker worker(std::uint64_t id) {
  return {WorkerId(id), 0};
}

template <class Index>
StoreVerdict store(Index& index, const Worker& worker, const Chain& chain,
                   StorageTier tier = StorageTier::kDevice) {
  return index.store({worker, tier, {}, {}, chain.blocks(0, chain.size())});
}

template <class Index>
void remove(Index& index, const Worker& worker, const Chain& chain, StorageTier tier = StorageTier::kDevice) {
  index.remove(worker, tier, chain.names_from_the_end(0, chain.size()));
}

void expect_equal(const MatchScores& left, const MatchScores& right) {
  EXPECT_EQ(left.exact(), right.exact());
  ASSERT_EQ(left.matched(), right.matched());
  left.for_each([&](const Worker& worker, const Score& score) { EXPECT_EQ(right.of(worker), score); });
}

// --- Batches. ---

class FlashBatchTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(FlashBatchTest, AnswersAsSingleQueriesDo) {
  Random random(GetParam() + 1);
  FlashIndex index;
  std::vector<Chain> chains;
  const Chain stem = chain_of(1, 150);
  for (std::uint64_t i = 0; i < 12; ++i) {
    chains.push_back(branch_of(stem, random.below(150), 10 + i, 40 + random.below(260)));
    ASSERT_EQ(store(index, worker(i % 5), chains.back()), StoreVerdict::kApplied);
  }
  std::vector<std::vector<LocalHash>> lists;
  for (std::size_t q = 0; q < GetParam(); ++q) {
    const Chain& chain = chains[random.below(chains.size())];
    std::vector<LocalHash> list(chain.locals.begin(), chain.locals.end());
    list.resize(random.below(3) == 0 ? 0 : random.below(list.size() + 1));
    if (random.below(2) == 0) list.insert(list.end(), 20, LocalHash(random.next()));
    if (random.below(5) == 0) list.clear();
    lists.push_back(std::move(list));
  }
  const std::vector<std::span<const LocalHash>> queries(lists.begin(), lists.end());
  for (const bool early_exit : {false, true}) {
    std::vector<MatchScores> together(GetParam());
    index.find_matches(queries, together, {.early_exit = early_exit});
    for (std::size_t q = 0; q < GetParam(); ++q) {
      MatchScores alone;
      index.find_matches(queries[q], alone, {.early_exit = early_exit});
      expect_equal(together[q], alone);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, FlashBatchTest, ::testing::Values(0, 1, 2, 7, 8, 9, 40));

// --- Limits. ---

TEST(FlashIndexTest, OneWorkerTooManyIsRefusedAndNothingOfItIsLeft) {
  FlashIndex index({.max_workers = 3});
  const Chain chain = chain_of(1, 70);
  for (std::uint64_t id = 1; id <= 3; ++id)
    ASSERT_EQ(store(index, worker(id), chain), StoreVerdict::kApplied);
  EXPECT_EQ(store(index, worker(4), chain), StoreVerdict::kFull);
  EXPECT_EQ(index.counters().full, 1u);
  EXPECT_EQ(index.sizes().workers, 3u);
  index.clear(worker(2));
  EXPECT_EQ(store(index, worker(4), chain), StoreVerdict::kApplied);
  EXPECT_EQ(store(index, worker(2), chain), StoreVerdict::kFull);
}

// Workers that hold nothing any more, or never did, keep no place; nobody has to ask for sizes() for that.
TEST(FlashIndexTest, WorkersThatHoldNothingMakeRoom) {
  FlashIndex index({.max_workers = 4});
  const Chain chain = chain_of(1, 70);
  const Chain other = chain_of(2, 3);
  for (std::uint64_t id = 1; id <= 100; ++id) {
    ASSERT_EQ(store(index, worker(id), chain), StoreVerdict::kApplied) << id;
    remove(index, worker(id), chain);
    Chain twice = other;
    twice.names[2] = twice.names[0];
    ASSERT_EQ(store(index, worker(1000 + id), twice), StoreVerdict::kNameInUse) << id;
  }
}

// Each worker has some blocks in a lower tier, so that no bitset decides.
TEST(FlashIndexTest, ManyWorkersWithLowerTiers) {
  FlashIndex index;
  testing::IndexOracle oracle;
  Random random(3);
  const Chain stem = chain_of(1, 200);
  const auto both = [&](const BlocksStored& event) { ASSERT_EQ(index.store(event), oracle.store(event)); };
  for (std::uint64_t id = 1; id <= 150; ++id) {
    const std::size_t length = 1 + random.below(200);
    both({worker(id), StorageTier::kHost, {}, {}, stem.blocks(0, length)});
    both({worker(id), StorageTier::kDevice, {}, {}, stem.blocks(0, random.below(length) + 1)});
    const std::size_t gone = random.below(length);
    const std::array<BlockName, 1> name = {stem.names[gone]};
    const StorageTier tier = random.below(2) == 0 ? StorageTier::kHost : StorageTier::kDevice;
    ASSERT_EQ(index.remove(worker(id), tier, name), oracle.remove(worker(id), tier, name));
  }
  for (const std::size_t depth : {1u, 63u, 64u, 65u, 130u, 200u}) {
    MatchScores ours;
    MatchScores expected;
    index.find_matches(stem.first(depth), ours);
    oracle.find_matches(stem.first(depth), expected);
    expect_equal(ours, expected);
  }
}

// --- Readers that are held up. ---

class StalledReaderTest : public ::testing::Test {
 protected:
  static constexpr std::size_t kStem = 64;

  // Two branches, so that a query of either looks for its child; it is held there.
  void SetUp() override {
    ASSERT_EQ(store(index_, worker(1), left_), StoreVerdict::kApplied);
    ASSERT_EQ(store(index_, worker(2), right_), StoreVerdict::kApplied);
  }
  std::jthread query(const Chain& chain) {
    return std::jthread([this, &chain] { index_.find_matches(chain.locals, scores_); });
  }
  // Makes and frees nodes until eras have ended.
  void churn(int rounds) {
    const Chain passing = chain_of(99, 2'000);
    for (int i = 0; i < rounds; ++i) {
      store(index_, worker(9), passing);
      remove(index_, worker(9), passing);
    }
  }
  std::uint32_t depth_of(const Worker& worker) const {
    const std::optional<Score> score = scores_.of(worker);
    return score ? score->depth : 0;
  }

  testing::Interleaving order_;
  FlashIndex index_;
  MatchScores scores_;
  const Chain stem_ = chain_of(1, kStem);
  const Chain left_ = branch_of(stem_, kStem, 2, 300);
  const Chain right_ = branch_of(stem_, kStem, 3, 300);
};

TEST_F(StalledReaderTest, HoldsBackABoundedNumberOfBytesAndNoWriter) {
  const std::size_t alive = index_.sizes().bytes;
  order_.pause_at(kAtBranch);
  {
    const std::jthread reader = query(left_);
    order_.wait_until_paused(kAtBranch);
    std::size_t most = 0;
    for (int i = 0; i < 400; ++i) {
      churn(1);
      most = std::max(most, index_.waiting_bytes());
    }
    // What was alive when it stalled, two batches of 256 KiB, and their last objects.
    EXPECT_LE(most, alive + 2 * (std::size_t{256} << 10) + (std::size_t{64} << 10));
    EXPECT_GT(most, 0u);
    EXPECT_LE(index_.sizes().waiting_bytes, alive + (std::size_t{256} << 10));
    order_.resume(kAtBranch);
  }
  EXPECT_EQ(depth_of(worker(1)), 300u);
  EXPECT_EQ(index_.sizes().waiting_bytes, 0u);
  EXPECT_EQ(index_.waiting_bytes(), 0u);
}

TEST_F(StalledReaderTest, StartsAgainWhenItsEraIsOver) {
  order_.pause_at(kAtBranch);
  {
    const std::jthread reader = query(left_);
    order_.wait_until_paused(kAtBranch);
    remove(index_, worker(1), left_);
    churn(20);
    const std::size_t before = order_.passes(kAtBranch);
    ASSERT_EQ(store(index_, worker(1), left_), StoreVerdict::kApplied);
    order_.resume(kAtBranch);
    order_.wait_until_passed(kAtBranch, before + 1);
  }
  EXPECT_EQ(depth_of(worker(1)), 300u);
  EXPECT_EQ(depth_of(worker(2)), kStem);
}

// Eight eras end under it, one after the other: then it reads under the writers' lock.
TEST_F(StalledReaderTest, TakesTheLockAfterEightEras) {
  std::vector<testing::Interleaving::Pause> pauses;
  for (int i = 0; i < 8; ++i) pauses.push_back(order_.pause_at(kAtBranch));
  {
    const std::jthread reader = query(left_);
    for (const testing::Interleaving::Pause pause : pauses) {
      order_.wait_until_paused(pause);
      churn(20);
      order_.resume(pause);
    }
  }
  EXPECT_EQ(order_.passes(kAtBranch), 9u);
  EXPECT_EQ(depth_of(worker(1)), 300u);
}

// A reader has counted a node and looks for the child. Meanwhile the node goes, and other content takes its memory and
// whatever identified it, with a child that begins as the reader's query goes on.
TEST_F(StalledReaderTest, NeverCreditsAPathWithTheBlocksOfAnother) {
  const Chain old_stem = chain_of(40, 64);
  const Chain wanted = branch_of(old_stem, 64, 41, 80);
  ASSERT_EQ(store(index_, worker(5), branch_of(old_stem, 64, 42, 80)), StoreVerdict::kApplied);
  ASSERT_EQ(store(index_, worker(5), branch_of(old_stem, 64, 43, 80)), StoreVerdict::kApplied);
  order_.pause_at("find.before_child");
  {
    const std::jthread reader = query(wanted);
    order_.wait_until_paused("find.before_child");
    index_.remove(worker(5), StorageTier::kDevice,
                  branch_of(old_stem, 64, 42, 80).names_from_the_end(64, 16));
    remove(index_, worker(5), branch_of(old_stem, 64, 43, 80));
    Chain other = chain_of(50, 64);
    other.locals.insert(other.locals.end(), wanted.locals.begin() + 64, wanted.locals.end());
    other.names.insert(other.names.end(), wanted.names.begin() + 64, wanted.names.end());
    ASSERT_EQ(store(index_, worker(5), other), StoreVerdict::kApplied);
    ASSERT_EQ(store(index_, worker(5), branch_of(other, 64, 52, 80)), StoreVerdict::kApplied);
    order_.resume("find.before_child");
  }
  EXPECT_EQ(depth_of(worker(5)), 64u);
}

}  // namespace
}  // namespace ashlar::index::conformance
