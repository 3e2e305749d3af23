// RadixPlace: place of a content in a radix tree, (node, offset), with the tiers of one name, in one word.
// RadixNames: the places of one worker's names, and how often a content is named more than once.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"
#include "ashlar/index/indexer.h"
#include "base/entry_map.h"
#include "index/radix/radix_node.h"

namespace ashlar::index {

class RadixPlace {
 public:
  constexpr RadixPlace() = default;
  RadixPlace(const RadixNode* node, std::uint32_t offset) noexcept
      : word_(reinterpret_cast<std::uintptr_t>(node) | offset) {
    static_assert(alignof(RadixNode) >= RadixNode::kMaxLength);
    ASHLAR_DCHECK((word_ & kTiers) == 0, "an address of more than %d bits", kTierShift);
  }
  // Marks a name that is being stored.
  static constexpr RadixPlace pending() noexcept {
    RadixPlace place;
    place.word_ = 1;
    return place;
  }

  bool empty() const noexcept { return word_ == 0; }
  bool is_pending() const noexcept { return word_ == 1; }
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the address shares its word with the offset and the tiers
  RadixNode* node() const noexcept { return reinterpret_cast<RadixNode*>(word_ & ~(kTiers | kOffset)); }
  std::uint32_t offset() const noexcept { return static_cast<std::uint32_t>(word_ & kOffset); }

  bool in_tier(StorageTier tier) const noexcept { return (word_ & bit(tier)) != 0; }
  bool in_any_tier() const noexcept { return (word_ & kTiers) != 0; }
  // A bit per tier.
  std::uint8_t tiers() const noexcept { return static_cast<std::uint8_t>(word_ >> kTierShift); }
  void add_tier(StorageTier tier) noexcept { word_ |= bit(tier); }
  void take_tier(StorageTier tier) noexcept { word_ &= ~bit(tier); }
  // The content alone, as a non-zero number.
  std::uint64_t content() const noexcept { return word_ & ~kTiers; }

 private:
  static constexpr int kTierShift = 64 - static_cast<int>(kStorageTiers);
  static constexpr std::uint64_t kTiers = ~std::uint64_t{0} << kTierShift;
  static constexpr std::uint64_t kOffset = RadixNode::kMaxLength - 1;

  static std::uint64_t bit(StorageTier tier) noexcept {
    return std::uint64_t{1} << (kTierShift + static_cast<int>(tier));
  }

  std::uint64_t word_ = 0;
};

class RadixNames {
 public:
  struct Entry {
    using Key = BlockName;
    BlockName name;
    RadixPlace place;

    Key key() const noexcept { return name; }
    bool empty() const noexcept { return place.empty(); }
    static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key.value(), seed); }
  };

  EntryMap<Entry>& map() noexcept { return map_; }
  const EntryMap<Entry>& map() const noexcept { return map_; }
  bool empty() const noexcept { return map_.empty(); }
  std::size_t bytes() const noexcept { return map_.bytes() + more_.bytes(); }

  // Adds another name for a content that the worker already holds in that tier. Throws std::bad_alloc with
  // nothing changed.
  void add_name(RadixPlace place, StorageTier tier) {
    ++more_.insert({place.content(), {}}).first->names[static_cast<std::size_t>(tier)];
  }
  // Removes a name. False when it was the last one in that tier.
  bool take_name(RadixPlace place, StorageTier tier) noexcept {
    if (more_.empty()) [[likely]]
      return false;
    More* more = more_.find(place.content());
    if (more == nullptr || more->names[static_cast<std::size_t>(tier)] == 0) return false;
    --more->names[static_cast<std::size_t>(tier)];
    if (std::ranges::all_of(more->names, [](std::uint32_t names) { return names == 0; })) more_.erase(more);
    return true;
  }
  void clear() noexcept {
    map_.clear();
    more_.clear();
  }

 private:
  // Names of a content in each tier beyond the first one.
  struct More {
    using Key = std::uint64_t;
    std::uint64_t content = 0;
    std::array<std::uint32_t, kStorageTiers> names{};

    Key key() const noexcept { return content; }
    bool empty() const noexcept { return content == 0; }
    static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
  };

  EntryMap<Entry> map_;
  EntryMap<More> more_;  // usually empty: an engine has one name per content
};

}  // namespace ashlar::index
