// PendingFences: preconditions that came with blocks when they were registered, until they have passed: whoever offers such a
// block later waits for them too.
//
// Thread safety: thread-safe.
#pragma once

#include <algorithm>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/block/fence.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class PendingFences {
 public:
  // `after`: none, one for all, or one for each.
  void add(std::span<const tokens::SequenceHash> hashes, std::span<const block::Fence> after) {
    if (after.empty()) return;
    const MutexLock lock(mu_);
    std::erase_if(fences_, [](const auto& one) { return one.second.passed(); });
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const block::Fence& fence = after[after.size() == 1 ? 0 : i];
      if (!fence.passed()) fences_.insert_or_assign(hashes[i], fence);
    }
  }
  // Those of the blocks, one for each; none when no block has one.
  std::vector<block::Fence> of(std::span<const tokens::SequenceHash> hashes) const {
    std::vector<block::Fence> out;
    const MutexLock lock(mu_);
    if (fences_.empty()) return out;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const auto found = fences_.find(hashes[i]);
      if (found == fences_.end() || found->second.passed()) continue;
      if (out.empty()) out.assign(hashes.size(), block::Fence::passed_already());
      out[i] = found->second;
    }
    return out;
  }

 private:
  mutable Mutex mu_;
  std::unordered_map<tokens::SequenceHash, block::Fence> fences_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
