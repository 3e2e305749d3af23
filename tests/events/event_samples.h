// Events and batches for tests.
#pragma once

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/events/event_batch.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::events {

inline KvEvent stored(const tokens::SequenceHash& hash, const std::optional<tokens::SequenceHash>& parent,
                      const tokens::SequenceHash& root, std::uint32_t block, TierId tier = kTierId<G1>) {
  KvEvent event;
  event.hash = hash;
  event.has_parent = parent.has_value();
  if (parent) event.parent_bits = *parent;
  event.has_root = true;
  event.root_bits = root;
  event.has_local = true;
  event.local_bits = hash.chain() * 31;
  event.block = block;
  event.bytes = 4096;
  event.tier = tier;
  return event;
}

inline KvEvent removed(const tokens::SequenceHash& hash, TierId tier = kTierId<G1>) {
  KvEvent event;
  event.kind = KvEventKind::kRemoved;
  event.hash = hash;
  event.tier = tier;
  return event;
}

// A sequence of its own.
inline std::vector<KvEvent> chain(std::uint64_t number, std::size_t blocks, TierId tier = kTierId<G1>) {
  std::vector<KvEvent> out;
  const tokens::SequenceHash root = tokens::SequenceHash::root(number * 1'000'003 + 1);
  tokens::SequenceHash at = root;
  for (std::size_t i = 0; i < blocks; ++i) {
    const tokens::SequenceHash parent = at;
    if (i != 0) at = at.child(number * 1'000'003 + 1 + i).value();
    out.push_back(stored(at, i == 0 ? std::nullopt : std::optional(parent), root,
                         static_cast<std::uint32_t>(number * 64 + i), tier));
  }
  return out;
}

inline OwnedBatch random_batch(Random& random) {
  OwnedBatch batch;
  batch.head.stream = {{WorkerId(random.next()), static_cast<std::uint32_t>(random.below(8))}, random.next()};
  batch.head.keys = {.scheme = random.next(),
                     .name_space = tokens::NamespaceFingerprint::from_bits(random.next(), random.next()),
                     .block_size = static_cast<std::uint32_t>(random.below(1024))};
  batch.head.kind = random.below(4) == 0 ? BatchKind::kSnapshot : BatchKind::kEvents;
  batch.head.first = random.below(1'000'000);
  batch.head.parts = 1 + static_cast<std::uint32_t>(random.below(5));
  batch.head.part = static_cast<std::uint32_t>(random.below(batch.head.parts));
  batch.head.published_ns = static_cast<std::int64_t>(random.next() >> 1);
  for (std::uint64_t i = random.below(3); i-- > 0;)
    batch.locations.push_back(
        {static_cast<std::uint16_t>(random.below(9)), std::string(random.below(20), 'v')});
  for (std::uint64_t runs = random.below(6); runs-- > 0;) {
    std::vector<KvEvent> run = chain(random.below(1000), 1 + random.below(12),
                                     TierId(static_cast<std::uint8_t>(random.below(kMaxTiers))));
    const std::uint64_t what = random.below(10);
    if (what >= 8)  // removals along a chain, in either direction
      for (KvEvent& event : run) event.kind = KvEventKind::kRemoved;
    if (what == 9) std::ranges::reverse(run);
    for (KvEvent& event : run) {
      if (what == 1) event = removed(event.hash, event.tier);
      if (what == 2) {
        event = removed(event.hash, event.tier);
        event.kind = KvEventKind::kAccess;
        event.block = static_cast<std::uint32_t>(random.below(100));
      }
      if (what == 3 || random.below(20) == 0) {
        event.has_name = true;
        event.name_bits = random.next();
      }
      if (what == 4) event.metadata = static_cast<std::uint32_t>(random.below(3));
      if (what == 5) event.location = static_cast<std::uint16_t>(random.below(3));
      if (what == 6) event.has_local = false, event.local_bits = 0;
      if (random.below(10) == 0) event.group = static_cast<std::uint16_t>(random.below(3));
      if (random.below(20) == 0) event.bytes = 0;
      if (random.below(20) == 0) event.has_parent = false, event.parent_bits = {};
      if (random.below(30) == 0) event.has_root = false, event.root_bits = {};
    }
    if (what == 7) {
      KvEvent cleared;
      cleared.kind = random.below(2) == 0 ? KvEventKind::kCleared : KvEventKind::kResync;
      cleared.tier = cleared.kind == KvEventKind::kCleared ? kAllTiers : kTierId<G1>;
      run = {cleared, cleared};
    }
    batch.events.insert(batch.events.end(), run.begin(), run.end());
  }
  return batch;
}

// Puts the checksum of a batch right.
inline void seal(std::vector<std::byte>& bytes) {
  std::uint64_t seed = 0;
  std::memcpy(&seed, bytes.data(), sizeof seed);
  const std::uint64_t checksum = XXH3_64bits_withSeed(bytes.data() + 16, bytes.size() - 16, seed);
  std::memcpy(bytes.data() + 8, &checksum, sizeof checksum);
}

}  // namespace ashlar::events
