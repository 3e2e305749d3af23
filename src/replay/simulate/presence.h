// Presence: which worker has which block of a trace in which tiers, and which blocks any of them ever had.
//
// Thread safety: thread-compatible. Memory: a byte per worker and distinct block, and 3 per block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/replay/simulate.h"

namespace ashlar::replay {

class Presence {
 public:
  Presence(std::uint32_t workers, std::size_t blocks)
      : tiers_(workers, std::vector<std::uint8_t>(blocks)), holders_(blocks), seen_(blocks) {}

  bool has(std::uint32_t worker, std::size_t tier, std::uint32_t block) const {
    return (tiers_[worker][block] >> tier & 1) != 0;
  }
  bool has(std::uint32_t worker, std::uint32_t block) const { return tiers_[worker][block] != 0; }

  // False: it was there.
  bool store(std::uint32_t worker, std::size_t tier, std::uint32_t block) {
    std::uint8_t& tiers = tiers_[worker][block];
    if ((tiers >> tier & 1) != 0) return false;
    holders_[block] = static_cast<std::uint16_t>(holders_[block] + (tiers == 0));
    tiers = static_cast<std::uint8_t>(tiers | 1u << tier);
    seen_[block] = 1;
    return true;
  }
  void remove(std::uint32_t worker, std::size_t tier, std::uint32_t block) {
    std::uint8_t& tiers = tiers_[worker][block];
    ASHLAR_DCHECK((tiers >> tier & 1) != 0, "block %u leaves a tier where it was not", block);
    tiers = static_cast<std::uint8_t>(tiers & ~(1u << tier));
    holders_[block] = static_cast<std::uint16_t>(holders_[block] - (tiers == 0));
  }

  // Why a request at this worker does not find the block. Requires: it does not.
  MissReason reason(std::uint32_t worker, std::uint32_t block) const {
    if (has(worker, block)) return MissReason::kBrokenPrefix;
    if (holders_[block] != 0) return MissReason::kElsewhere;
    return seen_[block] != 0 ? MissReason::kEvicted : MissReason::kNeverSeen;
  }

 private:
  std::vector<std::vector<std::uint8_t>> tiers_;  // by worker, then by block: bit t is tier t
  std::vector<std::uint16_t> holders_;            // workers
  std::vector<std::uint8_t> seen_;
};

}  // namespace ashlar::replay
