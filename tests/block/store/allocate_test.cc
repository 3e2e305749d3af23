// Allocation without waiting: all or nothing, the order of the pools, and backends that lie.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <limits>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Ids = std::vector<std::uint32_t>;

TEST(AllocateTest, HandsOutDistinctEmptyBlocks) {
  Manager manager = manager_of(5);
  const auto blocks = value_of(manager.allocate_blocks(5));
  EXPECT_EQ(ids_of(blocks), (Ids{0, 1, 2, 3, 4}));
  EXPECT_EQ(places(manager), (Places{.owned = 5}));
}

TEST(AllocateTest, ZeroBlocksAreAlwaysThere) {
  Manager manager = manager_of(1);
  EXPECT_TRUE(value_of(manager.allocate_blocks(0)).empty());
  const Mutable all = take_one(manager);
  EXPECT_TRUE(value_of(manager.allocate_blocks(0)).empty());
  EXPECT_TRUE(value_of(manager.allocate_blocks_with_evictions(0)).blocks.empty());
  EXPECT_TRUE(value_of(manager.try_allocate_until(0, Clock::TimePoint::min())).empty());
  EXPECT_TRUE(manager.can_allocate(0));
  EXPECT_EQ(manager.counters().allocations, 1u);
}

TEST(AllocateTest, ExhaustionTakesNothingAndSaysWhy) {
  Manager manager = manager_of(4);
  auto held = value_of(manager.allocate_blocks(3));
  const auto refused = manager.allocate_blocks(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kNoRoom);
  EXPECT_EQ(refused.error().requested, 2u);
  EXPECT_EQ(refused.error().status.owned, 3u);
  EXPECT_EQ(refused.error().status.available(), 1u);
  const Error error = refused.error().to_error();
  EXPECT_EQ(error.code(), ErrorCode::kCapacity);
  EXPECT_THAT(error.message(), HasSubstr("2 blocks were asked for, 1 are available"));
  EXPECT_THAT(error.message(), HasSubstr("3 owned"));
  EXPECT_EQ(places(manager), (Places{.reset = 1, .owned = 3}));
  EXPECT_EQ(manager.counters().allocations, 3u);
  held.truncate(1);
  EXPECT_EQ(value_of(manager.allocate_blocks(3)).size(), 3u);
}

TEST(AllocateTest, MoreThanThereAreInAllIsItsOwnReasonWhateverTheNumber) {
  Manager manager = manager_of(4);
  for (const std::size_t n :
       {std::size_t{5}, std::size_t{1} << 40, std::numeric_limits<std::size_t>::max()}) {
    const auto refused = manager.allocate_blocks(n);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, Reason::kTooMany);
    EXPECT_EQ(refused.error().requested, n);
    EXPECT_EQ(refused.error().to_error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(manager.allocate_blocks_with_evictions(n).error().reason, Reason::kTooMany);
    EXPECT_EQ(manager.try_allocate_until(n, Clock::TimePoint::max()).error().reason, Reason::kTooMany);
    EXPECT_EQ(manager.can_allocate(n).error().reason, Reason::kTooMany);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 4}));
}

TEST(AllocateTest, WhyNotForetellsWithoutTaking) {
  Manager manager = manager_of(3);
  EXPECT_TRUE(manager.can_allocate(3));
  const auto held = value_of(manager.allocate_blocks(2));
  EXPECT_TRUE(manager.can_allocate(1));
  ASSERT_FALSE(manager.can_allocate(2));
  EXPECT_EQ(manager.can_allocate(2).error().reason, Reason::kNoRoom);
  EXPECT_EQ(manager.can_allocate(4).error().reason, Reason::kTooMany);
  EXPECT_EQ(places(manager), (Places{.reset = 1, .owned = 2}));
}

TEST(AllocateTest, FillsTheCallersSpanAndReplacesWhatItHeld) {
  Manager manager = manager_of(4);
  std::vector<Mutable> out(3);
  EXPECT_TRUE(manager.allocate_blocks(out));
  EXPECT_EQ(ids_of(out), (Ids{0, 1, 2}));
  EXPECT_TRUE(manager.allocate_blocks(out)) << "what the span held is returned first";
  EXPECT_EQ(places(manager), (Places{.reset = 1, .owned = 3}));
  EXPECT_TRUE(manager.allocate_blocks(std::span<Mutable>()));
}

TEST(AllocateTest, EmptyBlocksGoFirstThenTheInactiveOnesInTheBackendsOrder) {
  Manager manager = manager_of(5);
  const TokenSequence sequence = sequence_of(3);
  Blocks stored = store_all(manager, sequence);
  for (const std::size_t i : {1u, 2u, 0u}) stored[i] = Immutable();
  const auto hashes = sequence.sequence_hashes();

  auto allocation = value_of(manager.allocate_blocks_with_evictions(4));
  EXPECT_EQ(ids_of(allocation.blocks), (Ids{3, 4, 1, 2}));
  EXPECT_THAT(allocation.evicted, ElementsAre(hashes[1], hashes[2]));
  EXPECT_EQ(places(manager), (Places{.inactive = 1, .owned = 4}));
  const ManagerCounters counters = manager.counters();
  EXPECT_EQ(counters.allocations, 3u + 4u);
  EXPECT_EQ(counters.allocations_from_reset, 3u + 2u);
  EXPECT_EQ(counters.evictions, 2u);
  EXPECT_TRUE(manager.match_blocks(std::vector{hashes[1]}).empty());
  EXPECT_EQ(manager.match_blocks(std::vector{hashes[0]}).size(), 1u);
}

TEST(AllocateTest, ARefusalReportsNoEvictions) {
  Manager manager = manager_of(3);
  {
    const Blocks stored = store_all(manager, sequence_of(2));
  }
  const Mutable held = take_one(manager);
  EXPECT_FALSE(manager.allocate_blocks_with_evictions(3));
  EXPECT_EQ(places(manager), (Places{.inactive = 2, .owned = 1}));
  EXPECT_EQ(manager.counters().evictions, 0u);
}

TEST(AllocateTest, LargeBatchesCrossEveryChunkBorder) {
  for (const std::size_t n : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 128u, 1000u}) {
    Manager manager = manager_of(1000);
    const std::vector<SequenceHash> names = names_from(n, n);
    {
      const Blocks stored = store_names(manager, names);
    }
    EXPECT_EQ(places(manager), (Places{.reset = 1000 - n, .inactive = n}));
    auto allocation = value_of(manager.allocate_blocks_with_evictions(1000));
    EXPECT_EQ(allocation.evicted, std::vector<SequenceHash>(names.rbegin(), names.rend())) << n;
    auto ids = ids_of(allocation.blocks);
    std::sort(ids.begin(), ids.end());
    EXPECT_EQ(std::unique(ids.begin(), ids.end()), ids.end());
    EXPECT_EQ(places(manager), (Places{.owned = 1000}));
  }
}

TEST(AllocateTest, TheWholePoolCyclesTwice) {
  for (const std::string& backend : eviction_names()) {
    Manager manager = value_of(builder_of(64, make_counting_registry()).with_backend(backend).build());
    for (std::uint64_t round = 1; round <= 2; ++round) {
      const auto names = names_from(round << 32, 64);
      {
        const Blocks stored = store_names(manager, names);
      }
      EXPECT_EQ(places(manager), (Places{.inactive = 64})) << backend;
      EXPECT_EQ(manager.match_blocks(names).size(), 64u) << backend;
    }
    EXPECT_EQ(manager.counters().evictions, 64u);
    EXPECT_EQ(value_of(manager.allocate_blocks(64)).size(), 64u);
  }
}

// ---- the order of the reset pool

TEST(ResetAllocatorTest, DefaultIsFirstInFirstOut) {
  Manager manager = manager_of(3);
  {
    const auto some = value_of(manager.allocate_blocks(2));
  }
  EXPECT_EQ(ids_of(value_of(manager.allocate_blocks(3))), (Ids{2, 0, 1}));
}

TEST(ResetAllocatorTest, LifoHandsOutTheWarmestBlock) {
  Manager manager = value_of(builder_of(4)
                                 .reset_allocator([](std::uint32_t n) -> std::unique_ptr<ResetAllocator> {
                                   return std::make_unique<LifoResetAllocator>(n);
                                 })
                                 .build());
  auto blocks = value_of(manager.allocate_blocks(4));
  EXPECT_EQ(ids_of(blocks), (Ids{3, 2, 1, 0}));
  blocks[2] = Mutable();
  EXPECT_EQ(take_one(manager).block_id(), BlockId(1));
}

TEST(ResetAllocatorTest, BothKeepTheContractThroughManyTurns) {
  FifoResetAllocator fifo(5);
  LifoResetAllocator lifo(5);
  std::deque<std::uint32_t> fifo_model;
  std::vector<std::uint32_t> lifo_model;
  for (std::uint32_t turn = 0; turn < 1000; ++turn) {
    if (fifo_model.size() < 5 && turn % 3 != 2) {
      fifo.push(BlockId(turn));
      lifo.push(BlockId(turn));
      fifo_model.push_back(turn);
      lifo_model.push_back(turn);
    } else {
      BlockId out[2];
      const std::size_t wanted = turn % 2 + 1;
      const std::size_t got = fifo.pop(std::span(out).first(wanted));
      ASSERT_EQ(got, std::min(wanted, fifo_model.size()));
      for (std::size_t i = 0; i < got; ++i) {
        ASSERT_EQ(out[i].value(), fifo_model.front());
        fifo_model.pop_front();
      }
      ASSERT_EQ(lifo.pop(std::span(out).first(wanted)), got);
      for (std::size_t i = 0; i < got; ++i) {
        ASSERT_EQ(out[i].value(), lifo_model.back());
        lifo_model.pop_back();
      }
    }
    ASSERT_EQ(fifo.size(), fifo_model.size());
    ASSERT_EQ(lifo.size(), lifo_model.size());
  }
}

// Hands out the highest id first.
class HighestFirst final : public ResetAllocator {
 public:
  void push(BlockId id) override { ids_.push_back(id); }
  std::size_t pop(std::span<BlockId> out) override {
    std::sort(ids_.begin(), ids_.end());
    std::size_t count = 0;
    for (; count < out.size() && !ids_.empty() && count < 3; ++count) {  // never more than three at once
      out[count] = ids_.back();
      ids_.pop_back();
    }
    return count;
  }
  std::size_t size() const override { return ids_.size(); }

 private:
  std::vector<BlockId> ids_;
};

TEST(ResetAllocatorTest, AnAllocatorOfOnesOwnMayDeliverInPieces) {
  Manager manager = value_of(
      builder_of(8).reset_allocator([](std::uint32_t) { return std::make_unique<HighestFirst>(); }).build());
  const auto blocks = value_of(manager.allocate_blocks(8));
  EXPECT_EQ(ids_of(blocks), (Ids{7, 6, 5, 4, 3, 2, 1, 0}));
}

// ---- backends that announce more than they deliver

class LyingPool final : public InactivePool {
 public:
  LyingPool(std::uint32_t blocks, const std::size_t& generosity) : order_(blocks), generosity_(generosity) {}
  void insert(BlockId id, const tokens::SequenceHash&) override { order_.push_back(id); }
  void remove(BlockId id) override { order_.remove(id); }
  void touch(BlockId) override {}
  std::size_t pop(std::span<BlockId> out) override {
    std::size_t count = 0;
    while (count < out.size() && given_ < generosity_ && !order_.empty()) {
      out[count++] = *order_.pop_front();
      ++given_;
    }
    if (count == 0) given_ = 0;
    return count;
  }
  std::size_t peek(std::span<BlockId> out) const override { return order_.peek(out); }
  std::size_t size() const override { return order_.size(); }

 private:
  IntrusiveOrder order_;
  const std::size_t& generosity_;
  std::size_t given_ = 0;
};

class LyingBackendTest : public ::testing::TestWithParam<std::size_t> {};

TEST_P(LyingBackendTest, UnderDeliveryIsARefusalThatLosesNothing) {
  std::size_t generosity = GetParam();
  Manager manager = value_of(builder_of(100)
                                 .with_backend([&](const EvictionContext& context) {
                                   return Result<std::unique_ptr<InactivePool>>(
                                       std::make_unique<LyingPool>(context.block_count, generosity));
                                 })
                                 .build());
  const auto names = names_from(1, 80);
  {
    const Blocks stored = store_names(manager, names);
  }
  ASSERT_EQ(places(manager), (Places{.reset = 20, .inactive = 80}));
  const ManagerCounters before = manager.counters();

  auto refused = manager.allocate_blocks_with_evictions(100);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kNoRoom);
  EXPECT_EQ(places(manager), (Places{.reset = 20, .inactive = 80}));
  EXPECT_EQ(manager.counters().allocations, before.allocations);
  EXPECT_EQ(manager.counters().evictions, before.evictions);
  EXPECT_EQ(manager.try_allocate_until(100, Clock::TimePoint::max()).error().reason, Reason::kNoRoom);
  EXPECT_EQ(places(manager), (Places{.reset = 20, .inactive = 80}));

  // Every block is still found, and an honest backend delivers them all.
  EXPECT_EQ(manager.match_blocks(names).size(), 80u);
  EXPECT_EQ(value_of(manager.allocate_blocks(20)).size(), 20u);
  generosity = 1000;
  auto all = value_of(manager.allocate_blocks(100));
  EXPECT_EQ(places(manager), (Places{.owned = 100}));
}

INSTANTIATE_TEST_SUITE_P(DeliversOnly, LyingBackendTest, ::testing::Values(0u, 1u, 33u, 79u));

// ---- reset_inactive_pool, eviction_candidates

TEST(InactivePoolTest, ResetInactivePoolEmptiesItAndLeavesTheRest) {
  Manager manager = manager_of(100);
  const TokenSequence sequence = sequence_of(70);
  Blocks stored = store_all(manager, sequence);
  EXPECT_EQ(manager.reset_inactive_pool(), 0u);
  stored.truncate(2);
  EXPECT_EQ(manager.reset_inactive_pool(), 68u);
  EXPECT_EQ(places(manager), (Places{.reset = 98, .active = 2}));
  EXPECT_EQ(manager.match_blocks(sequence.sequence_hashes()).size(), 2u);
  EXPECT_EQ(manager.reset_inactive_pool(), 0u);
  EXPECT_EQ(manager.block_registry().registered_count(), 2u);
}

TEST(InactivePoolTest, CandidatesAreTheNextVictimsInOrderWithoutAChange) {
  Manager manager = manager_of(6);
  const TokenSequence sequence = sequence_of(4);
  Blocks stored = store_all(manager, sequence);
  EXPECT_TRUE(manager.eviction_candidates(4).empty());
  for (const std::size_t i : {2u, 0u, 3u}) stored[i] = Immutable();
  const auto hashes = sequence.sequence_hashes();
  EXPECT_THAT(manager.eviction_candidates(2), ElementsAre(hashes[2], hashes[0]));
  EXPECT_THAT(manager.eviction_candidates(99), ElementsAre(hashes[2], hashes[0], hashes[3]));
  EXPECT_TRUE(manager.eviction_candidates(0).empty());
  EXPECT_EQ(places(manager), (Places{.reset = 2, .inactive = 3, .active = 1}));
  EXPECT_THAT(value_of(manager.allocate_blocks_with_evictions(5)).evicted,
              ElementsAre(hashes[2], hashes[0], hashes[3]));
}

}  // namespace
}  // namespace ashlar::block
