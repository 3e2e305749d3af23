// The store's index against a plain map, in tables so small that every bucket has passed entries on.
#include "block/registry/hash_index.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "ashlar/base/random.h"
#include "block/registry/hash_mix.h"
#include "support/block_fixture.h"

namespace ashlar::block::detail {
namespace {

class HashIndexTest : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(HashIndexTest, AgreesWithAMapThroughRandomTurns) {
  const std::uint32_t slots = GetParam();
  HashIndex index(slots);
  std::map<std::uint64_t, std::uint32_t> model;  // mixed hash -> slot
  std::vector<std::uint32_t> free;
  for (std::uint32_t slot = slots; slot-- > 0;) free.push_back(slot);
  Random random(slots);
  std::vector<std::uint64_t> known(slots * 2);
  for (std::uint64_t& mixed : known) {
    mixed = HashMix::of(support::name_of(static_cast<std::uint32_t>(random.below(300)), random.next()));
  }
  for (int turn = 0; turn < 60000; ++turn) {
    const std::uint64_t mixed = known[random.below(known.size())];
    const auto at = model.find(mixed);
    const auto is_it = [&](std::uint32_t slot) {
      EXPECT_TRUE(std::find(free.begin(), free.end(), slot) == free.end()) << "slot " << slot << " has left";
      return at != model.end() && slot == at->second;
    };
    if (at != model.end()) {
      ASSERT_EQ(index.find(mixed, is_it), at->second);
      ASSERT_NE(index.candidate(mixed), HashIndex::kNone);
      if (random.chance(0.5)) {
        index.erase(mixed, at->second);
        free.push_back(at->second);
        model.erase(at);
      }
    } else {
      ASSERT_EQ(index.find(mixed, is_it), HashIndex::kNone);
      if (!free.empty()) {
        index.insert(mixed, free.back());
        model.emplace(mixed, free.back());
        free.pop_back();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, HashIndexTest,
                         ::testing::Values(1u, 2u, 7u, 8u, 9u, 11u, 12u, 19u, 100u, 1000u));

// The index stands for what it holds: under the owner's lock nobody is asked about a slot that has left.
TEST(HashIndexTest, AnErasedEntryIsNoCandidateWhateverStandsBesideIt) {
  for (std::uint64_t top = 0; top < 256; ++top) {
    for (std::uint64_t other_top = 0; other_top < 256; other_top += top < 4 ? 1 : 17) {
      HashIndex index(7);  // one bucket
      const std::uint64_t gone = top << 56 | 0x1111'0000'0000;
      const std::uint64_t stays = other_top << 56 | 0x2222'0000'0000;
      index.insert(stays, 0);
      index.insert(gone, 1);
      index.insert(stays ^ 0x4444'0000'0000, 2);
      index.erase(gone, 1);
      const auto is_there = [](std::uint32_t slot) {
        EXPECT_NE(slot, 1u);
        return slot == 1;
      };
      ASSERT_EQ(index.find(gone, is_there), HashIndex::kNone) << top << " beside " << other_top;
      ASSERT_EQ(index.find(stays, [](std::uint32_t slot) { return slot == 0; }), 0u);
      index.insert(gone, 3);
      ASSERT_EQ(index.find(gone, [](std::uint32_t slot) { return slot == 3; }), 3u);
    }
  }
}

TEST(HashIndexTest, HashesWithOneTagAreToldApartByTheSlot) {
  HashIndex index(32);
  const std::uint64_t mixed = HashMix::of(support::name_of(1, 1));
  for (std::uint32_t slot = 0; slot < 20; ++slot) index.insert(mixed, slot);
  for (std::uint32_t slot = 0; slot < 20; ++slot) {
    EXPECT_EQ(index.find(mixed, [&](std::uint32_t at) { return at == slot; }), slot);
  }
  for (std::uint32_t slot = 0; slot < 20; slot += 2) index.erase(mixed, slot);
  for (std::uint32_t slot = 0; slot < 20; ++slot) {
    EXPECT_EQ(index.find(mixed, [&](std::uint32_t at) { return at == slot; }),
              slot % 2 == 1 ? slot : HashIndex::kNone);
  }
}

}  // namespace
}  // namespace ashlar::block::detail
