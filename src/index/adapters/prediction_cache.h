// What a PredictionLedger keeps of one (worker, rank).
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <set>
#include <utility>

#include "ashlar/index/indexer.h"
#include "base/entry_map.h"
#include "base/table_seed.h"
#include "index/adapters/content_trie.h"
#include "index/adapters/prediction_list.h"

namespace ashlar::index::detail {

using Content = ContentTrie::Id;

// The meaning of a worker's name, or of one of ours in its place.
struct Meaning {
  using Key = BlockName;
  BlockName name;
  Content content = ContentTrie::kRoot;
  std::uint8_t tiers = 0;  // one bit per tier in which the worker holds the name; 0 for ours
  bool is_used = false;

  static Meaning of(BlockName name) noexcept { return {.name = name, .is_used = true}; }
  Key key() const noexcept { return name; }
  bool empty() const noexcept { return !is_used; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key.value(), seed); }
};
static_assert(sizeof(Meaning) == 16, "four to a cache line");

// Overhead of a std::map or std::set node: colour and three links.
constexpr std::size_t kTreeNode = 4 * sizeof(void*);

struct Cache;
using List = PredictionList<Cache>;

// A content that a worker holds for real (names > 0) or as predicted.
struct Holding {
  using Key = Content;
  BlockName name;  // one of its names; ours if predicted
  Content content = ContentTrie::kRoot;
  std::uint32_t names = 0;  // the worker's names for it
  List::Id prediction = 0;  // if predicted
  bool is_used = false;

  static Holding of(Content content) noexcept { return {.name = {}, .content = content, .is_used = true}; }
  Key key() const noexcept { return content; }
  bool empty() const noexcept { return !is_used; }
  static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
};

// One (worker, rank) with known content.
struct Cache {
  Worker worker;
  std::size_t predicted = 0;
  EntryMap<Meaning> names;  // by name
  EntryMap<Holding> held;   // by content
  // Names of contents that have several, to find another when one is removed.
  std::set<std::pair<Content, BlockName>> several;

  std::size_t bytes() const noexcept {
    return names.bytes() + held.bytes() + several.size() * (sizeof(*several.begin()) + kTreeNode);
  }
};

}  // namespace ashlar::index::detail
