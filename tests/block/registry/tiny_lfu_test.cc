#include "block/registry/tiny_lfu.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using support::name_of;
using tokens::SequenceHash;

TinyLfuOptions never_decaying(std::size_t capacity) {
  return {capacity, TinyLfuOptions::kNever};
}

std::vector<SequenceHash> random_names(std::size_t count, std::uint64_t seed) {
  Random random(seed);
  std::vector<SequenceHash> names;
  for (std::size_t i = 0; i < count; ++i) {
    names.push_back(name_of(static_cast<std::uint32_t>(random.below(4096)), random.next()));
  }
  return names;
}

TEST(TinyLfuTest, RefusesACapacityItCannotHave) {
  EXPECT_EQ(TinyLfuOptions{.capacity = 0}.validate().error().code(), ErrorCode::kInvalidArgument);
  EXPECT_FALSE(TinyLfuOptions{.capacity = (std::size_t{1} << 32) + 1}.validate());
  EXPECT_TRUE(TinyLfuOptions{.capacity = std::size_t{1} << 32}.validate());
  EXPECT_TRUE(TinyLfuOptions{.capacity = 1}.validate());
  EXPECT_TRUE(TinyLfuOptions{}.validate());
  RegistryOptions registry;
  registry.frequency = TinyLfuOptions{.capacity = 0};
  EXPECT_FALSE(BlockRegistry::create(registry));
}

TEST(TinyLfuTest, CountsFromZeroToFifteenAndStops) {
  TinyLfu lfu(never_decaying(1024));
  const SequenceHash hash = name_of(3, 17);
  for (unsigned n = 0; n < 40; ++n) {
    EXPECT_EQ(lfu.count(hash), std::min(n, TinyLfu::kMaxCount));
    lfu.touch(hash);
  }
}

TEST(TinyLfuTest, RepeatedHashesInABatchCountRepeatedly) {
  TinyLfu lfu(never_decaying(1 << 16));
  std::vector<SequenceHash> batch = random_names(100, 1);
  const std::vector<SequenceHash> once = batch;
  batch.insert(batch.end(), once.begin(), once.begin() + 50);
  lfu.touch_all(batch);
  for (std::size_t i = 0; i < 100; ++i) EXPECT_GE(lfu.count(once[i]), i < 50 ? 2u : 1u);
  lfu.touch_all({});
}

// Every word and every one of its twelve counters is used by some hash, in every row its own three.
TEST(TinyLfuTest, EveryCounterIsReachable) {
  for (const std::size_t capacity : {1u, 64u, 1000u, 1024u, 4096u}) {
    TinyLfu lfu(never_decaying(capacity));
    std::set<std::pair<std::size_t, unsigned>> reached;
    for (const SequenceHash& hash : random_names(lfu.words() * 200, capacity)) {
      for (unsigned row = 0; row < TinyLfu::kRows; ++row) {
        const TinyLfu::Cell cell = lfu.cell(hash, row);
        ASSERT_LT(cell.word, lfu.words());
        ASSERT_EQ(cell.counter / TinyLfu::kCountersPerRow, row);
        ASSERT_EQ(cell.word, lfu.cell(hash, 0).word) << "one word per hash";
        reached.emplace(cell.word, cell.counter);
      }
    }
    EXPECT_EQ(reached.size(), lfu.words() * TinyLfu::kRows * TinyLfu::kCountersPerRow) << capacity;
  }
}

TEST(TinyLfuTest, SequentialNamesSpreadOverTheTableToo) {
  // Names of others may be numbers in a row instead of good hashes.
  TinyLfu lfu(never_decaying(4096));
  std::set<std::size_t> words;
  for (std::uint64_t chain = 0; chain < 1000; ++chain)
    words.insert(lfu.cell(SequenceHash::root(chain), 0).word);
  EXPECT_GT(words.size(), std::min<std::size_t>(lfu.words(), 1000) / 3);
}

TEST(TinyLfuTest, NeverUnderCountsBetweenDecays) {
  TinyLfu lfu(never_decaying(64));  // far too small for this many names: all collisions go upwards
  const auto names = random_names(2000, 3);
  std::map<SequenceHash, unsigned> exact;
  Random random(4);
  for (int i = 0; i < 5000; ++i) {
    const SequenceHash& hash = names[random.below(names.size())];
    lfu.touch(hash);
    ++exact[hash];
    ASSERT_GE(lfu.count(hash), std::min(exact[hash], TinyLfu::kMaxCount));
  }
  for (const auto& [hash, count] : exact) ASSERT_GE(lfu.count(hash), std::min(count, TinyLfu::kMaxCount));
}

TEST(TinyLfuTest, DecayHalvesEveryCounter) {
  TinyLfu lfu({1024, 24});
  const SequenceHash often = name_of(1, 0x1111111111);
  const SequenceHash seldom = name_of(2, 0x2222222222);
  ASSERT_NE(lfu.cell(often, 0).word, lfu.cell(seldom, 0).word);
  for (int i = 0; i < 13; ++i) lfu.touch(often);
  for (int i = 0; i < 10; ++i) lfu.touch(seldom);
  EXPECT_EQ(lfu.decays(), 0u);
  EXPECT_EQ(lfu.count(often), 13u);
  lfu.touch(seldom);  // the 24th
  EXPECT_EQ(lfu.decays(), 1u);
  EXPECT_EQ(lfu.count(often), 6u);
  EXPECT_EQ(lfu.count(seldom), 5u);
  lfu.touch(often);
  EXPECT_EQ(lfu.count(often), 7u) << "halved once, then counted";
  EXPECT_EQ(lfu.count(seldom), 5u);
}

TEST(TinyLfuTest, AWordCatchesUpWithAllTheEpochsItMissed) {
  TinyLfu lfu({1024, 16});
  const SequenceHash old = name_of(1, 0x1111111111);
  const SequenceHash other = name_of(2, 0x2222222222);
  ASSERT_NE(lfu.cell(old, 0).word, lfu.cell(other, 0).word);
  for (int i = 0; i < 15; ++i) lfu.touch(old);
  const unsigned expected[] = {15, 7, 3, 1, 0, 0, 0};
  for (std::uint64_t epoch = 0; epoch < 7; ++epoch) {
    EXPECT_EQ(lfu.decays(), epoch);
    EXPECT_EQ(lfu.count(old), expected[epoch]) << epoch;
    for (int i = 0; i < 16; ++i) lfu.touch(other);
  }
  EXPECT_EQ(lfu.count(other), 15u);
}

// A word has 16 bits for its epoch: it must not look young again when they have gone half or all the way
// round.
TEST(TinyLfuTest, ACountThatDecayedStaysAwayHoweverManyEpochsPass) {
  constexpr std::uint64_t kEpochs = 65536 + 32768 + 100;
  for (const std::size_t capacity : {1024u, 1u << 17}) {  // a slice of one word, and of four
    TinyLfu lfu({capacity, 2});
    const SequenceHash other = name_of(2, 0x2222222222);
    std::vector<SequenceHash> old;  // all over the table
    for (const SequenceHash& hash : random_names(100, capacity)) {
      if (lfu.cell(hash, 0).word != lfu.cell(other, 0).word) old.push_back(hash);
    }
    for (const SequenceHash& hash : old) {
      for (unsigned i = 0; i < TinyLfu::kMaxCount; ++i) lfu.touch(hash);
    }
    const std::vector<SequenceHash> epoch(2, other);
    const std::uint64_t last = lfu.decays();
    while (lfu.decays() < last + kEpochs) {
      lfu.touch_all(epoch);
      if (lfu.decays() < last + 5) continue;
      const SequenceHash& each = old[lfu.decays() % old.size()];
      ASSERT_EQ(lfu.count(each), 0u) << "capacity " << capacity << ", " << lfu.decays() - last
                                     << " epochs later";
    }
  }
}

// Threads that begin epochs at the same time share the slices between them: none is left out.
TEST(TinyLfuTest, SlicesAreAgedWhicheverThreadBeginsTheEpoch) {
  constexpr int kThreads = 3;
  TinyLfu lfu({1 << 10, 2});
  const auto names = random_names(64, 21);
  const SequenceHash other = name_of(2, 0x2222222222);
  for (const SequenceHash& hash : names) lfu.touch(hash);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      const std::vector<SequenceHash> epoch(2, other);
      while (lfu.decays() < 65536 + 100) lfu.touch_all(epoch);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const SequenceHash& hash : names) {
    if (lfu.cell(hash, 0).word == lfu.cell(other, 0).word) continue;
    EXPECT_EQ(lfu.count(hash), 0u);
  }
}

TEST(TinyLfuTest, ABatchOverTheEdgeOfAnEpochUnderCountsNothing) {
  TinyLfu lfu({1 << 12, 100});
  const auto names = random_names(64, 8);
  const SequenceHash filler = name_of(9, 0x9999999999);
  for (int i = 0; i < 60; ++i) lfu.touch(filler);
  lfu.touch_all(names);  // touches 60 to 123: the last 24 of them stand in the next epoch
  ASSERT_EQ(lfu.decays(), 1u);
  for (std::size_t i = 40; i < names.size(); ++i) EXPECT_GE(lfu.count(names[i]), 1u) << i;
}

TEST(TinyLfuTest, TheDefaultDecayIsTenTimesTheCapacity) {
  TinyLfu lfu({100, 0});
  const SequenceHash hash = name_of(1, 1);
  for (int i = 0; i < 999; ++i) lfu.touch(hash);
  EXPECT_EQ(lfu.decays(), 0u);
  lfu.touch(hash);
  EXPECT_EQ(lfu.decays(), 1u);
}

TEST(TinyLfuTest, CountsExactlyUnderContention) {
  constexpr int kThreads = 4;
  constexpr unsigned kEach = 3;
  TinyLfu lfu(never_decaying(1 << 16));
  const auto names = random_names(500, 5);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (unsigned i = 0; i < kEach; ++i) lfu.touch_all(names);
    });
  }
  for (std::thread& thread : threads) thread.join();
  // The same touches one after the other give the same table, so no increment was lost or made twice.
  TinyLfu alone(never_decaying(1 << 16));
  for (unsigned i = 0; i < kThreads * kEach; ++i) alone.touch_all(names);
  for (const SequenceHash& hash : names) {
    EXPECT_EQ(lfu.count(hash), alone.count(hash));
    EXPECT_GE(lfu.count(hash), kThreads * kEach);
  }
}

TEST(TinyLfuTest, EstimatesAZipfStreamClosely) {
  constexpr std::size_t kDistinct = 4000;
  constexpr std::size_t kCapacity = 16000;
  TinyLfu lfu(never_decaying(kCapacity));
  const auto names = random_names(kDistinct, 11);
  std::vector<double> cumulative(kDistinct);
  double sum = 0;
  for (std::size_t i = 0; i < kDistinct; ++i)
    cumulative[i] = sum += 1.0 / std::pow(static_cast<double>(i + 1), 0.9);
  std::vector<unsigned> exact(kDistinct, 0);
  Random random(12);
  for (int i = 0; i < 20000; ++i) {
    const double at = static_cast<double>(random.below(1u << 30)) / (1u << 30) * sum;
    const auto which = static_cast<std::size_t>(std::lower_bound(cumulative.begin(), cumulative.end(), at) -
                                                cumulative.begin());
    lfu.touch(names[which]);
    ++exact[which];
  }
  std::size_t right = 0;
  double error = 0;
  for (std::size_t i = 0; i < kDistinct; ++i) {
    const unsigned truth = std::min(exact[i], TinyLfu::kMaxCount);
    const unsigned estimate = lfu.count(names[i]);
    ASSERT_GE(estimate, truth);
    right += estimate == truth ? 1 : 0;
    error += estimate - truth;
  }
  EXPECT_GT(static_cast<double>(right) / kDistinct, 0.9);
  EXPECT_LT(error / kDistinct, 0.3);
}

}  // namespace
}  // namespace ashlar::block
