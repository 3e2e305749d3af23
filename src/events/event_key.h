// EventKey: the unit of presence: a producer's name of a block, in a tier.
//
// Thread safety: plain value.
#pragma once

#include <cstdint>

#include "ashlar/events/kv_event.h"

namespace ashlar::events {

// Two names of one producer may denote the same content.
struct EventKey {
  explicit EventKey(const KvEvent& event) noexcept : EventKey(event.hash, event) {}
  EventKey(const tokens::SequenceHash& its_hash, const KvEvent& like) noexcept
      : EventKey(its_hash, like.tier, like.has_name ? like.name_bits : 0) {}
  EventKey(const tokens::SequenceHash& its_hash, TierId its_tier, std::uint64_t its_name) noexcept
      : hash(its_hash), name(its_name), tier(its_tier) {}

  bool is_of(const KvEvent& event) const noexcept {
    return hash == event.hash && tier == event.tier && name == (event.has_name ? event.name_bits : 0);
  }
  // Evenly distributed over all bits.
  std::uint64_t mixed() const noexcept {
    std::uint64_t x = hash.hi() ^ (hash.lo() * 0x9E3779B97F4A7C15u) ^ (name + tier.value());
    x = (x ^ (x >> 32)) * 0xD6E8FEB86659FD93u;
    return x ^ (x >> 32);
  }

  tokens::SequenceHash hash;
  std::uint64_t name;
  TierId tier;
};

}  // namespace ashlar::events
