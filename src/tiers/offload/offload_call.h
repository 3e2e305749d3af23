// OffloadCall: one offload call, shared by the table and its handles.
//
// Thread safety: the lock of its table guards everything that changes.
// Invariant:     every block of the call is pending or has ended in exactly one way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tokens/sequence_hash.h"
#include "base/entry_map.h"
#include "base/table_seed.h"

namespace ashlar::tiers {

class OffloadTable;

struct OffloadCall {
  struct Pending {
    using Key = tokens::SequenceHash;

    tokens::SequenceHash name;
    std::size_t times = 0;  // named

    const Key& key() const noexcept { return name; }
    bool empty() const noexcept { return times == 0; }
    static std::uint64_t hash(const Key& key, std::uint64_t seed) noexcept {
      return seeded_hash(std::hash<Key>{}(key), seed);
    }
  };

  OffloadCall(std::size_t blocks, const OffloadOptions& options, std::shared_ptr<OffloadTable> its_table)
      : deadline(options.deadline), table(std::move(its_table)) {
    progress.total = blocks;
    pending.reserve(blocks);
  }

  // Before the table knows the call. False: the block was named before, and ends with it.
  bool name(const tokens::SequenceHash& hash) {
    const auto [block, fresh] = pending.insert({hash, 1});
    if (!fresh) ++block->times;
    return fresh;
  }

  // Ends a pending hash. True when none is left.
  bool end(const tokens::SequenceHash& hash, std::size_t OffloadProgress::* outcome,
           const std::optional<Error>& its_error = {}) {
    Pending* const block = pending.find(hash);
    ASHLAR_CHECK(block != nullptr, "block %s ends twice for a call", hash.to_string().c_str());
    progress.*outcome += block->times;
    pending.erase(block);
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

  const std::optional<Clock::TimePoint> deadline;
  const std::shared_ptr<OffloadTable> table;
  OffloadProgress progress;
  EntryMap<Pending> pending;
  std::optional<Error> error;  // the first
  CondVar ended;
};

}  // namespace ashlar::tiers
