// KvEvent: one change to the contents of a tier, as a fixed-size record.
//
// Stored and Removed mark the 0 -> 1 and 1 -> 0 changes of (hash, tier): blocks that become inactive and
// duplicates cause no event. Access says how often a block was hit since the last report; it is sampled, and
// off by default. Resync says that events were lost here: a listener must take a snapshot before it trusts
// its state again. Cleared says that a tier, or with kAllTiers every tier, is empty.
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
  tokens::SequenceHash parent_bits = {};  // parent(), set_parent()
  tokens::SequenceHash root_bits = {};    // prefix_group(), set_prefix_group()
  std::uint64_t sequence = 0;             // position in its log, from 0; lost events consume numbers
  std::uint64_t name_bits = 0;            // name(), set_name()
  std::uint64_t local_bits = 0;           // local(), set_local()
  // block and bytes: with has_parent_name the halves of the parent's name; see set_parent_name().
  std::uint32_t block = 0;     // block id in its tier; kResync: how many events were lost; kAccess: hits
  std::uint32_t bytes = 0;     // size of the block; 0: unknown; UINT32_MAX: 4 GiB or more
  std::uint32_t metadata = 0;  // the producer's own
  std::uint16_t location = 0;  // number of a volume or device that the batch names; 0: the tier itself
  std::uint16_t group = 0;     // group of layers (docs/sequences.md)
  KvEventKind kind = KvEventKind::kStored;
  TierId tier = {};
  bool has_parent = false;
  bool has_root = false;
  bool has_name = false;
  bool has_local = false;
  bool has_parent_name = false;
  std::uint8_t reserved = 0;

  // The preceding block of its sequence; nullopt for the first block, or if the producer did not know it.
  std::optional<tokens::SequenceHash> parent() const noexcept {
    return has_parent ? std::optional(parent_bits) : std::nullopt;
  }
  // The first block of the sequence, if the producer knew it.
  std::optional<tokens::SequenceHash> prefix_group() const noexcept {
    return has_root ? std::optional(root_bits) : std::nullopt;
  }
  // The producer's name of the block; without one, the chain hash.
  BlockName name() const noexcept { return BlockName(has_name ? name_bits : hash.chain()); }
  // The hash of the block's own tokens, if the producer knew it.
  std::optional<tokens::LocalHash> local() const noexcept {
    return has_local ? std::optional(tokens::LocalHash(local_bits)) : std::nullopt;
  }
  // The producer's name of the preceding block, if it tells names of parents and there is one.
  std::optional<BlockName> parent_name() const noexcept {
    return has_parent_name && has_parent ? std::optional(BlockName(std::uint64_t{bytes} << 32 | block))
                                         : std::nullopt;
  }

  // For producers. Each sets a value and its flag together; nullopt: the producer does not know it.
  //
  //   KvEvent stored{.hash = block.sequence_hash()};
  //   stored.set_parent(block.parent());
  //   stored.set_local(block.local_hash());
  //
  // The block before this one in its sequence.
  constexpr void set_parent(const std::optional<tokens::SequenceHash>& parent) noexcept {
    has_parent = parent.has_value();
    parent_bits = parent.value_or(tokens::SequenceHash());
  }
  // The first block of its sequence.
  constexpr void set_prefix_group(const std::optional<tokens::SequenceHash>& root) noexcept {
    has_root = root.has_value();
    root_bits = root.value_or(tokens::SequenceHash());
  }
  // The producer's own name of the block. Without one, name() is the chain hash.
  constexpr void set_name(const std::optional<BlockName>& name) noexcept {
    has_name = name.has_value();
    name_bits = name ? name->value() : 0;
  }
  // The hash of the block's own tokens. An index needs it.
  constexpr void set_local(const std::optional<tokens::LocalHash>& local) noexcept {
    has_local = local.has_value();
    local_bits = local ? local->value() : 0;
  }

  // The producer's own name of the parent, which it holds now; nullopt: this is the first block of a
  // sequence. Replaces block and bytes. Says too that nobody has to find this block by its hash: a producer
  // names the parent in every Stored event whose parent it holds, or in none. For the listener at hand:
  // streams leave it out.
  constexpr void set_parent_name(const std::optional<BlockName>& name) noexcept {
    has_parent_name = true;
    block = name ? static_cast<std::uint32_t>(name->value()) : 0;
    bytes = name ? static_cast<std::uint32_t>(name->value() >> 32) : 0;
  }
  constexpr void drop_parent_name() noexcept {
    if (!has_parent_name) return;
    has_parent_name = false;
    block = bytes = 0;
  }

  friend bool operator==(const KvEvent&, const KvEvent&) = default;
};

static_assert(sizeof(KvEvent) == 96 && std::is_trivially_copyable_v<KvEvent>);

}  // namespace ashlar::events
