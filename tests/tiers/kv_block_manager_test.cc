#include "ashlar/tiers/kv_block_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "support/gates.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"

namespace ashlar::tiers {
namespace {

using events::G1;
using events::G2;
using events::G3;
using tokens::SequenceHash;

constexpr events::TierId kG1 = events::kTierId<G1>;
constexpr events::TierId kG2 = events::kTierId<G2>;
constexpr events::TierId kG3 = events::kTierId<G3>;

class KvBlockManagerTest : public ::testing::Test {
 protected:
  KvOptions options() const { return KvWorkload::options(folder_.file("g3"), faults_); }
  void open() { kv_ = KvBlockManager::create(options()).value(); }

  static std::vector<SequenceHash> sequence(std::uint64_t number, std::size_t blocks) {
    return KvWorkload::sequence(number, blocks);
  }
  std::optional<KvWorkload::Table> request(const std::vector<SequenceHash>& hashes) {
    int wrong = 0;
    auto table = KvWorkload(*kv_).request(hashes, &wrong);
    EXPECT_EQ(wrong, 0);
    return table;
  }
  void expect_right(const KvWorkload::Table& table, const std::vector<SequenceHash>& hashes) {
    EXPECT_TRUE(KvWorkload(*kv_).right(table, hashes));
  }
  void expect_counts_exact() {
    kv_->drain();
    EXPECT_EQ(kv_->g1().available_blocks(), 8u);
    EXPECT_EQ(kv_->g2()->available_blocks(), 12u);
    EXPECT_EQ(kv_->g3()->available_blocks(), 40u);
    kv_->g1().check_invariants();
    kv_->g2()->check_invariants();
    kv_->g3()->check_invariants();
  }

  ScratchFolder folder_;
  std::atomic<int> error_{0};
  std::shared_ptr<ScriptedFaults> faults_ =
      std::make_shared<ScriptedFaults>([this](storage::IoDirection, std::uint64_t, std::uint64_t) {
        return storage::IoVerdict{.error = error_.load()};
      });
  std::unique_ptr<KvBlockManager> kv_;
};

TEST_F(KvBlockManagerTest, BlocksGoDownByThemselvesAndComeUpWhenTheyAreNeeded) {
  open();
  const auto hashes = sequence(1, 5);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG1, 0, 5}}));
  EXPECT_EQ(kv_->reset(kG1).value(), 5u);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG2, 0, 5}}));
  EXPECT_EQ(kv_->reset(kG2).value(), 5u);
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG3, 0, 5}}));
  {
    const auto table = kv_->onboard(hashes);
    ASSERT_EQ(table.size(), 5u);
    expect_right(table, hashes);
  }
  const KvStatus status = kv_->status();
  EXPECT_EQ(status.g3->hits, 5u);
  EXPECT_EQ(status.g3->onboarded, 5u);
  EXPECT_EQ(status.missed(), 5u);
  expect_counts_exact();
}

TEST_F(KvBlockManagerTest, RunsThatAlternateBetweenTiersComeUpWhole) {
  open();
  const auto hashes = sequence(1, 6);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  // 0 in G1, 1 and 2 in G3, 3 in G2, 4 in G3, 5 nowhere.
  kv_->reset(kG1).value();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).subspan(5, 1)));
  for (const std::size_t i : {0, 1, 2, 4}) {
    auto found = kv_->g2()->scan_matches(std::span(hashes).subspan(i, 1), false);
    if (!found.empty()) found.begin()->second.set_reset_on_release(true);
  }
  {
    const auto first = kv_->onboard(std::span(hashes).first(1));
  }
  {
    auto again = kv_->g2()->scan_matches(std::span(hashes).first(1), false);
    if (!again.empty()) again.begin()->second.set_reset_on_release(true);
  }
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG1, 0, 1}, {kG3, 1, 2}, {kG2, 3, 1}, {kG3, 4, 1}}));
  const auto table = kv_->onboard(hashes);
  ASSERT_EQ(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, ALongPrefixComesUpAsFarAsThereIsRoom) {
  open();
  std::vector<SequenceHash> hashes = sequence(1, 16);
  for (std::size_t n = 4; n <= 16; n += 4)  // G1 has 8 blocks
    if (n <= 8) {
      const auto table = request({hashes.begin(), hashes.begin() + static_cast<std::ptrdiff_t>(n)});
    }
  kv_->drain();
  kv_->reset(kG1).value();
  auto other = kv_->g1().allocate_blocks(3).value();
  const auto table = kv_->onboard(std::span(hashes).first(8));
  EXPECT_GE(table.size(), 4u);
  EXPECT_LE(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, AWarmRestartFindsWhatWasOnDisk) {
  open();
  const auto hashes = sequence(3, 6);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).last(1)));
  kv_.reset();
  open();
  EXPECT_EQ(kv_->find(hashes), (std::vector<TierRun>{{kG3, 0, 5}}));
  const auto table = kv_->onboard(hashes);
  ASSERT_EQ(table.size(), 5u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, ResetForgetsATierForGood) {
  open();
  const auto hashes = sequence(3, 4);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  EXPECT_EQ(kv_->reset(kG3).value(), 4u);
  kv_.reset();
  open();
  EXPECT_TRUE(kv_->find(hashes).empty());
  EXPECT_EQ(kv_->reset(events::kTierId<events::G4>).error().code(), ErrorCode::kNotFound);
}

TEST_F(KvBlockManagerTest, ADiskThatFailsIsAMissAndNothingWorse) {
  open();
  const auto hashes = sequence(1, 4);
  {
    const auto table = request(hashes);
  }
  kv_->drain();
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  error_ = EIO;
  EXPECT_TRUE(kv_->onboard(hashes).empty());
  {
    const auto other = request(sequence(2, 3));
  }
  kv_->drain();
  EXPECT_GE(kv_->status().to_g3->failed, 3u);
  error_ = 0;
  const auto table = kv_->onboard(hashes);
  EXPECT_EQ(table.size(), 4u);
  expect_right(table, hashes);
}

TEST_F(KvBlockManagerTest, OptionsAreChecked) {
  const auto refused = [](const KvOptions& options, const char* says) {
    const auto made = KvBlockManager::create(options);
    ASSERT_FALSE(made);
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(made.error().message(), ::testing::HasSubstr(says));
  };
  KvOptions bad = options();
  bad.g1.blocks = 0;
  refused(bad, "g1.blocks is 0");
  bad = options();
  bad.g2.reset();
  refused(bad, "g3 and g4 need g2");
  bad = options();
  bad.block_size = 16;
  refused(bad, "page_size and block_size");
  bad = options();
  bad.g3->paths.clear();
  refused(bad, "g3 needs blocks and a path");
  bad = options();
  bad.to_g2.lane.policy = nullptr;
  refused(bad, "policy is empty");
}

TEST_F(KvBlockManagerTest, OneTierAloneWorks) {
  KvOptions alone = options();
  alone.g2.reset();
  alone.g3.reset();
  kv_ = KvBlockManager::create(alone).value();
  const auto hashes = sequence(1, 3);
  {
    const auto table = request(hashes);
  }
  EXPECT_EQ(kv_->onboard(hashes).size(), 3u);
  EXPECT_EQ(kv_->offload(hashes).error().code(), ErrorCode::kUnsupported);
}

// Random requests over a set of sequences that no tier but G3 holds: every hit has the bytes that were computed.
TEST_F(KvBlockManagerTest, RandomRequestsAlwaysSeeTheirBytes) {
  open();
  Random random(23);
  const ashlar::testing::TimeBox box(0.5);
  for (int step = 0; step < 300 || !box.over(); ++step) {
    const auto hashes = sequence(random.below(12), 1 + random.below(6));
    error_ = random.below(10) == 0 ? EIO : 0;
    const auto table = request(hashes);
    ASSERT_FALSE(HasFailure());
    error_ = 0;
    switch (random.below(8)) {
      case 0:
        kv_->reset(kG1).value();
        break;
      case 1:
        kv_->reset(kG2).value();
        break;
      case 2:
        ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).last(1)));
        break;
      case 3:
        kv_->drain();
        break;
      default:
        break;
    }
  }
  expect_counts_exact();
  const KvStatus status = kv_->status();
  EXPECT_GT(status.g2->hits, 0u);
  EXPECT_GT(status.g3->hits, 0u);
  EXPECT_EQ(status.g3->damaged, 0u);
}

TEST_F(KvBlockManagerTest, ManyThreadsAskForTheSamePrefixes) {
  open();
  for (std::uint64_t i = 0; i < 4; ++i) {
    const auto table = request(sequence(i, 4));
  }
  kv_->drain();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (std::uint64_t t = 0; t < 3; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 60; ++i) {
        const auto hashes = sequence(random.below(4), 2);
        const auto table = kv_->onboard(hashes);
        if (!KvWorkload(*kv_).right(table, hashes)) ++wrong;
        if (random.below(4) == 0) kv_->reset(kG1).value();
        if (random.below(8) == 0) kv_->reset(kG2).value();
      }
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
