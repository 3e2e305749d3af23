// How GoogleTest prints the values of the index layer.
#pragma once

#include <ostream>

#include "ashlar/index/indexer.h"

namespace ashlar::events {

inline void PrintTo(const Worker& worker, std::ostream* out) {
  *out << worker.id << "/" << worker.rank;
}
inline void PrintTo(StorageTier tier, std::ostream* out) {
  *out << to_string(tier);
}
inline void PrintTo(const BlockPresence& block, std::ostream* out) {
  *out << block.name << " at " << block.position << " in tiers " << static_cast<int>(block.tiers) << " local "
       << block.local.value();
}
inline void PrintTo(StoreVerdict verdict, std::ostream* out) {
  *out << to_string(verdict);
}

}  // namespace ashlar::events

namespace ashlar::index {

inline void PrintTo(const Score& score, std::ostream* out) {
  *out << "device " << score.device_depth << ", depth " << score.depth << ", tiers";
  for (const std::uint32_t blocks : score.blocks) *out << " " << blocks;
}

inline void PrintTo(const IndexSizes& sizes, std::ostream* out) {
  *out << sizes.workers << " workers, " << sizes.blocks << " blocks, " << sizes.contents << " contents, "
       << sizes.nodes << " nodes, " << sizes.bytes << " bytes, " << sizes.waiting_bytes << " waiting";
}

inline void PrintTo(const IndexCounters& counters, std::ostream* out) {
  *out << counters.stored << " stored, " << counters.repeated << " repeated, " << counters.removed
       << " removed, " << counters.unknown_removals << " unknown removals, " << counters.unknown_parents
       << " unknown parents, " << counters.wrong_positions << " wrong positions, " << counters.names_in_use
       << " names in use, " << counters.empty_stores << " empty, " << counters.unknown_tiers
       << " unknown tiers, " << counters.full << " full, " << counters.clears << " clears";
}

}  // namespace ashlar::index
