#include "base/entry_map.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar {
namespace {

struct Pair {
  using Key = std::uint64_t;
  std::uint64_t name = 0;
  std::uint64_t value = 0;

  Key key() const noexcept { return name; }
  bool empty() const noexcept { return value == 0; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
};

// All keys have one of four homes.
struct CrowdedPair : Pair {
  CrowdedPair() = default;
  CrowdedPair(std::uint64_t its_name, std::uint64_t its_value) : Pair{its_name, its_value} {}
  static std::uint64_t hash(Key key, std::uint64_t) noexcept { return key << 62; }
};

template <class Entry>
class EntryMapTest : public ::testing::Test {};
using EntryTypes = ::testing::Types<Pair, CrowdedPair>;
TYPED_TEST_SUITE(EntryMapTest, EntryTypes);

TYPED_TEST(EntryMapTest, DoesWhatAMapDoes) {
  EntryMap<TypeParam> map;
  std::map<std::uint64_t, std::uint64_t> model;
  Random random(3);
  for (int step = 0; step < 6'000; ++step) {
    const std::uint64_t key = random.below(300);  // 0 is a key like others
    const bool growing = step / 1'000 % 2 == 0;
    if (random.below(4) < (growing ? 3u : 1u)) {
      const std::uint64_t value = random.next() | 1;
      const auto [entry, is_new] = map.insert(TypeParam{key, value});
      ASSERT_EQ(is_new, model.emplace(key, value).second);
      ASSERT_EQ(entry->value, model[key]);
    } else {
      TypeParam* entry = map.find(key);
      ASSERT_EQ(entry != nullptr, model.erase(key) == 1);
      if (entry != nullptr) map.erase(entry);
    }
    ASSERT_EQ(map.size(), model.size());
    if (step % 50 != 0) continue;
    for (std::uint64_t k = 0; k < 300; ++k) {
      const TypeParam* found = map.find(k);
      ASSERT_EQ(found != nullptr, model.contains(k));
      if (found != nullptr) {
        ASSERT_EQ(found->value, model[k]);
      }
    }
    std::map<std::uint64_t, std::uint64_t> all;
    map.for_each([&](const TypeParam& entry) { all.emplace(entry.name, entry.value); });
    ASSERT_EQ(all, model);
  }
}

TEST(EntryMapMemoryTest, AnEmptyMapHasNoMemory) {
  EntryMap<Pair> map;
  EXPECT_EQ(map.bytes(), 0u);
  EXPECT_EQ(map.find(1), nullptr);
  for (std::uint64_t key = 0; key < 1'000; ++key) map.insert({key, 1});
  EXPECT_GE(map.bytes(), 1'000 * sizeof(Pair));
  for (std::uint64_t key = 0; key < 1'000; ++key) {
    map.erase(map.find(key));
    EXPECT_LE(map.bytes(), (map.size() * 16 / 3 + 8) * sizeof(Pair));
  }
  EXPECT_EQ(map.bytes(), 0u);
}

// Arrays of 2 MiB and more are allocated in another way.
TEST(EntryMapMemoryTest, LargeArraysComeAndGo) {
  EntryMap<Pair> map;
  constexpr std::uint64_t kMany = 300'000;
  for (int round = 0; round < 2; ++round) {
    for (std::uint64_t key = 0; key < kMany; ++key) map.insert({key, key + 1});
    EXPECT_GT(map.bytes(), std::size_t{4} << 20);
    std::uint64_t right = 0;
    for (std::uint64_t key = 0; key < kMany; ++key) right += map.find(key)->value == key + 1 ? 1 : 0;
    EXPECT_EQ(right, kMany);
    for (std::uint64_t key = 0; key < kMany; ++key) map.erase(map.find(key));
    EXPECT_EQ(map.bytes(), 0u);
  }
  map.reserve(kMany);
  EXPECT_EQ(map.find(1), nullptr);
  map.clear();
  EXPECT_EQ(map.bytes(), 0u);
}

TEST(EntryMapMemoryTest, ReservedEntriesDoNotMove) {
  EntryMap<Pair> map;
  for (std::uint64_t key = 0; key < 20; ++key) map.insert({key, 1});
  map.reserve(1'000);
  const std::size_t capacity = map.capacity();
  std::vector<Pair*> entries;
  for (std::uint64_t key = 20; key < 1'000; ++key) entries.push_back(map.insert({key, key}).first);
  EXPECT_EQ(map.capacity(), capacity);
  for (std::uint64_t key = 20; key < 1'000; ++key) EXPECT_EQ(map.find(key), entries[key - 20]);
}

TEST(EntryMapMemoryTest, MoreThanAnyMemoryIsRefused) {
  EntryMap<Pair> map;
  map.insert({1, 1});
  for (const std::size_t size : {SIZE_MAX, SIZE_MAX / 4, SIZE_MAX / 2 + 1, SIZE_MAX / sizeof(Pair)})
    EXPECT_THROW(map.reserve(size), std::bad_alloc) << size;
  EXPECT_NE(map.find(1), nullptr);
}

TEST(EntryMapMemoryTest, CapacityIsRestored) {
  EntryMap<Pair> map;
  for (const std::uint64_t before : {0u, 5u, 100u}) {
    for (std::uint64_t key = 0; key < before; ++key) map.insert({key, 1});
    const std::size_t capacity = map.capacity();
    for (std::uint64_t key = 1'000; key < 5'000; ++key) map.insert({key, 1});
    for (std::uint64_t key = 1'000; key < 5'000; ++key) map.erase(map.find(key));
    map.restore_capacity(capacity);
    EXPECT_EQ(map.capacity(), capacity);
    EXPECT_EQ(map.size(), before);
    for (std::uint64_t key = 0; key < before; ++key) EXPECT_NE(map.find(key), nullptr);
  }
}

TEST(EntryMapMemoryTest, ShrinksWithItsSize) {
  EntryMap<Pair> map;
  for (std::uint64_t key = 0; key < 10'000; ++key) map.insert({key, 1});
  const std::size_t full = map.bytes();
  for (std::uint64_t key = 10; key < 10'000; ++key) EXPECT_TRUE(map.erase(key));
  EXPECT_FALSE(map.erase(10));
  EXPECT_LT(map.bytes(), full / 50);
  for (std::uint64_t key = 0; key < 10; ++key) EXPECT_NE(map.find(key), nullptr);
}

}  // namespace
}  // namespace ashlar
