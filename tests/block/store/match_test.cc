// Matching: prefixes over mixed pools, scattered answers, scans, verified matches, large batches.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <string_view>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

// Stores the sequence in the given pattern: 'A' stays in use, 'I' becomes inactive, '-' is not stored.
Blocks arrange(Manager& manager, const TokenSequence& sequence, std::string_view pattern) {
  Blocks active;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '-') continue;
    Immutable block = store_one(manager, sequence.blocks()[i]);
    if (pattern[i] == 'A') active.push_back(std::move(block));
  }
  return active;
}

struct PrefixCase {
  std::string_view pattern;
  std::size_t prefix;
};

class MatchPrefixTest : public ::testing::TestWithParam<std::tuple<PrefixCase, std::string>> {};

TEST_P(MatchPrefixTest, FindsTheLongestPrefixInUseOrNot) {
  const auto& [shape, backend] = GetParam();
  Manager manager = value_of(builder_of(16, make_counting_registry()).with_backend(backend).build());
  const TokenSequence sequence = sequence_of(shape.pattern.size());
  const Blocks active = arrange(manager, sequence, shape.pattern);
  const Places before = places(manager);
  for (int turn = 0; turn < 2; ++turn) {
    {
      const Blocks found = manager.match_blocks(sequence.sequence_hashes());
      ASSERT_EQ(found.size(), shape.prefix);
      for (std::size_t i = 0; i < found.size(); ++i) {
        EXPECT_EQ(found[i].sequence_hash(), sequence.blocks()[i].sequence_hash());
      }
      EXPECT_EQ(manager.match_blocks(sequence.blocks()).size(), shape.prefix) << "verified";
    }
    EXPECT_EQ(places(manager), before) << "what was found goes back where it was";
  }
}

INSTANTIATE_TEST_SUITE_P(Patterns, MatchPrefixTest,
                         ::testing::Combine(::testing::Values(PrefixCase{"AAIIAA", 6}, PrefixCase{"IA", 2},
                                                              PrefixCase{"AI", 2}, PrefixCase{"IIII", 4},
                                                              PrefixCase{"AAAA", 4}, PrefixCase{"AA-AA", 2},
                                                              PrefixCase{"II-II", 2}, PrefixCase{"AI-IA", 2},
                                                              PrefixCase{"-AAA", 0}, PrefixCase{"---", 0},
                                                              PrefixCase{"IAIAIAIA", 8}),
                                            ::testing::ValuesIn(eviction_names())));

TEST(MatchTest, NothingIsFoundInAnEmptyManagerOrWithoutAQuestion) {
  Manager manager = manager_of(4);
  EXPECT_TRUE(manager.match_blocks(sequence_of(3).sequence_hashes()).empty());
  EXPECT_TRUE(manager.match_blocks(std::span<const SequenceHash>()).empty());
  EXPECT_TRUE(manager.match_blocks(std::span<const TokenBlock>()).empty());
  EXPECT_TRUE(manager.match_blocks_scattered(std::span<const SequenceHash>()).empty());
  EXPECT_TRUE(manager.scan_matches({}, true).empty());
  EXPECT_EQ(manager.counters().match_hashes_requested, 3u);
  EXPECT_EQ(manager.counters().match_blocks_returned, 0u);
}

// Stretches of neighbouring slots, upwards or downwards, and slots in no order.
std::vector<std::size_t> stretches(Random& random, std::size_t slots) {
  std::vector<std::size_t> order(slots);
  std::iota(order.begin(), order.end(), 0);
  for (std::size_t begin = 0; begin < slots;) {
    const std::size_t end = std::min<std::size_t>(slots, begin + random.between(1, 150));
    const auto first = order.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto last = order.begin() + static_cast<std::ptrdiff_t>(end);
    const std::uint64_t way = random.below(3);
    if (way == 0) std::reverse(first, last);
    if (way == 1) random.shuffle(std::ranges::subrange(first, last));
    begin = end;
  }
  return order;
}

TEST(MatchTest, AChainIsFoundInWhateverOrderItsSlotsLie) {
  constexpr std::uint32_t kSlots = 512;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    Manager manager = manager_of(kSlots, make_counting_registry());
    const std::vector<SequenceHash> names = names_from(1, kSlots);
    const std::size_t missing = random.below(kSlots);  // its slot has the name, and no block of it
    const std::vector<std::size_t> order = stretches(random, kSlots);
    auto empty = value_of(manager.allocate_blocks(kSlots));
    std::vector<Mutable*> by_id(kSlots);
    for (Mutable& block : empty) by_id[block.block_id().value()] = &block;
    Blocks in_use;
    for (std::size_t i = 0; i < kSlots; ++i) {
      Complete block = std::move(*by_id[order[i]]).stage(names[i], kReady);
      if (i == missing) continue;
      Immutable stored = value_of(manager.register_block(std::move(block)));
      if (random.below(20) != 0) in_use.push_back(std::move(stored));
    }
    const std::size_t length = random.between(1, kSlots);
    const std::size_t first = random.below(length);
    for (const std::size_t from : {std::size_t{0}, first}) {
      const std::span<const SequenceHash> asked = std::span(names).subspan(from, length - from);
      const std::size_t expected = missing < from || missing >= length ? asked.size() : missing - from;
      const Blocks found = manager.match_blocks(asked);
      ASSERT_EQ(found.size(), expected);
      for (std::size_t i = 0; i < found.size(); ++i) {
        ASSERT_EQ(found[i].sequence_hash(), asked[i]);
        ASSERT_EQ(found[i].block_id().value(), order[from + i]);
      }
      const std::vector<Immutable> scattered = manager.match_blocks_scattered(asked);
      for (std::size_t i = 0; i < asked.size(); ++i) ASSERT_EQ(!scattered[i], from + i == missing);
    }
  }
}

TEST(MatchTest, AnotherSequenceWithTheSameTokensLaterIsAnotherName) {
  Manager manager = manager_of(4);
  const Blocks stored = store_all(manager, sequence_of(2));
  // The second block's tokens as a first block.
  EXPECT_TRUE(manager.match_blocks(sequence_of(1, kBlockSize).sequence_hashes()).empty());
}

TEST(MatchTest, TheListFormAppendsAndTheSpanFormStopsAtItsRoom) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(4);
  const Blocks stored = store_all(manager, sequence);
  const auto hashes = sequence.sequence_hashes();
  Blocks list;
  EXPECT_EQ(manager.match_blocks(std::span(hashes).first(2), list), 2u);
  EXPECT_EQ(manager.match_blocks(std::span(hashes).subspan(2), list), 2u);
  EXPECT_EQ(manager.match_blocks(std::vector{name_of(9, 9)}, list), 0u);
  ASSERT_EQ(list.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) EXPECT_EQ(list[i].sequence_hash(), hashes[i]);

  std::vector<Immutable> out(3);
  EXPECT_EQ(manager.match_blocks(std::span<const SequenceHash>(hashes), out), 3u);
  EXPECT_EQ(out[2].sequence_hash(), hashes[2]);
  EXPECT_EQ(manager.match_blocks(std::span<const SequenceHash>(hashes), std::span<Immutable>()), 0u);
}

class MatchBatchTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(MatchBatchTest, LargeBatchesCrossEveryChunkBorder) {
  const std::size_t n = GetParam();
  Manager manager = manager_of(1001);
  auto names = names_from(5, n);
  Blocks stored = store_names(manager, names);
  const SequenceHash absent = name_of(static_cast<std::uint32_t>(n), 0xABCDEF);
  names.push_back(absent);
  // All in use, then every third inactive, then none in use.
  for (int stage = 0; stage < 3; ++stage) {
    if (stage == 1) {
      for (std::size_t i = 0; i < n; i += 3) stored[i] = Immutable();
    }
    if (stage == 2) stored.clear();
    const Blocks found = manager.match_blocks(names);
    ASSERT_EQ(found.size(), n) << stage;
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(found[i].sequence_hash(), names[i]);
    const std::vector<Immutable> scattered = manager.match_blocks_scattered(names);
    ASSERT_EQ(scattered.size(), n + 1);
    for (std::size_t i = 0; i < n; ++i) ASSERT_EQ(scattered[i].block_id(), found[i].block_id());
    EXPECT_FALSE(scattered[n]);
    EXPECT_EQ(manager.scan_matches(names, false).size(), n);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1001 - n, .inactive = n}));
  // A miss at each border.
  for (const std::size_t miss : {0u, 31u, 32u, 33u, 63u, 64u, 65u}) {
    if (miss >= n) continue;
    auto broken = names;
    broken[miss] = absent;
    EXPECT_EQ(manager.match_blocks(broken).size(), miss);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, MatchBatchTest,
                         ::testing::Values(1u, 31u, 32u, 33u, 63u, 64u, 65u, 128u, 1000u));

TEST(MatchTest, VerifiedMatchesCrossChunkBordersAndStopAtTheFirstMiss) {
  Manager manager = manager_of(200);
  const TokenSequence sequence = sequence_of(130);
  {
    const Blocks stored = store_all(manager, sequence);
  }
  EXPECT_EQ(manager.match_blocks(sequence.blocks()).size(), 130u);
  EXPECT_EQ(manager.match_blocks(sequence.blocks().first(65)).size(), 65u);
  const TokenSequence longer = sequence_of(150);
  EXPECT_EQ(manager.match_blocks(longer.blocks()).size(), 130u);
  EXPECT_EQ(places(manager), (Places{.reset = 70, .inactive = 130}));
}

TEST(MatchTest, AVerifiedMatchOfAnotherBlockSizeIsAMiss) {
  Manager manager = value_of(builder_of(4).block_size(2).build());
  const TokenSequence two = sequence_of(1, 0, 2);
  const Immutable stored = store_one(manager, two.blocks()[0]);
  EXPECT_EQ(manager.match_blocks(two.blocks()).size(), 1u);
  EXPECT_EQ(manager.match_blocks(sequence_of(1, 0, 4).blocks()).size(), 0u);
  // Even when the name is the same.
  const TokenSequence four = sequence_of(1, 0, 4);
  const Immutable poisoned = store_name(manager, four.sequence_hashes()[0]);
  EXPECT_EQ(manager.match_blocks(four.blocks()).size(), 0u);
  EXPECT_EQ(poisoned.use_count(), 1u);
}

TEST(MatchTest, ScatteredAnswersStandBesideTheirHashesDuplicatesIncluded) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(4);
  const Blocks active = arrange(manager, sequence, "AI-A");
  const auto h = sequence.sequence_hashes();
  const std::vector<SequenceHash> asked = {h[2], h[0], h[1], h[0], h[2], h[3], h[1]};
  const std::vector<Immutable> found = manager.match_blocks_scattered(asked);
  ASSERT_EQ(found.size(), asked.size());
  for (std::size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(static_cast<bool>(found[i]), asked[i] != h[2]) << i;
    EXPECT_TRUE(!found[i] || found[i].sequence_hash() == asked[i]) << i;
  }
  EXPECT_EQ(found[1].use_count(), 3u) << "once stored, twice found";
  EXPECT_EQ(found[2].use_count(), 2u);
  EXPECT_EQ(manager.counters().match_hashes_requested, 7u);
  EXPECT_EQ(manager.counters().match_blocks_returned, 5u);
}

TEST(MatchTest, AScatteredMissIsAnEmptyGuardAlsoInASpanThatWasUsedBefore) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(3);
  {
    const Blocks stored = store_all(manager, sequence);
  }
  std::vector<Immutable> out(3);
  EXPECT_EQ(manager.match_blocks_scattered(sequence.sequence_hashes(), out), 3u);
  auto asked = sequence.sequence_hashes();
  asked[1] = name_of(1, 12345);
  EXPECT_EQ(manager.match_blocks_scattered(asked, out), 2u);
  EXPECT_TRUE(out[0]);
  EXPECT_FALSE(out[1]) << "the guard of the call before answers for a hash that is not here";
  EXPECT_TRUE(out[2]);
  EXPECT_EQ(places(manager), (Places{.reset = 5, .inactive = 1, .active = 2}));
}

TEST(MatchTest, ScanFindsTheDistinctHashesThatAreHere) {
  Manager manager = manager_of(8);
  const TokenSequence sequence = sequence_of(4);
  const Blocks active = arrange(manager, sequence, "AI-A");
  const auto h = sequence.sequence_hashes();
  const std::vector<SequenceHash> asked = {h[3], h[2], h[1], h[3], h[0], h[1], h[2]};
  {
    auto found = manager.scan_matches(asked, false);
    EXPECT_EQ(found.size(), 3u);
    for (const std::size_t i : {0u, 1u, 3u}) {
      ASSERT_TRUE(found.contains(h[i]));
      EXPECT_EQ(found[h[i]].sequence_hash(), h[i]);
    }
    EXPECT_EQ(found[h[3]].use_count(), 2u) << "one reference for a hash that was asked twice";
  }
  EXPECT_EQ(manager.counters().scan_hashes_requested, 7u);
  EXPECT_EQ(manager.counters().scan_blocks_returned, 3u);
  EXPECT_EQ(manager.counters().match_hashes_requested, 0u);
  EXPECT_EQ(places(manager), (Places{.reset = 5, .inactive = 1, .active = 2}));
}

TEST(MatchTest, RevivalsAreCountedAndGoBackAsTheNewest) {
  Manager manager = manager_of(4);
  const auto names = names_from(1, 3);
  for (const SequenceHash& name : names) {
    const Immutable stored = store_name(manager, name);
  }
  EXPECT_THAT(manager.eviction_candidates(3), ::testing::ElementsAre(names[0], names[1], names[2]));
  {
    const Blocks found = manager.match_blocks(std::span(names).first(1));
  }
  EXPECT_EQ(manager.counters().revivals, 1u);
  EXPECT_THAT(manager.eviction_candidates(3), ::testing::ElementsAre(names[1], names[2], names[0]));
}

}  // namespace
}  // namespace ashlar::block
