// Keys that are chosen to meet in a table, and what a table of a seed of its own makes of them.
#include "base/table_seed.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <set>
#include <vector>

#include "ashlar/base/random.h"
#include "base/entry_map.h"
#include "index/adapters/content_trie.h"
#include "index/positional/positional_chain.h"

namespace ashlar::index::detail::seeded {
namespace {

constexpr std::size_t kKeys = 1'024;
constexpr std::uint64_t kKnownSeed = 0x1234'5678'9ABC'DEF1u;

// The upper 10 bits, which choose a place in a table of kKeys places.
std::uint64_t place(std::uint64_t hash) {
  return hash >> 54;
}

// Keys that all have place 0 under the hash.
template <class Hash>
std::vector<std::uint64_t> meeting_keys(Hash&& hash) {
  Random random(1);
  std::vector<std::uint64_t> keys;
  while (keys.size() < kKeys)
    if (const std::uint64_t key = random.next(); place(hash(key)) == 0) keys.push_back(key);
  return keys;
}

template <class Hash>
std::size_t places(const std::vector<std::uint64_t>& keys, Hash&& hash) {
  std::set<std::uint64_t> used;
  for (const std::uint64_t key : keys) used.insert(place(hash(key)));
  return used.size();
}

TEST(TableSeedTest, KeysThatMeetUnderOneSeedDoNotUnderAnother) {
  const auto one_word = [](std::uint64_t seed) {
    return [seed](std::uint64_t key) { return seeded_hash(key, seed); };
  };
  const auto first_word = [](std::uint64_t seed) {
    return [seed](std::uint64_t key) { return seeded_hash(key, 3, seed); };
  };
  const auto second_word = [](std::uint64_t seed) {
    return [seed](std::uint64_t key) { return seeded_hash(3, key, seed); };
  };
  const auto entry = [](std::uint64_t seed) {
    return [seed](std::uint64_t key) { return entry_key(7, tokens::LocalHash(key), seed); };
  };
  const auto check = [](const auto& with_seed) {
    const std::vector<std::uint64_t> keys = meeting_keys(with_seed(kKnownSeed));
    EXPECT_EQ(places(keys, with_seed(kKnownSeed)), 1u);
    // Of 1,024 keys at random, 647 places are used on the average.
    for (const std::uint64_t seed : {std::uint64_t{1}, ~kKnownSeed, kKnownSeed + 2, std::uint64_t{1} << 40})
      EXPECT_GT(places(keys, with_seed(seed * 0x9E37'79B9'7F4A'7C15u)), 500u);
  };
  check(one_word);
  check(first_word);
  check(second_word);
  check(entry);
}

// A regular step may leave places free, but no more than three of four.
TEST(TableSeedTest, RegularKeysAreSpreadToo) {
  for (const std::uint64_t step : {std::uint64_t{1}, std::uint64_t{64}, std::uint64_t{1} << 32,
                                   std::uint64_t{1} << 54, std::uint64_t{0x9E37'79B9'7F4A'7C15u}}) {
    std::vector<std::uint64_t> keys;
    for (std::uint64_t i = 0; i < kKeys; ++i) keys.push_back(i * step);
    for (std::uint64_t n = 1; n <= 20; ++n) {
      const std::uint64_t seed = spread_bits(n);
      EXPECT_GT(places(keys, [&](std::uint64_t key) { return seeded_hash(key, seed); }), 400u);
      EXPECT_GT(places(keys, [&](std::uint64_t key) { return seeded_hash(key, 9, seed); }), 400u);
      EXPECT_GT(places(keys, [&](std::uint64_t key) { return seeded_hash(9, key, seed); }), 400u);
    }
  }
}

TEST(TableSeedTest, EveryTableHasItsOwn) {
  std::set<std::uint64_t> seeds;
  for (int i = 0; i < 1'000; ++i) seeds.insert(draw_seed());
  EXPECT_EQ(seeds.size(), 1'000u);
}

// Multiples of this number have equal upper bits when they are multiplied by the golden ratio, whatever table
// they are for: a multiplication by its inverse modulo 2^64 gives small numbers.
std::uint64_t inverse_of(std::uint64_t odd) {
  std::uint64_t inverse = 1;
  for (int i = 0; i < 6; ++i) inverse *= 2 - odd * inverse;
  return inverse;
}

struct Pair {
  using Key = std::uint64_t;
  std::uint64_t name = 0;
  std::uint64_t value = 0;

  Key key() const noexcept { return name; }
  bool empty() const noexcept { return value == 0; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
};

TEST(TableSeedTest, ChosenKeysCostAMapNoMoreThanOthers) {
  const std::uint64_t inverse = inverse_of(0x9E37'79B9'7F4A'7C15u);
  EntryMap<Pair> map;
  for (std::uint64_t i = 1; i <= kKeys; ++i) map.insert({i * inverse, 1});
  std::size_t compared = 0;
  for (std::uint64_t i = 1; i <= kKeys; ++i) compared += map.compared(i * inverse);
  EXPECT_LT(compared, 16 * kKeys);  // all in one run would make it half of kKeys for each
}

TEST(TableSeedTest, ChosenContentsCostATrieNoMoreThanOthers) {
  // spread_bits() of these local hashes has equal low bits.
  const std::uint64_t second = inverse_of(0xBF58'476D'1CE4'E5B9u);
  const std::uint64_t third = inverse_of(0x94D0'49BB'1331'11EBu);
  const auto unshift = [](std::uint64_t x, int by) {
    std::uint64_t left = x;
    for (int done = by; done < 64; done += by) left = x ^ left >> by;
    return left;
  };
  std::vector<LocalHash> locals;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    const std::uint64_t local = unshift(unshift(unshift(i << 40, 31) * third, 27) * second, 30);
    ASSERT_EQ(spread_bits(local), i << 40);
    locals.emplace_back(local);
  }
  ContentTrie trie;
  for (const LocalHash local : locals) trie.hold(trie.find_or_add(ContentTrie::kRoot, local));
  std::size_t compared = 0;
  for (const LocalHash local : locals) compared += trie.compared(ContentTrie::kRoot, local);
  EXPECT_LT(compared, 16 * kKeys);
}

}  // namespace
}  // namespace ashlar::index::detail::seeded
