// IndexSink: receives what workers report to a routing index; with its values: Worker, BlockName,
// BlocksStored. Ingest (engine streams, gaps, reference counts) writes to it; an index implements it; the
// dump of an index is a sequence of these calls.
//
// Names. An engine names its blocks by its own hashes. A name means something only within one (worker, rank):
// two workers may name the same content differently, and one name may mean different content on two workers.
// Content is identified by the path of local hashes from the start of the sequence. Within one worker a name
// means one content, in all tiers; two names may mean the same content.
//
// Presence is a set per (worker, tier, content). A content leaves a tier when the worker's last name for it
// in that tier is removed.
//
// Thread safety: thread-compatible unless an implementation says more. Calls for one worker must come in
//                order.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/strong_id.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/token.h"

namespace ashlar::events {

// An inference process.
using WorkerId = StrongId<struct WorkerIdTag, std::uint64_t>;

// A holder of blocks: each data-parallel rank of a process has its own cache, so (id, rank) is the unit of
// ownership everywhere in routing.
struct Worker {
  WorkerId id;
  std::uint32_t rank = 0;  // data-parallel rank

  friend auto operator<=>(const Worker&, const Worker&) = default;
};

// An engine's name of a block.
using BlockName = StrongId<struct BlockNameTag, std::uint64_t>;

struct StoredBlock {
  tokens::LocalHash local;
  BlockName name;

  friend bool operator==(const StoredBlock&, const StoredBlock&) = default;
};

// A run of consecutive blocks of one sequence that a worker now holds in one tier.
struct BlocksStored {
  Worker worker;
  StorageTier tier = StorageTier::kDevice;
  // The block before the first one, by a name that this worker holds in any tier; nullopt at the start of a
  // sequence.
  std::optional<BlockName> parent;
  // Position of the first block, if the producer knows it. It is checked: 0 without a parent, otherwise the
  // parent's + 1.
  std::optional<std::uint32_t> start_position;
  std::span<const StoredBlock> blocks;
};

// The outcome of a store. Everything except kApplied leaves the index unchanged. Of several faults the first
// in this order is reported, except that kFull may come before faults of names.
enum class StoreVerdict : std::uint8_t {
  kApplied,
  kEmpty,          // no blocks
  kUnknownTier,    // no such tier
  kUnknownParent,  // this worker holds no block of the parent's name
  kWrongPosition,  // start_position does not follow the parent, or is not 0 without one
  kNameInUse,  // a name occurs twice in the event, is the parent's own, or means other content on this worker
  kFull,       // a limit of the structure (workers, blocks or depth), or no memory now: a retry may succeed
};

constexpr std::string_view to_string(StoreVerdict verdict) noexcept {
  switch (verdict) {
    case StoreVerdict::kApplied:
      return "applied";
    case StoreVerdict::kEmpty:
      return "empty";
    case StoreVerdict::kUnknownTier:
      return "unknown tier";
    case StoreVerdict::kUnknownParent:
      return "unknown parent";
    case StoreVerdict::kWrongPosition:
      return "wrong position";
    case StoreVerdict::kNameInUse:
      return "name in use";
    case StoreVerdict::kFull:
      return "full";
  }
  return "unknown";
}

// What a worker holds under one name.
struct BlockPresence {
  BlockName name = {};
  tokens::LocalHash local = {};
  std::uint32_t position = 0;
  std::uint8_t tiers = 0;  // a bit per StorageTier; 0: the worker holds no block of that name

  bool is_held() const noexcept { return tiers != 0; }
  bool in_tier(StorageTier tier) const noexcept { return (tiers >> static_cast<unsigned>(tier) & 1) != 0; }
  friend bool operator==(const BlockPresence&, const BlockPresence&) = default;
};

class IndexSink {
 public:
  virtual ~IndexSink() = default;

  // Stores all blocks of the event, or none.
  virtual StoreVerdict store(const BlocksStored& event) = 0;
  // Removes names from one tier of a worker. Counts and skips names that the worker does not hold there.
  // Returns how many names were removed.
  virtual std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) = 0;
  // Removes all blocks of the worker in every tier; it may store again.
  virtual void clear(const Worker& worker) = 0;
  // Removes all ranks of a worker.
  virtual void remove_worker(WorkerId worker) = 0;

  // Writes what the worker holds under names[i] to out[i], with the effect of every earlier call for that
  // worker, also of those that are applied later. False: this sink cannot tell; `out` is unchanged.
  // Requires: out is as long as names.
  virtual bool presence(const Worker& /*worker*/, std::span<const BlockName> /*names*/,
                        std::span<BlockPresence> /*out*/) const {
    return false;
  }
  // Appends everything that the worker holds, in any order. False: as presence(); a sink tells both or
  // neither.
  virtual bool list(const Worker& /*worker*/, std::vector<BlockPresence>& /*out*/) const { return false; }
  // Whether the worker holds no block. Only a sink whose calls take effect before they return says so: then
  // what its only writer was told is what the worker holds. False: it may hold some, or the sink cannot tell.
  virtual bool holds_nothing(const Worker& /*worker*/) const { return false; }
};

// What a dump of an index held when it was read.
struct DumpCounts {
  std::size_t workers = 0;       // (worker, rank)s
  std::size_t stored = 0;        // blocks of its stores
  std::size_t removed = 0;       // names of its removals: blocks that only bridged a hole
  std::uint32_t block_size = 0;  // tokens; 0: not said

  friend bool operator==(const DumpCounts&, const DumpCounts&) = default;
};

}  // namespace ashlar::events

template <>
struct std::hash<ashlar::events::Worker> {
  std::size_t operator()(const ashlar::events::Worker& worker) const noexcept {
    return static_cast<std::size_t>((worker.id.value() ^ (std::uint64_t{worker.rank} << 32)) *
                                    0x9E3779B97F4A7C15u);
  }
};
