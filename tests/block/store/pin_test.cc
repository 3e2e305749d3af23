// Pins: a veto against eviction, limited in time and number.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "ashlar/base/random.h"
#include "block/store/pin_table.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;
using ::testing::HasSubstr;

class PinTest : public ::testing::Test {
 protected:
  const SequenceHash& hash(std::size_t i = 0) const { return sequence_.blocks()[i].sequence_hash(); }
  void cache(std::size_t i = 0) { const Immutable stored = store_one(manager_, sequence_.blocks()[i]); }

  TokenSequence sequence_ = sequence_of(4);
  ManualClock clock_;
  Manager manager_ = value_of(builder_of(8).clock(clock_).max_pins(3).build());
};

TEST_F(PinTest, APinnedBlockStandsAsideFromEviction) {
  cache(0);
  cache(1);
  Pin pin = value_of(manager_.pin(hash(0), 10s));
  EXPECT_TRUE(pin.active());
  EXPECT_EQ(places(manager_), (Places{.reset = 6, .inactive = 1, .pinned = 1}));
  EXPECT_EQ(manager_.eviction_candidates(9), std::vector{hash(1)});
  EXPECT_EQ(manager_.reset_inactive_pool(), 1u);
  const auto refused = manager_.allocate_blocks(8);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().status.pinned_inactive, 1u);
  EXPECT_THAT(refused.error().to_error().message(), HasSubstr("1 pinned"));
  EXPECT_EQ(value_of(manager_.allocate_blocks(7)).size(), 7u);
  EXPECT_EQ(manager_.match_blocks(std::vector{hash(0)}).size(), 1u) << "it can be used all the same";
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .pinned = 1}));
  std::move(pin).unpin();
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .inactive = 1}));
}

TEST_F(PinTest, ABlockInUseIsPinnedForTheTimeAfterItsLastDrop) {
  Immutable block = store_one(manager_, sequence_.blocks()[0]);
  const Pin pin = value_of(block.pin(10s));
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .active = 1}));
  block = Immutable();
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .pinned = 1}));
  {
    const Blocks found = manager_.match_blocks(std::vector{hash(0)});
  }
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .pinned = 1}));
  EXPECT_EQ(manager_.counters().revivals, 1u);
}

TEST_F(PinTest, EndsWithItsTimeAndMakesRoom) {
  cache();
  const Pin pin = value_of(manager_.pin(hash(), 10s));
  clock_.advance(10s - 1ns);
  EXPECT_TRUE(pin.active());
  EXPECT_FALSE(manager_.allocate_blocks(8));
  clock_.advance(1ns);
  EXPECT_FALSE(pin.active());
  EXPECT_EQ(value_of(manager_.allocate_blocks(8)).size(), 8u);
}

TEST_F(PinTest, ExpiryIsNoticedByWhoeverLooks) {
  const auto expire = [&] {
    cache();
    Pin pin = value_of(manager_.pin(hash(), 1s));
    clock_.advance(1s);
    return pin;
  };
  {
    const Pin pin = expire();
    EXPECT_EQ(manager_.available_blocks(), 8u);
  }
  {
    const Pin pin = expire();
    EXPECT_TRUE(manager_.can_allocate(8));
  }
  {
    const Pin pin = expire();
    EXPECT_EQ(manager_.eviction_candidates(1).size(), 1u);
  }
  {
    const Pin pin = expire();
    EXPECT_EQ(manager_.reset_inactive_pool(), 1u);
  }
  {
    const Pin pin = expire();
    EXPECT_EQ(value_of(manager_.try_allocate_until(8, clock_.now())).size(), 8u);
  }
}

TEST_F(PinTest, ExpiryWhileTheBlockIsInUseChangesNothingUntilTheDrop) {
  Immutable block = store_one(manager_, sequence_.blocks()[0]);
  const Pin pin = value_of(block.pin(1s));
  clock_.advance(1s);
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .active = 1}));
  block = Immutable();
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .inactive = 1}));
}

TEST_F(PinTest, ABlockStaysAsideUntilItsLastPinEnds) {
  cache();
  Pin longer = value_of(manager_.pin(hash(), 20s));
  Pin shorter = value_of(manager_.pin(hash(), 10s));
  std::optional<Pin> third = value_of(manager_.pin(hash(), 30s));
  clock_.advance(10s);
  EXPECT_FALSE(shorter.active());
  EXPECT_EQ(places(manager_).pinned, 1u);
  third.reset();
  EXPECT_EQ(places(manager_).pinned, 1u);
  clock_.advance(10s);
  EXPECT_FALSE(longer.active());
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .inactive = 1}));
}

TEST_F(PinTest, EndsWithTheGuard) {
  cache();
  {
    const Pin pin = value_of(manager_.pin(hash(), 10s));
  }
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .inactive = 1}));
  Pin pin = value_of(manager_.pin(hash(), 10s));
  pin = Pin();
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .inactive = 1}));
  Pin moved;
  {
    Pin original = value_of(manager_.pin(hash(), 10s));
    moved = std::move(original);
    EXPECT_FALSE(original.active());  // NOLINT(bugprone-use-after-move)
  }
  EXPECT_TRUE(moved.active());
  EXPECT_EQ(places(manager_).pinned, 1u);
}

TEST_F(PinTest, CannotBeUndoneTwice) {
  cache();
  Pin expired = value_of(manager_.pin(hash(), 1s));
  clock_.advance(1s);
  EXPECT_FALSE(expired.active());
  // The record is used again by another pin; the old one must not end it.
  Pin fresh = value_of(manager_.pin(hash(), 10s));
  std::move(expired).unpin();
  EXPECT_TRUE(fresh.active());
  std::move(expired).unpin();  // NOLINT(bugprone-use-after-move)
  EXPECT_TRUE(fresh.active());
  EXPECT_EQ(places(manager_), (Places{.reset = 7, .pinned = 1}));
  Pin().unpin();
}

TEST_F(PinTest, TheNumberOfPinsIsCapped) {
  cache();
  std::vector<Pin> pins;
  for (int i = 0; i < 3; ++i) pins.push_back(value_of(manager_.pin(hash(), 10s)));
  const auto refused = manager_.pin(hash(), 10s);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(), HasSubstr("all 3 pins are taken"));
  pins.pop_back();
  EXPECT_TRUE(manager_.pin(hash(), 10s));
  pins.push_back(value_of(manager_.pin(hash(), 1s)));
  EXPECT_FALSE(manager_.pin(hash(), 10s));
  clock_.advance(1s);
  EXPECT_TRUE(manager_.pin(hash(), 10s)) << "a pin that ran out is not counted";
}

TEST_F(PinTest, TheDefaultCapIsAQuarterOfTheBlocksAndAtLeastOne) {
  for (const auto& [blocks, cap] : {std::pair{1u, 1u}, {3u, 1u}, {8u, 2u}, {41u, 10u}}) {
    Manager manager = value_of(builder_of(blocks).clock(clock_).build());
    {
      const Immutable stored = store_one(manager, sequence_.blocks()[0]);
    }
    std::vector<Pin> pins;
    for (unsigned i = 0; i < cap; ++i) pins.push_back(value_of(manager.pin(hash(), 1s)));
    EXPECT_FALSE(manager.pin(hash(), 1s)) << blocks;
  }
}

TEST_F(PinTest, RefusesUnknownHashesAndTimesThatAreNotPositive) {
  EXPECT_EQ(manager_.pin(name_of(1, 77), 1s).error().code(), ErrorCode::kNotFound);
  EXPECT_THAT(manager_.pin(name_of(1, 77), 1s).error().message(), HasSubstr("registered in g1"));
  const Immutable primary = store_one(manager_, sequence_.blocks()[0]);
  EXPECT_EQ(primary.pin(0s).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(primary.pin(-1s).error().code(), ErrorCode::kInvalidArgument);
  const Pin pin = value_of(manager_.pin(hash(), 1s));
  EXPECT_TRUE(pin.active());
}

TEST_F(PinTest, OfADuplicateKeepsThePrimaryOfItsHash) {
  Immutable duplicate = store_one(manager_, sequence_.blocks()[0]);
  Immutable primary = store_one(manager_, sequence_.blocks()[0]);
  const BlockId id = primary.block_id();
  const Pin pin = value_of(duplicate.pin(1s));
  primary = Immutable();
  EXPECT_EQ(places(manager_).pinned, 1u);
  duplicate = Immutable();
  EXPECT_EQ(manager_.match_blocks(sequence_.sequence_hashes())[0].block_id(), id);
}

TEST_F(PinTest, ForEverIsATimeToo) {
  cache();
  const Pin pin = value_of(manager_.pin(hash(), Clock::Duration::max()));
  clock_.advance(std::chrono::hours(24 * 365));
  EXPECT_TRUE(pin.active());
  EXPECT_EQ(places(manager_).pinned, 1u);
}

TEST_F(PinTest, MayOutliveTheManager) {
  std::optional<Manager> manager = manager_of(4);
  {
    const Immutable stored = store_one(*manager, sequence_.blocks()[0]);
  }
  Pin pin = value_of(manager->pin(hash(), 1h));
  manager.reset();
  EXPECT_FALSE(pin.active());
  std::move(pin).unpin();
}

// ---- the table itself against a naive model

TEST(PinTableTest, EndsInTheOrderOfTimeWhateverIsRemovedBetween) {
  detail::PinTable table(16);
  struct Record {
    detail::PinTable::Key key;
    std::uint32_t slot;
    Clock::TimePoint end;
  };
  std::vector<Record> model;
  Random random(7);
  Clock::TimePoint now{};
  for (std::uint32_t turn = 0; turn < 20000; ++turn) {
    switch (random.below(4)) {
      case 0:
      case 1: {
        const Clock::TimePoint end = now + std::chrono::nanoseconds(random.below(50) + 1);
        const auto key = table.add(turn, end);
        ASSERT_EQ(key.has_value(), model.size() < 16);
        if (key) model.push_back({*key, turn, end});
        break;
      }
      case 2: {
        if (model.empty()) break;
        const std::size_t at = random.below(model.size());
        ASSERT_EQ(table.slot_of(model[at].key), model[at].slot);
        ASSERT_EQ(table.remove(model[at].key), model[at].slot);
        ASSERT_FALSE(table.remove(model[at].key));
        ASSERT_FALSE(table.slot_of(model[at].key));
        model.erase(model.begin() + static_cast<std::ptrdiff_t>(at));
        break;
      }
      default: {
        now += std::chrono::nanoseconds(random.below(20));
        while (const auto slot = table.remove_ended(now)) {
          const auto at =
              std::find_if(model.begin(), model.end(), [&](const Record& r) { return r.slot == *slot; });
          ASSERT_NE(at, model.end());
          ASSERT_LE(at->end, now);
          model.erase(at);
        }
        for (const Record& record : model) ASSERT_GT(record.end, now);
        break;
      }
    }
    ASSERT_EQ(table.size(), model.size());
    if (model.empty()) {
      ASSERT_FALSE(table.next_end());
    } else {
      const auto next = std::min_element(model.begin(), model.end(),
                                         [](const Record& a, const Record& b) { return a.end < b.end; });
      ASSERT_EQ(table.next_end(), next->end);
    }
  }
}

}  // namespace
}  // namespace ashlar::block
