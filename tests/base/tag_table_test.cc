#include "base/tag_table.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "support/rounds.h"

namespace ashlar {
namespace {

// The value of an entry is its place in `tags`, plus one; the key that a tag stands for is the value itself.
class TagTableTest : public ::testing::TestWithParam<const TagKernel*> {
 protected:
  static constexpr auto kAny = [](std::uint32_t) { return false; };

  void insert(std::uint32_t tag) {
    tags_.push_back(tag);
    held_.push_back(true);
    ASSERT_EQ(table_.insert(tag, value_of(tags_.size() - 1), kAny), TagTable::kNone);
    ++count_;
  }
  void erase(std::size_t i) {
    table_.erase(tags_[i], value_of(i));
    held_[i] = false;
    --count_;
  }
  static std::uint32_t value_of(std::size_t i) { return static_cast<std::uint32_t>(i) + 1; }
  bool contains(std::size_t i) const {
    return table_.find(tags_[i], [&](std::uint32_t value) { return value == value_of(i); }) !=
           TagTable::kNone;
  }
  void expect_all() const {
    EXPECT_EQ(table_.size(), count_);
    for (std::size_t i = 0; i < tags_.size(); ++i) ASSERT_EQ(contains(i), held_[i]) << "entry " << i;
  }
  // Inserts and erases in phases, so that the table grows, ages and empties.
  void churn(Random& random, const std::function<std::uint32_t()>& next_tag, int phases, int steps) {
    for (int phase = 0; phase < phases; ++phase) {
      const std::uint64_t inserts = phase % 3 == 2 ? 20 : 20 + random.below(70);  // of a hundred
      for (int step = 0; step < steps; ++step) {
        if (random.below(100) < inserts || count_ == 0) {
          insert(next_tag());
          continue;
        }
        std::size_t i = random.below(tags_.size());
        while (!held_[i]) i = (i + 1) % tags_.size();
        erase(i);
      }
      expect_all();
      compact();
    }
    while (!tags_.empty()) {
      const std::size_t i = tags_.size() - 1;
      if (held_[i]) erase(i);
      tags_.pop_back();
      held_.pop_back();
    }
    EXPECT_EQ(table_.size(), 0u);
  }

  SlabPool pool_;
  TagTable table_{pool_, TableSeed(1), GetParam()};
  std::vector<std::uint32_t> tags_;
  std::vector<bool> held_;
  std::size_t count_ = 0;

 private:
  // Forgets entries at the end that are gone, so that the lists do not grow for ever.
  void compact() {
    while (!held_.empty() && !held_.back()) {
      held_.pop_back();
      tags_.pop_back();
    }
  }
};

TEST_P(TagTableTest, DoesWhatASetDoes) {
  Random random(1);
  churn(
      random, [&] { return static_cast<std::uint32_t>(random.next()); }, 24,
      static_cast<int>(testing::rounds(3'000)));
}

TEST_P(TagTableTest, ManyPagesSplit) {
  Random random(2);
  for (int i = 0; i < 60'000; ++i) insert(static_cast<std::uint32_t>(random.next()));
  expect_all();
  for (std::size_t i = 0; i < tags_.size(); i += 2) erase(i);
  expect_all();
}

// Few homes: buckets overflow all the time, and entries come back to them.
TEST_P(TagTableTest, CrowdedBucketsOverflowAndDrain) {
  Random random(3);
  churn(
      random,
      [&] {
        const auto home = static_cast<std::uint32_t>(random.below(6)) * 0x0800'0000u;
        return home | static_cast<std::uint32_t>(random.below(4));
      },
      12, 600);
}

// Tags that differ in nothing that a split looks at: the page grows instead.
TEST_P(TagTableTest, TagsThatNoSplitTellsApart) {
  Random random(4);
  churn(random, [&] { return static_cast<std::uint32_t>(random.below(256)) << 24 | 0x00AB'CDEFu; }, 6, 2'000);
}

TEST_P(TagTableTest, EqualTagsAreToldApartByTheCaller) {
  for (int i = 0; i < 40; ++i) insert(7);
  expect_all();
  for (std::size_t i = 0; i < 40; i += 3) erase(i);
  expect_all();
}

TEST_P(TagTableTest, AnEntryThatIsThereIsReturned) {
  ASSERT_EQ(table_.insert(5, 11, kAny), TagTable::kNone);
  EXPECT_EQ(table_.insert(5, 12, [](std::uint32_t value) { return value == 11; }), 11u);
  EXPECT_EQ(table_.size(), 1u);
  table_.erase(5, 11);
}

TEST_P(TagTableTest, ReplaceChangesTheValueInPlace) {
  for (int i = 0; i < 2'000; ++i) insert(static_cast<std::uint32_t>(i) * 0x9E37'79B9u);
  const auto other = [](std::uint32_t value) { return value + 1'000'000; };
  for (std::size_t i = 0; i < tags_.size(); ++i) table_.replace(tags_[i], value_of(i), other(value_of(i)));
  for (std::size_t i = 0; i < tags_.size(); ++i) {
    EXPECT_EQ(table_.find(tags_[i], [&](std::uint32_t value) { return value == other(value_of(i)); }),
              other(value_of(i)));
    EXPECT_FALSE(contains(i));
  }
}

// Probes are made for keys ahead of the one in work; pages split in between.
TEST_P(TagTableTest, ProbesOutliveSplits) {
  Random random(5);
  std::vector<std::uint64_t> keys(30'000);
  for (std::uint64_t& key : keys) key = random.next();
  std::array<TagTable::Probe, 64> probes;
  const auto key_of = [&](std::size_t i) { return keys[i]; };
  const auto same_as = [&](std::size_t i) {
    return [&keys, i](std::uint32_t value) { return keys[value - 1] == keys[i]; };
  };
  for (std::size_t first = 0; first < keys.size(); first += probes.size()) {
    const std::size_t last = std::min(keys.size(), first + probes.size());
    table_.probe(probes, first, last, key_of);
    for (std::size_t i = first; i < last; ++i)
      ASSERT_EQ(table_.insert(probes[i % probes.size()], value_of(i), same_as(i)), TagTable::kNone);
  }
  EXPECT_EQ(table_.size(), keys.size());
  for (std::size_t first = 0; first < keys.size(); first += probes.size()) {
    const std::size_t last = std::min(keys.size(), first + probes.size());
    table_.probe(probes, first, last, key_of);
    for (std::size_t i = first; i < last; ++i) {
      ASSERT_EQ(table_.find(probes[i % probes.size()], same_as(i)), value_of(i));
      table_.erase(probes[i % probes.size()], value_of(i));
    }
  }
  EXPECT_EQ(table_.size(), 0u);
}

// Entries that nobody can have yet come in one call; where it stops, insert() goes on.
TEST_P(TagTableTest, NewEntriesComeInRuns) {
  for (const std::size_t room : {0u, 3'000u}) {
    table_.keep_room(room);
    Random random(8);
    std::array<TagTable::Probe, 64> probes;
    std::vector<std::uint64_t> keys;
    std::size_t in_runs = 0;
    for (std::size_t first = 0; first < 20'032; first += probes.size()) {
      for (std::size_t i = 0; i < probes.size(); ++i) {
        const bool known = first != 0 && random.below(50) == 0;
        keys.push_back(known ? keys[random.below(first)] : random.next());
      }
      const std::size_t last = first + probes.size();
      table_.probe(probes, first, last, [&](std::size_t i) { return keys[i]; });
      for (std::size_t i = first; i < last; ++i) {
        const std::size_t at = i % probes.size();
        const std::uint32_t run = table_.insert_new(std::span(probes).subspan(at), value_of(i));
        in_runs += run;
        i += run;
        if (i == last) break;
        const auto same = [&](std::uint32_t value) { return keys[value - 1] == keys[i]; };
        table_.insert(probes[i % probes.size()], value_of(i), same);
      }
    }
    std::size_t different = 0;
    for (std::size_t i = 0; i < keys.size(); ++i) {
      const auto same = [&](std::uint32_t value) { return keys[value - 1] == keys[i]; };
      const std::uint32_t found = table_.find(table_.tag_of(keys[i]), same);
      ASSERT_NE(found, TagTable::kNone);
      ASSERT_EQ(keys[found - 1], keys[i]);
      if (found == value_of(i)) ++different;
    }
    EXPECT_EQ(table_.size(), different) << "a key that was there came again";
    EXPECT_GT(in_runs, keys.size() / 2);
    table_.reset();
  }
}

// Entries with values in a row go in one call, up and down, also where they overflowed, and with the last of
// a page.
TEST_P(TagTableTest, KnownEntriesGoInRuns) {
  for (const std::size_t room : {0u, 3'000u}) {
    table_.keep_room(room);
    Random random(9);
    constexpr std::uint32_t kKeys = 20'000;
    std::vector<std::uint32_t> tags;
    for (std::uint32_t i = 0; i < kKeys; ++i) {
      tags.push_back(static_cast<std::uint32_t>(random.next()));
      table_.insert(tags.back(), value_of(i), kAny);
    }
    std::vector<bool> held(kKeys, true);
    std::array<TagTable::Probe, 32> probes;
    std::size_t in_runs = 0;
    for (std::uint32_t first = 0; first < kKeys; first += 32) {
      const bool up = random.below(2) == 0;
      const auto at = [&](std::uint32_t i) { return up ? first + i : first + 31 - i; };
      const std::uint32_t count = std::min(kKeys - first, 32u);
      if (count != 32) break;
      table_.probe(probes, [&](std::size_t i) { return tags[at(static_cast<std::uint32_t>(i))]; });
      for (std::uint32_t i = 0; i < count; ++i) {
        const std::uint32_t run =
            table_.erase_known(std::span(probes).subspan(i), value_of(at(i)), up ? 1u : ~0u);
        for (std::uint32_t k = 0; k < run; ++k) held[at(i + k)] = false;
        in_runs += run;
        i += run;
        if (i == count) break;
        table_.erase(probes[i], value_of(at(i)));
        held[at(i)] = false;
      }
    }
    EXPECT_GT(in_runs, kKeys / 2);
    for (std::uint32_t i = 0; i < kKeys; ++i) {
      const std::uint32_t found =
          table_.find(tags[i], [&](std::uint32_t value) { return value == value_of(i); });
      ASSERT_EQ(found != TagTable::kNone, held[i]) << i;
    }
    EXPECT_LT(table_.size(), 32u);
    table_.reset();
  }
}

TEST_P(TagTableTest, WhatIsForgottenIsFreedInPieces) {
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 20'000; ++i) insert(static_cast<std::uint32_t>(i) * 0x9E37'79B9u);
    table_.forget();
    tags_.clear();
    held_.clear();
    count_ = 0;
    expect_all();
    // New entries come while the old memory goes.
    int pieces = 0;
    for (; !table_.free_some(1); ++pieces) insert(static_cast<std::uint32_t>(pieces) * 0x9E37'79B9u);
    EXPECT_GE(pieces, 20'000 / 409);
    expect_all();
    while (!tags_.empty()) {
      erase(tags_.size() - 1);
      tags_.pop_back();
      held_.pop_back();
    }
    table_.forget();
    while (!table_.free_some(1)) {
    }
    EXPECT_EQ(pool_.bytes() + table_.bytes(), 0u);
  }
}

TEST_P(TagTableTest, ResetGivesAllMemoryBack) {
  for (int i = 0; i < 20'000; ++i) insert(static_cast<std::uint32_t>(i) * 0x9E37'79B9u);
  EXPECT_GT(pool_.bytes() + table_.bytes(), 20'000u * 8);
  table_.reset();
  EXPECT_EQ(pool_.bytes() + table_.bytes(), 0u);
  ASSERT_EQ(table_.insert(1, 1, kAny), TagTable::kNone);
  EXPECT_EQ(table_.size(), 1u);
}

// Pages that empty out go back to the smallest size, whatever else is in the table.
TEST_P(TagTableTest, EmptyPagesGiveTheirMemoryBack) {
  for (int i = 0; i < 20'000; ++i) insert(static_cast<std::uint32_t>(i) * 0x9E37'79B9u);
  const std::size_t full = pool_.bytes();
  for (std::size_t i = 1; i < tags_.size(); ++i) erase(i);
  EXPECT_LE(pool_.bytes(), full / 4);
  EXPECT_TRUE(contains(0));
}

// What a table grows beyond its kept room goes, split by split, and it can grow again.
TEST_P(TagTableTest, KeptRoomIsWhatIsLeft) {
  Random random(7);
  for (const std::size_t room : {1u, 400u, 5'000u}) {
    table_.keep_room(room);
    const std::size_t bytes = pool_.bytes() + table_.bytes();
    for (int round = 0; round < 2; ++round) {
      for (int i = 0; i < 10'000; ++i) insert(static_cast<std::uint32_t>(random.next()));
      expect_all();
      for (; !tags_.empty(); tags_.pop_back(), held_.pop_back()) erase(tags_.size() - 1);
      table_.forget();
      while (!table_.undo_splits(1)) {
      }
      EXPECT_EQ(pool_.bytes() + table_.bytes(), bytes) << room;
    }
    table_.reset();
    EXPECT_EQ(pool_.bytes() + table_.bytes(), 0u) << room;
  }
}

// --- Keys that are chosen. ---

// The inverse of an odd number modulo 2^64.
constexpr std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t found = 1;
  for (int round = 0; round < 6; ++round) found *= 2 - odd * found;
  return found;
}

// Keys that differ where a multiplication by a known number, or none at all, would not look.
const std::vector<std::function<std::uint64_t(std::uint64_t)>> kFamilies = {
    [](std::uint64_t i) { return i; },
    [](std::uint64_t i) { return i << 24; },
    [](std::uint64_t i) { return i << 32; },
    [](std::uint64_t i) { return i << 48 | (i & 1) << 47; },
    [](std::uint64_t i) { return i * 0x1'0000'0001u; },
    [](std::uint64_t i) { return i * 0x1'0001'0000'0000u; },
    [](std::uint64_t i) { return (0x12345678u * 0x1'0000'0000u + i) * inverse(0x9E3779B97F4A7C15u); },
    [](std::uint64_t i) { return (i << 40) * inverse(0xBF58476D1CE4E5B9u); },
};

TEST(ChosenNamesTest, NoFamilyOfKeysMeets) {
  constexpr std::uint64_t kKeys = 20'000;
  for (std::uint64_t seed = 1; seed <= 4; ++seed)
    for (std::size_t family = 0; family < kFamilies.size(); ++family) {
      SlabPool pool;
      TagTable table(pool, TableSeed(seed));
      for (std::uint32_t i = 0; i < kKeys; ++i)
        table.insert(table.tag_of(kFamilies[family](i)), i + 1, [](std::uint32_t) { return false; });
      EXPECT_LE(table.longest_search(), 12u) << "seed " << seed << ", family " << family;
      TagTable pairs(pool, TableSeed(seed));
      for (std::uint32_t i = 0; i < kKeys; ++i)
        pairs.insert(pairs.tag_of(kFamilies[family](i / 100), i % 100), i + 1,
                     [](std::uint32_t) { return false; });
      EXPECT_LE(pairs.longest_search(), 12u) << "seed " << seed << ", family " << family << " in pairs";
    }
}

TEST(ChosenNamesTest, WithoutASeedATableTakesTheSecretOfTheProcess) {
  const TableSeed secret = TableSeed::of({});
  EXPECT_EQ(secret.hash(1), TableSeed::of({}).hash(1));
  EXPECT_EQ(TableSeed::of(5).hash(1), TableSeed(5).hash(1));
  for (std::uint64_t seed = 0; seed < 8; ++seed) EXPECT_NE(secret.hash(1), TableSeed(seed).hash(1));
}

INSTANTIATE_TEST_SUITE_P(Kernels, TagTableTest,
                         ::testing::Values(static_cast<const TagKernel*>(nullptr), kTagKernel),
                         [](const auto& one) {
                           return std::string(one.index == 0 ? "portable" : "of_this_machine");
                         });

}  // namespace
}  // namespace ashlar
