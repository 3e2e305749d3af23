// LateValues: keeps the tiers agreed on values that callers set by hash, retention and metadata, while copies
// of the block are in flight.
//
// A copy takes the values along that its source had when it was read. Whoever sets a value does so in every
// tier, from the fastest down, one caller at a time. Whoever has registered a copy compares it with its
// source until both are equal. So a value that was set in the source before the last comparison is in the
// copy, and one that is set later finds the copy registered.
//
// Thread safety: thread-safe.
// Complexity:    a copy that no call overlaps costs two atomic loads.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/tokens/sequence_hash.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

class LateValues {
 public:
  // Taken before the source's record is read.
  class Before {
    friend class LateValues;
    std::uint64_t begun = 0;
    bool quiet = false;
  };

  // Runs set(), which sets values in all tiers.
  template <class F>
  std::invoke_result_t<F> set(F&& set) {
    const MutexLock lock(mu_);
    ++begun_;
    struct Ending {
      std::atomic<std::uint64_t>& ended;
      ~Ending() { ++ended; }
    } const ending{ended_};
    return std::forward<F>(set)();
  }

  Before before() const noexcept {
    Before taken;
    const std::uint64_t ended = ended_;  // read first: a call that begins in between counts as under way
    taken.begun = begun_;
    taken.quiet = taken.begun == ended;
    return taken;
  }
  // Copies of these hashes were registered in `to`.
  void arrived(const Before& before, TierPool& from, TierPool& to,
               std::span<const tokens::SequenceHash> hashes) {
    if (before.quiet && before.begun == begun_) return;
    std::vector<tokens::SequenceHash> changed;
    for (const tokens::SequenceHash& hash : hashes)
      if (agree(from, to, hash)) changed.push_back(hash);
    // The values stay right here if they cannot be saved; a restart finds those of the copy.
    if (!changed.empty()) static_cast<void>(to.save_values(changed));
  }

 private:
  // Returns whether it changed the copy.
  static bool agree(TierPool& from, TierPool& to, const tokens::SequenceHash& hash) {
    std::optional<block::BlockDescription> set;  // what the copy was last given
    for (;;) {
      const std::optional<block::Hold> held = from.hold(hash);
      const std::optional<block::BlockDescription> source = from.describe(hash);
      const std::optional<block::BlockDescription> copy = to.describe(hash);
      if (!held || !source || !copy) return set.has_value();
      const bool may_be_unread = !from.knows_values(*held);
      const block::BlockRetention wanted = source->retention.value_or(block::BlockRetention());
      const std::uint32_t metadata = source->identity->metadata;
      const bool same_retention = copy->retention.value_or(block::BlockRetention()) == wanted ||
                                  (may_be_unread && wanted == block::BlockRetention());
      const bool same_metadata = copy->identity->metadata == metadata || (may_be_unread && metadata == 0);
      if (same_retention && same_metadata) return set.has_value();
      if (set && set->retention == source->retention && set->identity->metadata == metadata) return true;
      // It may have been evicted since; then there is nothing to compare.
      if (!same_retention) static_cast<void>(to.set_retention(hash, wanted));
      if (!same_metadata) static_cast<void>(to.set_metadata(hash, metadata));
      set = source;
    }
  }

  Mutex mu_;  // between callers; taken before the locks of the stores and of the offload tables
  std::atomic<std::uint64_t> begun_{0};
  std::atomic<std::uint64_t> ended_{0};
};

}  // namespace ashlar::tiers
