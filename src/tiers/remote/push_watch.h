// PushWatch: pushes of whole blocks on their way into G2, and which of their blocks were dropped meanwhile.
//
// A reset or a removal cannot find a block that is not registered yet. It says so here, and whoever registers
// the block takes it out again.
//
// Thread safety: thread-safe.
// Complexity:    O(blocks of the pushes in flight) per drop.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/tokens/sequence_hash.h"
#include "tiers/pool/tier_record.h"

namespace ashlar::tiers {

class PushWatch {
 public:
  // From before the blocks are copied until a removal finds them in G2. Thread-compatible.
  class Push {
   public:
    // Both outlive this.
    Push(PushWatch& watch, std::span<const TierRecord> records)
        : watch_(watch), records_(records), dropped_(records.size()) {
      const MutexLock lock(watch_.mu_);
      watch_.pushes_.push_back(this);
    }
    ~Push() { end(); }
    Push(const Push&) = delete;
    Push& operator=(const Push&) = delete;

    // For each record, whether its block was dropped since this began. No more drops are noted.
    const std::vector<bool>& end() {
      const MutexLock lock(watch_.mu_);
      std::erase(watch_.pushes_, this);
      return dropped_;
    }

   private:
    friend class PushWatch;
    PushWatch& watch_;
    const std::span<const TierRecord> records_;
    std::vector<bool> dropped_;  // under the watch's lock, until this has ended
  };

  void drop(std::span<const tokens::SequenceHash> hashes) {
    const MutexLock lock(mu_);
    for (Push* const push : pushes_)
      for (std::size_t i = 0; i < push->records_.size(); ++i)
        if (std::ranges::find(hashes, push->records_[i].hash) != hashes.end()) push->dropped_[i] = true;
  }
  void drop_all() {
    const MutexLock lock(mu_);
    for (Push* const push : pushes_) push->dropped_.assign(push->records_.size(), true);
  }

 private:
  Mutex mu_;  // a leaf
  std::vector<Push*> pushes_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
