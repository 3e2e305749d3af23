// What both forms of a dump share: DumpCheck finds faults before a call is made, DumpApply makes the calls.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected per block. Memory of a check: 24 bytes per name, in tables at most 3/4 full.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "ashlar/base/result.h"
#include "ashlar/events/index_sink.h"
#include "base/entry_map.h"
#include "base/table_seed.h"

namespace ashlar::events {

// Writes the number of a part into an encoded batch, and its checksum.
void set_parts(std::span<std::byte> batch, std::uint32_t part, std::uint32_t parts) noexcept;
// As many events without locations make a batch that decode_batch() reads within `max_bytes`; at least one.
std::size_t most_events_within(std::size_t max_bytes) noexcept;

class DumpCheck {
 public:
  // Errors: kCorruption: no blocks, a parent that is missing or at another position, a name that is stored
  // twice in a tier or means two contents.
  Result<void> store(const BlocksStored& event);
  // Errors: kCorruption: a name that the tier does not have.
  Result<void> remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  Result<void> clear(const Worker& worker);

  DumpCounts counts() const noexcept;
  // Asks an index that was given the calls, and held none of these workers before, whether it has them all:
  // one that applies calls later could not say so. Errors: kCapacity: it has not. A sink that cannot tell is
  // trusted.
  Result<void> confirm(const IndexSink& index) const;

 private:
  struct Name {
    using Key = std::uint64_t;
    std::uint64_t name = 0;
    std::uint64_t local = 0;
    std::uint32_t position = 0;
    std::uint32_t tiers = 0;  // 0: empty

    Key key() const noexcept { return name; }
    bool empty() const noexcept { return tiers == 0; }
    static std::uint64_t hash(Key key, std::uint64_t seed) noexcept { return seeded_hash(key, seed); }
  };

  std::map<Worker, EntryMap<Name>> workers_;
  std::size_t stored_ = 0;
  std::size_t removed_ = 0;
};

// Makes the calls on an index. After the first refusal it makes no more.
class DumpApply {
 public:
  explicit DumpApply(IndexSink& into) noexcept : into_(into) {}

  // Errors: kCapacity: the index refused a store.
  Result<void> store(const BlocksStored& event);
  Result<void> remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  Result<void> clear(const Worker& worker);
  // Clears the workers of the calls so far.
  void undo();

 private:
  IndexSink& into_;
  std::map<Worker, std::size_t> workers_;  // and their stores
};

}  // namespace ashlar::events
