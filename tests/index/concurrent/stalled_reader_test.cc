// Readers of a FlashIndex that are held up in the middle of a query.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <thread>
#include <vector>

#include "../chain.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/testing/interleaving.h"

namespace ashlar::index::conformance {
namespace {

constexpr const char* kAtBranch = "find.at_branch";

Worker worker(std::uint64_t id) {
  return {WorkerId(id), 0};
}

StoreVerdict store(FlashIndex& index, const Worker& worker, const Chain& chain) {
  return index.store({worker, StorageTier::kDevice, {}, {}, chain.blocks(0, chain.size())});
}

void remove(FlashIndex& index, const Worker& worker, const Chain& chain) {
  index.remove(worker, StorageTier::kDevice, chain.names_from_the_end(0, chain.size()));
}

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

// A worker that starts anew again and again takes a place of its own only while a reader may still know the
// old one.
TEST_F(StalledReaderTest, HoldsBackNoWorkerThatStartsAnew) {
  FlashIndex small({.max_workers = 3});
  ASSERT_EQ(store(small, worker(1), left_), StoreVerdict::kApplied);
  ASSERT_EQ(store(small, worker(2), right_), StoreVerdict::kApplied);
  order_.pause_at(kAtBranch);
  {
    const std::jthread reader([&] { small.find_matches(left_.locals, scores_); });
    order_.wait_until_paused(kAtBranch);
    for (int i = 0; i < 70'000; ++i) {
      small.clear(worker(3));
      ASSERT_EQ(store(small, worker(3), stem_), StoreVerdict::kApplied) << i;
    }
    order_.resume(kAtBranch);
  }
  EXPECT_EQ(depth_of(worker(1)), 300u);
  EXPECT_LE(scores_.slots(), 1'000u);
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

// A reader has counted a node and looks for the child. Meanwhile the node goes, and other content takes its
// memory and whatever identified it, with a child that begins as the reader's query goes on.
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
