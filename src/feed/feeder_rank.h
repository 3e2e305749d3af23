// FeederRank: what an IndexFeeder knows of one rank beyond what the index tells: the blocks of the events at
// hand, the blocks that the index cannot have yet, and the producer's names by hash.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/events/index_sink.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "base/entry_map.h"
#include "base/table_seed.h"

namespace ashlar::feed {

// The names of blocks whose producer tells parents by their hashes alone, by the chain hash of the block. A
// name that is the chain hash itself needs no entry. Names of blocks that are gone may stay: the caller asks
// the index.
class NamesByHash {
 public:
  void add(std::uint64_t chain, events::BlockName name) {
    if (name.value() == chain) return;
    const auto [entry, is_new] = first_.insert({chain, name.value()});
    if (!is_new && entry->name != name.value() && find_more(chain, name) == more_.end())
      more_.emplace(chain, name);
  }
  void erase(std::uint64_t chain, events::BlockName name) {
    if (name.value() == chain) return;
    if (!more_.empty())
      if (const auto at = find_more(chain, name); at != more_.end()) {
        more_.erase(at);
        return;
      }
    const Entry* const entry = first_.find(chain);
    if (entry == nullptr || entry->name != name.value()) return;
    first_.erase(chain);
    if (const auto next = more_.find(chain); next != more_.end()) {
      first_.insert({chain, next->second.value()});
      more_.erase(next);
    }
  }
  // always_inline: as EntryMap::prefetch().
  [[gnu::always_inline]] void prefetch(std::uint64_t chain) const noexcept { first_.prefetch(chain); }
  void reserve(std::size_t names) { first_.reserve(names); }
  // The name for a chain hash; nothing when there may be several.
  std::optional<events::BlockName> only(std::uint64_t chain) const {
    if (more_.contains(chain)) return std::nullopt;
    const Entry* const entry = first_.find(chain);
    return events::BlockName(entry == nullptr ? chain : entry->name);
  }
  // Calls fn(name) for each, and for the chain hash as a name, until it returns true. Returns whether it did.
  template <class F>
  bool any_of(std::uint64_t chain, F&& fn) const {
    if (const Entry* const entry = first_.find(chain); entry != nullptr && fn(events::BlockName(entry->name)))
      return true;
    const auto [from, to] = more_.equal_range(chain);
    for (auto at = from; at != to; ++at)
      if (fn(at->second)) return true;
    return fn(events::BlockName(chain));
  }
  template <class F>
  void for_each(F&& fn) const {  // fn(chain, name)
    first_.for_each([&](const Entry& entry) { fn(entry.chain, events::BlockName(entry.name)); });
    for (const auto& [chain, name] : more_) fn(chain, name);
  }
  void clear() noexcept {
    first_.clear();
    more_.clear();
  }
  bool empty() const noexcept { return first_.empty(); }

 private:
  struct Entry {
    using Key = std::uint64_t;
    std::uint64_t chain = 0;
    std::uint64_t name = 0;

    Key key() const noexcept { return chain; }
    bool empty() const noexcept { return chain == name; }
    static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
  };
  using More = std::unordered_multimap<std::uint64_t, events::BlockName>;
  More::const_iterator find_more(std::uint64_t chain, events::BlockName name) const {
    const auto [from, to] = more_.equal_range(chain);
    for (auto at = from; at != to; ++at)
      if (at->second == name) return at;
    return more_.end();
  }

  EntryMap<Entry> first_;
  More more_;  // usually empty: a producer has one name per content
};

// Hashes are those of group 0.
struct FeederEntry {
  using Groups = std::uint32_t;  // a bit per group, in the order they appeared

  tokens::SequenceHash parent;
  // While the events at hand are applied: later another block may have that name.
  std::optional<events::BlockName> parent_name;
  tokens::SequenceHash hash;
  tokens::LocalHash local;
  std::uint32_t position = 0;
  std::array<Groups, events::kStorageTiers> held{};
  std::array<bool, events::kStorageTiers> indexed{};
  bool has_parent = false;
  bool has_hash = false;
  bool has_local = false;
  bool names_parent = false;  // its producer does: no child is told by its hash alone

  bool is_indexed() const noexcept {
    for (const bool in_tier : indexed)
      if (in_tier) return true;
    return false;
  }
  bool is_held() const noexcept {
    for (const Groups groups : held)
      if (groups != 0) return true;
    return false;
  }
  // Whether the index tells all of it.
  bool is_settled(Groups required) const noexcept {
    for (std::size_t tier = 0; tier < held.size(); ++tier)
      if (held[tier] != (indexed[tier] ? required : 0)) return false;
    return true;
  }
  void set_hash(const tokens::SequenceHash& its_hash) noexcept {
    hash = its_hash;
    position = its_hash.position();
    has_hash = true;
  }
};

struct FeederRank {
  using Groups = FeederEntry::Groups;
  using Entries = std::unordered_map<events::BlockName, FeederEntry>;
  using Links = std::unordered_multimap<tokens::SequenceHash, events::BlockName>;

  explicit FeederRank(std::uint32_t its_number) : number(its_number) {}

  void clear() {
    entries.clear();
    orphans.clear();
    names.clear();
    touched.clear();
    groups.clear();
    required = 0;
    is_fresh = true;
    is_all_told.reset();
  }
  Links::iterator find_orphan(const tokens::SequenceHash& parent, events::BlockName name) {
    const auto [first, last] = orphans.equal_range(parent);
    for (auto at = first; at != last; ++at)
      if (at->second == name) return at;
    return orphans.end();
  }
  // Drops an entry, and its place among those that wait.
  void drop(Entries::iterator at) {
    if (at->second.has_parent && !orphans.empty())
      if (const auto orphan = find_orphan(at->second.parent, at->first); orphan != orphans.end())
        orphans.erase(orphan);
    entries.erase(at);
  }

  std::uint32_t number;
  Entries entries;
  Links orphans;  // entries that wait for their parent, by it
  NamesByHash names;
  std::vector<events::BlockName> touched;  // entries that may be settled after these events
  std::vector<std::uint16_t> groups;
  Groups required = 0;
  bool is_fresh = true;  // no event was applied since the start or since a clear
  // Since the index held nothing of it, it was told everything here. Not known before the first change.
  std::optional<bool> is_all_told;
  std::uint32_t source = 0;  // the engine's rank that the first change came from
};

}  // namespace ashlar::feed
