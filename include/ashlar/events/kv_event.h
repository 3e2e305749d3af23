// KvEvent: one change of what a tier holds, as a fixed-size record.
//
// Stored and Removed mark the 0 -> 1 and 1 -> 0 change of (hash, tier): a block that drops into the inactive
// pool is still there and says nothing; duplicates say nothing. Access says how often a block was hit since
// the last report; it is sampled, and off unless asked for. Resync says that events were lost at this point:
// a listener must take a snapshot before it trusts its picture again. Cleared says that a tier, or with
// kAllTiers every tier, holds nothing any more.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <type_traits>

#include "ashlar/events/index_sink.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::events {

enum class KvEventKind : std::uint8_t { kStored, kRemoved, kResync, kAccess, kCleared };

constexpr std::string_view to_string(KvEventKind kind) noexcept {
  switch (kind) {
    case KvEventKind::kStored:
      return "stored";
    case KvEventKind::kRemoved:
      return "removed";
    case KvEventKind::kResync:
      return "resync";
    case KvEventKind::kAccess:
      return "access";
    case KvEventKind::kCleared:
      return "cleared";
  }
  return "unknown";
}

inline constexpr TierId kAllTiers{0xFF};  // of kCleared

struct KvEvent {
  tokens::SequenceHash hash;
  tokens::SequenceHash parent_bits;  // read through parent()
  tokens::SequenceHash root_bits;    // read through prefix_group()
  std::uint64_t sequence = 0;    // position in its log, from 0, without holes; lost events consume numbers
  std::uint64_t name_bits = 0;   // read through name()
  std::uint64_t local_bits = 0;  // read through local()
  std::uint32_t block = 0;       // block id in its tier; kResync: how many events were lost; kAccess: hits
  std::uint32_t bytes = 0;       // size of the block; 0 where the producer did not say
  std::uint32_t metadata = 0;    // the producer's own
  std::uint16_t location =
      0;  // number of the volume or device, of those that the batch names; 0: the tier's own
  std::uint16_t group = 0;  // group of layers (docs/sequences.md)
  KvEventKind kind = KvEventKind::kStored;
  TierId tier;
  bool has_parent = false;
  bool has_root = false;
  bool has_name = false;
  bool has_local = false;
  std::uint16_t reserved = 0;

  // The block before this one in its sequence; nothing for the first block, or where the producer did not
  // know it.
  std::optional<tokens::SequenceHash> parent() const noexcept {
    return has_parent ? std::optional(parent_bits) : std::nullopt;
  }
  // The first block of the sequence, where the producer knew it.
  std::optional<tokens::SequenceHash> prefix_group() const noexcept {
    return has_root ? std::optional(root_bits) : std::nullopt;
  }
  // What the producer calls the block: its own name where it has one, else the chain hash.
  BlockName name() const noexcept { return BlockName(has_name ? name_bits : hash.chain()); }
  // The hash of the block's own tokens, where the producer knew it.
  std::optional<tokens::LocalHash> local() const noexcept {
    return has_local ? std::optional(tokens::LocalHash(local_bits)) : std::nullopt;
  }

  friend bool operator==(const KvEvent&, const KvEvent&) = default;
};

static_assert(sizeof(KvEvent) == 96 && std::is_trivially_copyable_v<KvEvent>);

}  // namespace ashlar::events
