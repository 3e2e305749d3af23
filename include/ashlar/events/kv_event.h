// KvEvent: one change of what a tier holds, as a fixed-size record.
//
// Stored and Removed mark the 0 -> 1 and 1 -> 0 change of (hash, tier): a block that drops into the inactive pool is
// still there and says nothing; duplicates say nothing. Resync says that events were lost at this point: a listener
// must take a snapshot before it trusts its picture again.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <type_traits>

#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::events {

enum class KvEventKind : std::uint8_t { kStored, kRemoved, kResync };

struct KvEvent {
  tokens::SequenceHash hash;
  tokens::SequenceHash parent_bits;  // read through parent()
  tokens::SequenceHash root_bits;    // read through prefix_group()
  std::uint64_t sequence = 0;  // position in its log, from 0, without holes; lost events consume numbers
  std::uint32_t block = 0;     // block id in its tier; for kResync how many events were lost
  KvEventKind kind = KvEventKind::kStored;
  TierId tier;
  bool has_parent = false;
  bool has_root = false;

  // The block before this one in its sequence; nothing for the first block, or where the producer did not know it.
  std::optional<tokens::SequenceHash> parent() const noexcept {
    return has_parent ? std::optional(parent_bits) : std::nullopt;
  }
  // The first block of the sequence, where the producer knew it.
  std::optional<tokens::SequenceHash> prefix_group() const noexcept {
    return has_root ? std::optional(root_bits) : std::nullopt;
  }

  friend bool operator==(const KvEvent&, const KvEvent&) = default;
};

static_assert(sizeof(KvEvent) == 64 && std::is_trivially_copyable_v<KvEvent>);

}  // namespace ashlar::events
