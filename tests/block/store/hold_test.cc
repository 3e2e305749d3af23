// Holds: a block stays where it is, in place and in the order of eviction, while somebody copies it.
#include "ashlar/block/pin.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

class HoldTest : public ::testing::Test {
 protected:
  const SequenceHash& hash(std::size_t i = 0) const { return sequence_.blocks()[i].sequence_hash(); }
  void cache(std::size_t i = 0) { const Immutable stored = store_one(manager_, sequence_.blocks()[i]); }
  std::vector<SequenceHash> order() const { return manager_.eviction_candidates(99); }
  bool has(std::size_t i) { return manager_.scan_matches(std::vector{hash(i)}, false).size() == 1; }

  TokenSequence sequence_ = sequence_of(8);
  ManualClock clock_;
  Manager manager_ = value_of(builder_of(4).clock(clock_).build());
};

TEST_F(HoldTest, LeavesTheOrderOfEvictionAlone) {
  for (std::size_t i = 0; i < 4; ++i) cache(i);
  const std::vector<SequenceHash> before = order();
  {
    const Hold hold = value_of(manager_.hold(hash(0)));
    EXPECT_TRUE(hold);
    EXPECT_EQ(hold.sequence_hash(), hash(0));
    EXPECT_EQ(manager_.status().held_inactive, 1u);
    EXPECT_EQ(manager_.available_blocks(), 3u);
    manager_.check_invariants();
  }
  EXPECT_EQ(order(), before);
  EXPECT_EQ(manager_.available_blocks(), 4u);
  EXPECT_EQ(manager_.counters().revivals, 0u);
}

TEST_F(HoldTest, ABlockWhoseTurnComesIsEvictedWhenItIsLetGo) {
  for (std::size_t i = 0; i < 4; ++i) cache(i);
  Hold hold = value_of(manager_.hold(hash(0)));
  const BlockId held = hold.block_id();
  EXPECT_FALSE(manager_.allocate_blocks(4));
  {
    auto two = value_of(manager_.allocate_blocks(2));  // 0 was the first of them
    for (const auto& block : two) EXPECT_NE(block.block_id(), held);
    EXPECT_FALSE(has(1));
    EXPECT_FALSE(has(2));
    EXPECT_TRUE(has(0)) << "still findable";
    EXPECT_EQ(manager_.status().held_inactive, 1u) << "the look at it revived it: it is in the pool again";
  }
  EXPECT_EQ(order().back(), hash(0)) << "a use makes it the newest";
  hold = Hold();
  EXPECT_TRUE(has(0));
}

TEST_F(HoldTest, TheLastHoldDoesTheEviction) {
  for (std::size_t i = 0; i < 4; ++i) cache(i);
  Hold one = value_of(manager_.hold(hash(0)));
  Hold two = value_of(manager_.hold(hash(0)));
  EXPECT_EQ(value_of(manager_.allocate_blocks(3)).size(), 3u);
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  one = Hold();
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  const std::uint64_t evictions = manager_.counters().evictions;
  two = Hold();
  EXPECT_EQ(manager_.status().held_inactive, 0u);
  EXPECT_EQ(manager_.counters().evictions, evictions + 1);
  EXPECT_EQ(manager_.status().reset, 4u);
  EXPECT_FALSE(has(0));
  manager_.check_invariants();
}

TEST_F(HoldTest, WhoWaitsForRoomGetsIt) {
  for (std::size_t i = 0; i < 4; ++i) cache(i);
  std::optional<Hold> hold = value_of(manager_.hold(hash(0)));
  std::thread waiter([&] { EXPECT_TRUE(manager_.try_allocate_until(4, clock_.now() + 10s)); });
  while (manager_.status().waiters == 0) std::this_thread::yield();
  hold.reset();
  waiter.join();
}

TEST_F(HoldTest, ABlockInUseIsHeldBeyondItsLastDrop) {
  std::optional<Immutable> block = store_one(manager_, sequence_.blocks()[0]);
  Hold hold = value_of(manager_.hold(hash(0)));
  EXPECT_EQ(manager_.status().active, 1u);
  block.reset();
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  EXPECT_EQ(manager_.reset_inactive_pool(), 0u) << "it is set aside";
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  hold = Hold();
  EXPECT_EQ(manager_.status().reset, 4u);
}

TEST_F(HoldTest, ABlockThatIsToBeResetWaitsForItsHold) {
  std::optional<Immutable> block = store_one(manager_, sequence_.blocks()[0]);
  block->set_reset_on_release(true);
  Hold hold = value_of(manager_.hold(hash(0)));
  block.reset();
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  hold = Hold();
  EXPECT_EQ(manager_.status().reset, 4u);
}

TEST_F(HoldTest, PinsAndHoldsDoNotDisturbEachOther) {
  for (std::size_t i = 0; i < 4; ++i) cache(i);
  Hold hold = value_of(manager_.hold(hash(0)));
  std::optional<Pin> pin = value_of(manager_.pin(hash(0), 10s));
  EXPECT_EQ(manager_.status().pinned_inactive, 1u);
  manager_.check_invariants();
  hold = Hold();
  manager_.check_invariants();
  hold = value_of(manager_.hold(hash(0)));
  pin.reset();
  EXPECT_EQ(manager_.status().held_inactive, 1u);
  EXPECT_EQ(value_of(manager_.allocate_blocks(3)).size(), 3u);
  pin = value_of(manager_.pin(hash(0), 10s));
  manager_.check_invariants();
  hold = Hold();
  EXPECT_TRUE(has(0));
}

TEST_F(HoldTest, OutlivesTheManagerAndSaysWhatIsMissing) {
  const auto missing = manager_.hold(hash(0));
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), ErrorCode::kNotFound);
  EXPECT_FALSE(manager_.try_hold(hash(0)));
  Hold hold;
  {
    Manager other = value_of(builder_of(4).build());
    const Immutable stored = store_one(other, sequence_.blocks()[0]);
    hold = value_of(other.hold(hash(0)));
    const std::optional<Hold> tried = other.try_hold(hash(0));
    ASSERT_TRUE(tried);
    EXPECT_EQ(tried->block_id(), hold.block_id());
  }
  hold = Hold();
}

// Two managers that live through the same, one of them with holds: their orders of eviction never differ.
TEST(HoldOrderTest, IsTheSameWithAndWithoutHoldsInEveryBackend) {
  for (const char* backend : {"lru", "hashmap_fifo", "hashmap_lifo", "hashmap_lru", "hashmap_priority",
                              "lineage", "lineage_round_robin", "retention"}) {
    const TokenSequence sequence = sequence_of(40);
    ManualClock clock;
    const auto make = [&] {
      return value_of(builder_of(24).clock(clock).with_backend(std::string_view(backend)).build());
    };
    Manager plain = make();
    Manager held = make();
    Random random(17);
    std::map<std::size_t, Hold> holds;
    for (int step = 0; step < 4000; ++step) {
      const std::size_t i = random.below(40);
      const SequenceHash hash = sequence.blocks()[i].sequence_hash();
      switch (random.below(4)) {
        case 0:
          if (auto hold = held.hold(hash)) holds.insert_or_assign(i, *std::move(hold));
          break;
        case 1:
          holds.erase(random.below(40));
          break;
        case 2: {
          const auto a = plain.match_blocks(std::vector{hash});
          const auto b = held.match_blocks(std::vector{hash});
          ASSERT_EQ(a.size(), b.size());
          break;
        }
        default: {
          // Evict only what is not held, or the two differ as they should.
          const std::vector<SequenceHash> next = held.eviction_candidates(1);
          const bool first_is_held = !next.empty() && std::ranges::any_of(holds, [&](const auto& entry) {
            return sequence.blocks()[entry.first].sequence_hash() == next[0];
          });
          if (first_is_held) break;
          {
            const auto a = plain.match_blocks(std::vector{hash});
            const auto b = held.match_blocks(std::vector{hash});
            if (!a.empty()) break;
          }
          const Immutable a = store_one(plain, sequence.blocks()[i]);
          const Immutable b = store_one(held, sequence.blocks()[i]);
        }
      }
      ASSERT_EQ(plain.eviction_candidates(99), held.eviction_candidates(99)) << backend << ", step " << step;
    }
    held.check_invariants();
  }
}

}  // namespace
}  // namespace ashlar::block
