// The parts of PositionalIndexer: chains, sets of workers in their three forms, entries that change between
// Single and Multi, the board of workers that are not nested.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <map>
#include <set>
#include <vector>

#include "ashlar/base/random.h"
#include "base/walked_steps.h"
#include "index/positional/positional_chain.h"
#include "index/positional/positional_map.h"
#include "index/positional/positional_nesting.h"
#include "index/positional/positional_set.h"

namespace ashlar::index::detail {
namespace {

using events::kStorageTiers;
using tokens::LocalHash;

constexpr std::size_t kSlots = 300;
using Model = std::map<std::uint32_t, TierMask>;

// The planes of a set over all slots are those of the model; `first` and `words` choose a part.
void expect_planes(const WorkerSet& set, const Model& model, std::size_t first, std::size_t words) {
  std::vector<std::uint64_t> expected(kStorageTiers * words);
  for (const auto& [slot, tiers] : model) {
    const std::size_t word = slot / 64 - first;
    if (slot / 64 < first || word >= words) continue;
    for (std::size_t tier = 0; tier < kStorageTiers; ++tier)
      expected[tier * words + word] |= std::uint64_t{(tiers >> tier & 1u) != 0} << (slot % 64);
  }
  std::vector<std::uint64_t> planes(kStorageTiers * words, ~std::uint64_t{0});
  set.copy_planes(planes.data(), first, words);
  ASSERT_EQ(planes, expected);

  std::vector<std::uint64_t> among(words, 0x5555'5555'5555'5555u);
  std::vector<std::uint64_t> found(words, ~std::uint64_t{0});
  set.intersect_device(among.data(), found.data(), first, words);
  for (std::size_t i = 0; i < words; ++i) ASSERT_EQ(found[i], expected[i] & among[i]);
}

TEST(PositionalChainTest, AChainDependsOnEveryBlockAndItsPlace) {
  std::set<std::pair<std::uint64_t, std::uint64_t>> seen;
  const auto add = [&](std::vector<std::uint64_t> locals) {
    Chain chain;
    for (const std::uint64_t local : locals) chain = extended(chain, LocalHash(local));
    return seen.emplace(chain.a, chain.b).second;
  };
  EXPECT_TRUE(add({}));
  for (const std::uint64_t a : {0u, 1u, 2u}) {
    EXPECT_TRUE(add({a}));
    for (const std::uint64_t b : {0u, 1u, 2u}) {
      EXPECT_TRUE(add({a, b}));
      EXPECT_TRUE(add({a, b, 0}));
      EXPECT_TRUE(add({a, b, 0, 0}));
    }
  }
  EXPECT_FALSE(add({1, 2}));
}

TEST(PositionalChainTest, LanesDoNotMeetWhereOneIsForcedTo) {
  // The first lane of these two is the same on purpose: its state and the local hash cancel out.
  const Chain left = extended({}, LocalHash(1));
  const Chain right = extended({}, LocalHash(2));
  const Chain left_next = extended(left, LocalHash(left.a));
  const Chain right_next = extended(right, LocalHash(right.a));
  EXPECT_NE(left_next, right_next);
  EXPECT_NE(left_next.b, right_next.b);
}

TEST(WorkerSetTest, DoesWhatAMapFromSlotToTiersDoes) {
  for (const bool tiers_too : {false, true}) {
    Random random(tiers_too ? 1 : 2);
    WorkerSet set;
    Model model;
    std::size_t bytes = 0;
    for (int step = 0; step < 4'000; ++step) {
      const bool growing = step / 800 % 2 == 0;
      const auto slot = static_cast<std::uint32_t>(random.below(kSlots));
      const auto tiers = static_cast<TierMask>(tiers_too ? 1 + random.below(15) : 1);
      const TierMask before = model.contains(slot) ? model[slot] : TierMask{0};
      if (random.below(8) < (growing ? 7u : 1u)) {
        ASSERT_EQ(set.add(slot, tiers, kSlots, bytes), before);
        model[slot] = before | tiers;
      } else {
        ASSERT_EQ(set.remove(slot, tiers, bytes), before);
        if ((before & ~tiers) == 0)
          model.erase(slot);
        else
          model[slot] = static_cast<TierMask>(before & ~tiers);
      }
      ASSERT_EQ(set.count(), model.size());
      ASSERT_EQ(set.empty(), model.empty());
      ASSERT_EQ(set.tiers_of(slot), model.contains(slot) ? model[slot] : TierMask{0});
      ASSERT_EQ(bytes != 0, model.size() >= 2);
      if (step % 16 == 0) {
        expect_planes(set, model, 0, 5);
        expect_planes(set, model, 2, 2);
        expect_planes(set, model, 6, 1);
      }
    }
    set.reset(bytes);
    EXPECT_EQ(bytes, 0u);
    EXPECT_TRUE(set.empty());
  }
}

TEST(WorkerSetTest, ABitsetGrowsWithTheSlots) {
  WorkerSet set;
  Model model;
  std::size_t bytes = 0;
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) {
    set.add(slot, kDeviceMask, slot + 1, bytes);
    model[slot] = kDeviceMask;
    expect_planes(set, model, 0, 5);
  }
  EXPECT_LT(bytes, kSlots);
  for (std::uint32_t slot = 0; slot < kSlots; ++slot) set.remove(slot, kDeviceMask, bytes);
  EXPECT_TRUE(set.empty());
  EXPECT_EQ(bytes, 0u);
}

TEST(PositionalMapTest, DoesWhatAMapOfMapsDoes) {
  struct Key {
    std::uint64_t entry;
    Chain chain;
  };
  Random random(7);
  std::vector<Key> keys;
  // Some entries with one content, some with many.
  for (std::uint64_t i = 0; i < 60; ++i) {
    const std::uint64_t entry = random.next();
    const std::uint64_t contents = i % 6 == 0 ? 12 : i % 3 == 0 ? 2 : 1;
    for (std::uint64_t content = 0; content < contents; ++content)
      keys.push_back({entry, {random.next(), random.next()}});
  }
  PositionalMap map;
  std::map<std::size_t, Model> model;
  for (int step = 0; step < 20'000; ++step) {
    const bool growing = step / 4'000 % 2 == 0;
    const auto at = static_cast<std::size_t>(random.below(keys.size()));
    const Key& key = keys[at];
    const auto slot = static_cast<std::uint32_t>(random.below(4));
    const TierMask before = model[at].contains(slot) ? model[at][slot] : TierMask{0};
    if (random.below(8) < (growing ? 6u : 2u)) {
      ASSERT_EQ(map.add(key.entry, key.chain, slot, kDeviceMask, 4), before);
      model[at][slot] = kDeviceMask;
    } else {
      ASSERT_EQ(map.remove(key.entry, key.chain, slot, kDeviceMask), before);
      model[at].erase(slot);
    }
    if (model[at].empty()) model.erase(at);
    ASSERT_EQ(map.contents(), model.size());
    if (step % 100 != 0) continue;
    std::set<std::uint64_t> entries;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const WorkerSet found = map.find(keys[i].entry, keys[i].chain);
      ASSERT_EQ(found.count(), model.contains(i) ? model[i].size() : 0u);
      if (model.contains(i)) entries.insert(keys[i].entry);
    }
    ASSERT_EQ(map.entries(), entries.size());
  }
  for (const auto& [at, workers] : model)
    for (const auto& [slot, tiers] : workers) map.remove(keys[at].entry, keys[at].chain, slot, tiers);
  EXPECT_EQ(map.entries(), 0u);
  EXPECT_EQ(map.contents(), 0u);
  EXPECT_EQ(map.bytes(), 0u);
}

TEST(PositionalMapTest, AnotherChainAtTheSameKeyIsAnotherContent) {
  PositionalMap map;
  const Chain one{1, 2};
  const Chain other{1, 3};
  map.add(5, one, 0, kDeviceMask, 2);
  EXPECT_TRUE(map.find(5, other).empty());
  EXPECT_EQ(map.remove(5, other, 0, kDeviceMask), 0);
  map.add(5, other, 1, kDeviceMask, 2);
  EXPECT_EQ(map.entries(), 1u);
  EXPECT_EQ(map.contents(), 2u);
  EXPECT_EQ(map.find(5, one).tiers_of(1), 0);
  EXPECT_EQ(map.find(5, other).tiers_of(1), kDeviceMask);
  map.remove(5, one, 0, kDeviceMask);
  EXPECT_EQ(map.contents(), 1u);
  EXPECT_EQ(map.find(5, other).tiers_of(1), kDeviceMask);
  map.remove(5, other, 1, kDeviceMask);
  EXPECT_EQ(map.bytes(), 0u);
}

TEST(NestingBoardTest, AQueryLearnsWhoDrewANumberSinceItBegan) {
  NestingBoard board;
  board.resize(130);
  const std::uint64_t begun = board.number();
  EXPECT_EQ(board.posted(1), 0u);
  board.post(3);
  EXPECT_EQ(board.number(), begun);  // holes alone change no conclusion
  board.post_lower_tier(70);
  EXPECT_TRUE(board.is_posted(70));
  EXPECT_EQ(board.posted(1), std::uint64_t{1} << 6);
  EXPECT_NE(board.number(), begun);
  EXPECT_TRUE(board.drew_since(70, begun));
  EXPECT_FALSE(board.drew_since(3, begun));
  EXPECT_FALSE(board.drew_since(70, board.number()));
  board.take_down(70);
  EXPECT_FALSE(board.is_posted(70));
  EXPECT_TRUE(board.drew_since(70, begun));
}

TEST(NestingBoardTest, GrowingByOneSlotAtATimeCopiesEachSlotAFewTimes) {
  constexpr std::size_t kMany = 20'000;
  NestingBoard board;
  const std::uint64_t before = walked_steps;
  for (std::size_t slots = 1; slots <= kMany; ++slots) board.resize(slots);
  for (std::size_t slots = kMany; slots > 0; --slots) board.resize(slots - 1);
  EXPECT_LE(walked_steps - before, 5 * kMany);
  EXPECT_EQ(board.bytes(), 0u);
}

TEST(NestingBoardTest, ResizingKeepsWhatIsPosted) {
  NestingBoard board;
  board.resize(10);
  board.post_lower_tier(9);
  board.resize(200);
  EXPECT_TRUE(board.is_posted(9));
  EXPECT_TRUE(board.drew_since(9, 0));
  EXPECT_FALSE(board.is_posted(199));
  board.take_down(9);
  board.resize(0);
  EXPECT_EQ(board.bytes(), 0u);
}

}  // namespace
}  // namespace ashlar::index::detail
