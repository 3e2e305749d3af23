// OffloadCall: one offload call, shared by the table and its handles.
//
// Thread safety: the lock of its table guards everything that changes.
// Invariant:     every block of the call is pending or has ended in exactly one way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

class OffloadTable;

struct OffloadCall {
  OffloadCall(std::span<const tokens::SequenceHash> hashes, const OffloadOptions& options,
              std::shared_ptr<OffloadTable> its_table)
      : priority(options.priority), deadline(options.deadline), table(std::move(its_table)) {
    progress.total = hashes.size();
    for (const tokens::SequenceHash& hash : hashes) ++pending[hash];
  }

  // Ends a pending hash. True when none is left.
  bool end(const tokens::SequenceHash& hash, std::size_t OffloadProgress::* outcome,
           const std::optional<Error>& its_error = {}) {
    const auto found = pending.find(hash);
    ASHLAR_CHECK(found != pending.end(), "block %s ends twice for a call", hash.to_string().c_str());
    progress.*outcome += found->second;
    pending.erase(found);
    ASHLAR_CHECK(progress.ended() <= progress.total, "%zu of %zu blocks of an offload call have ended",
                 progress.ended(), progress.total);
    if (its_error && !error) error = its_error;
    if (pending.empty()) ended.notify_all();
    return pending.empty();
  }
  Result<OffloadProgress> result() const {
    if (!pending.empty())
      return make_error(ErrorCode::kTimeout, "%zu of %zu blocks have ended", progress.ended(),
                        progress.total);
    if (error) return *error;
    if (progress.late != 0)
      return make_error(ErrorCode::kTimeout, "the deadline came before %zu of %zu blocks had arrived",
                        progress.late, progress.total);
    return progress;
  }

  const std::uint8_t priority;
  const std::optional<Clock::TimePoint> deadline;
  const std::shared_ptr<OffloadTable> table;
  OffloadProgress progress;
  std::unordered_map<tokens::SequenceHash, std::size_t> pending;  // how often each was named
  std::optional<Error> error;                                     // the first
  CondVar ended;
};

}  // namespace ashlar::tiers
