// WaitingBlocks: what it keeps, for whom, and that a stream which says the same again and again costs no more
// each time.
#include "feed/waiting_blocks.h"

#include <gtest/gtest.h>

#include <set>

#include "ashlar/base/random.h"

namespace ashlar::feed {
namespace {

using events::BlockName;
using tokens::Token;

constexpr std::uint32_t kBlockTokens = 4;

class WaitingBlocksTest : public ::testing::Test {
 protected:
  std::size_t wait(std::uint64_t parent, const std::vector<std::uint64_t>& blocks, std::size_t tier = 0) {
    std::vector<BlockName> names;
    for (const std::uint64_t block : blocks) names.emplace_back(block);
    const std::vector<Token> text(names.size() * kBlockTokens);
    return waiting_.add_run({.tier = tier,
                             .parent = BlockName(parent),
                             .names = names,
                             .tokens = text,
                             .block_size = kBlockTokens,
                             .window = kBlockTokens,
                             .keys = {},
                             .lora = {},
                             .salt = {},
                             .gone = {}});
  }
  bool cancel(std::uint64_t name, std::size_t tier = 0) {
    return waiting_.cancel({0, BlockName(name)}, tier);
  }
  std::size_t take(std::uint64_t parent) { return waiting_.take_runs({0, BlockName(parent)}).size(); }

  ByteBudget budget_{std::size_t{1} << 30};
  WaitingBlocks waiting_{1000, budget_};
};

TEST_F(WaitingBlocksTest, ARunIsDroppedWhenItsLastBlockIsGone) {
  wait(1, {2, 3});
  EXPECT_TRUE(cancel(2));
  EXPECT_FALSE(waiting_.empty());
  EXPECT_TRUE(cancel(3));
  EXPECT_TRUE(waiting_.empty());
  EXPECT_FALSE(cancel(3));
  EXPECT_EQ(take(1), 0u);
}

TEST_F(WaitingBlocksTest, ARunThatIsGoneIsKeptForThoseBehindIt) {
  wait(1, {2, 3});
  wait(2, {20});
  ASSERT_EQ(waiting_.add_placeholder({0, BlockName(3)}, 1), 0u);
  EXPECT_TRUE(cancel(2));
  EXPECT_TRUE(cancel(3));
  EXPECT_TRUE(cancel(20));
  EXPECT_EQ(waiting_.size(), 1u);
  const auto runs = waiting_.take_runs({0, BlockName(1)});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].gone, (std::vector<std::uint8_t>{1, 1}));
  EXPECT_TRUE(waiting_.take_placeholder({0, BlockName(3)})[1]);
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(WaitingBlocksTest, WhoComesLaterKeepsARunThatIsKeptAlready) {
  wait(1, {2, 3});
  wait(2, {20});
  cancel(2);
  cancel(3);
  wait(3, {30});
  cancel(20);
  EXPECT_EQ(take(1), 1u) << "for the block behind 3";
  EXPECT_EQ(take(3), 1u);
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(WaitingBlocksTest, AChainThatIsGoneIsDroppedFromItsEnd) {
  WaitingBlocks waiting(100'000, budget_);
  std::swap(waiting_, waiting);
  for (std::uint64_t i = 1; i < 100'000; ++i) wait(i - 1, {i});
  for (std::uint64_t i = 1; i < 99'999; ++i) EXPECT_TRUE(cancel(i));
  EXPECT_EQ(waiting_.size(), 1u);
  EXPECT_TRUE(cancel(99'999));
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(WaitingBlocksTest, ARunBehindItselfIsKeptOnce) {
  for (int i = 0; i < 5000; ++i) {
    EXPECT_EQ(wait(7, {7, 7}), 0u);
    EXPECT_TRUE(cancel(7));
    EXPECT_TRUE(cancel(7));
  }
  EXPECT_EQ(take(7), 1u);
  EXPECT_TRUE(waiting_.empty());
}

// Two share a budget: each makes room by its own oldest, and takes nothing where the other holds the bytes.
TEST_F(WaitingBlocksTest, WhatFindsNoBytesIsNotTaken) {
  ByteBudget budget(WaitingBlocks::kPlaceholderBytes * 3);
  WaitingBlocks one(1000, budget);
  WaitingBlocks other(1000, budget);
  for (std::uint64_t i = 0; i < 3; ++i) EXPECT_EQ(one.add_placeholder({0, BlockName(i)}, 1), 0u);
  EXPECT_EQ(other.add_placeholder({0, BlockName(9)}, 1), 1u) << "itself";
  EXPECT_TRUE(other.empty());
  EXPECT_EQ(one.add_placeholder({0, BlockName(9)}, 1), 1u) << "its oldest";
  EXPECT_EQ(one.size(), 3u);
  one.clear();
  EXPECT_EQ(budget.used(), 0u);
  EXPECT_EQ(other.add_placeholder({0, BlockName(9)}, 1), 0u);
}

TEST_F(WaitingBlocksTest, OfOneNameTheOldestOfTheTierIsCancelled) {
  wait(1, {5}, 1);
  wait(1, {5}, 0);
  wait(1, {5}, 0);
  EXPECT_TRUE(waiting_.expects({0, BlockName(5)}, 0));
  EXPECT_TRUE(cancel(5));
  EXPECT_TRUE(cancel(5));
  EXPECT_FALSE(waiting_.expects({0, BlockName(5)}, 0));
  EXPECT_TRUE(waiting_.expects({0, BlockName(5)}, 1));
  EXPECT_FALSE(cancel(5));
  EXPECT_EQ(waiting_.cancel_tier(1), 1u);
  EXPECT_TRUE(waiting_.empty());
}

TEST_F(WaitingBlocksTest, BlocksThatComeAndGoForeverCostTheSameEachTime) {
  wait(5, {6});  // for which one run is kept
  for (int i = 0; i < 200'000; ++i) {
    ASSERT_EQ(wait(99, {5, 50}), 0u);
    ASSERT_TRUE(cancel(5));
    ASSERT_TRUE(cancel(50));
  }
  EXPECT_EQ(take(99), 1u);
  EXPECT_EQ(take(5), 1u);
  EXPECT_TRUE(waiting_.empty());
}

// Children have larger names than their parents here, so nothing keeps itself.
TEST_F(WaitingBlocksTest, WhateverHappensNothingIsLeftWhenAllIsCancelled) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    Random random(seed);
    const std::size_t limit = seed % 2 == 0 ? 1'000'000 : 40;
    waiting_ = WaitingBlocks(limit, budget_);
    std::multiset<std::pair<std::uint64_t, std::size_t>> expected;  // where nothing gives way
    std::set<std::pair<std::uint64_t, std::size_t>> placeholders;
    for (int step = 0; step < 3000; ++step) {
      const std::uint64_t name = 1 + random.below(30);
      const std::size_t tier = random.below(2);
      switch (random.below(8)) {
        case 0:
        case 1:
        case 2: {
          std::vector<std::uint64_t> blocks;
          for (std::uint64_t i = 0; i <= random.below(3); ++i) blocks.push_back(name + 1 + i);
          wait(name, blocks, tier);
          for (const std::uint64_t block : blocks) expected.emplace(block, tier);
          break;
        }
        case 3:
          waiting_.add_placeholder({0, BlockName(name)}, tier);
          placeholders.emplace(name, tier);
          break;
        case 4:
          if (random.below(20) != 0) break;
          for (const OwnedEngineRun& run : waiting_.take_runs({0, BlockName(name)}))
            for (std::size_t i = 0; i < run.names.size(); ++i)
              if (limit != 40 && run.gone[i] == 0)
                expected.erase(expected.find({run.names[i].value(), run.head.tier}));
          break;
        default: {
          const bool cancelled = cancel(name, tier);
          if (limit == 40) break;
          const auto at = expected.find({name, tier});
          ASSERT_EQ(cancelled, placeholders.contains({name, tier}) || at != expected.end());
          if (placeholders.erase({name, tier}) == 0 && at != expected.end()) expected.erase(at);
        }
      }
      if (step % 16 == 0) waiting_.check_invariants();
      if (limit != 40) {
        ASSERT_EQ(waiting_.size(), expected.size() + placeholders.size());
      }
    }
    for (std::uint64_t name = 1; name < 40; ++name)
      for (const std::size_t tier : {0, 1})
        while (cancel(name, tier)) continue;
    EXPECT_EQ(waiting_.size(), 0u);
    EXPECT_TRUE(waiting_.empty()) << seed;
  }
}

TEST(OwnedEngineRunTest, KeepsWhatItsBlocksNeed) {
  const std::vector<BlockName> names = {BlockName(1), BlockName(2), BlockName(3)};
  const std::vector<Token> text(5000);
  const std::vector<events::EngineExtraKey> keys(100, events::EngineExtraKey{.block = 2, .value = "x"});
  std::vector<events::EngineExtraKey> all = keys;
  all.push_back({.block = 3, .value = "of a block that is not there"});
  all.insert(all.begin(), {.block = 0, .value = "of the block in front"});
  const EngineRun run{.parent = BlockName(9),
                      .names = names,
                      .tokens = text,
                      .block_size = kBlockTokens,
                      .window = kBlockTokens + 1,
                      .keys = all,
                      .lora = {},
                      .salt = {},
                      .gone = {}};
  const OwnedEngineRun owned(run.behind(1));
  EXPECT_EQ(owned.names.size(), 2u);
  EXPECT_EQ(owned.tokens.size(), 2 * kBlockTokens + 1);
  EXPECT_EQ(owned.keys, keys);
  EXPECT_EQ(owned.view().tokens_of(1).size(), kBlockTokens + 1);
}

}  // namespace
}  // namespace ashlar::feed
