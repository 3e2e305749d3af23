// SnapshotParts: collects the parts of one snapshot, in any order.
//
// Parts of other snapshots are refused: a listener never gets a mixture. Beyond the memory limit all parts
// are dropped, and no more are accepted.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/event_codec.h"

namespace ashlar::backend::nats {

class SnapshotParts {
 public:
  static constexpr std::uint32_t kMostParts = events::kMaxSnapshotParts;

  explicit SnapshotParts(std::size_t max_bytes = events::kMaxDecodedBytes) noexcept : max_bytes_(max_bytes) {}

  // Returns false for a part of another snapshot or a duplicate.
  bool add(events::OwnedBatch batch) {
    const events::EventBatch& head = batch.head;
    if (head.kind != events::BatchKind::kSnapshot || head.parts == 0 || head.parts > kMostParts ||
        head.part >= head.parts || is_too_large_)
      return false;
    if (parts_.empty()) {
      parts_.resize(head.parts);
      bytes_ = head.parts * sizeof(parts_[0]);
      head_ = head;
    } else if (head.stream != head_.stream || head.keys != head_.keys || head.first != head_.first ||
               head.parts != head_.parts || head.published_ns != head_.published_ns) {
      return false;
    }
    if (parts_[head.part]) return false;
    bytes_ += events::memory_of(batch.view());
    if (bytes_ > max_bytes_) {
      parts_ = {};
      is_too_large_ = true;
      return false;
    }
    parts_[head.part] = std::move(batch);
    ++received_;
    ASHLAR_DCHECK(received_ <= parts_.size(), "%zu parts were counted of %zu", received_, parts_.size());
    return true;
  }
  bool is_complete() const noexcept { return !parts_.empty() && received_ == parts_.size(); }
  bool is_too_large() const noexcept { return is_too_large_; }
  const events::EventBatch& head() const noexcept { return head_; }  // of any of its parts
  Error too_large_error() const {
    return make_error(
        ErrorCode::kCapacity,
        "a snapshot of worker %llu rank %u takes more than %zu bytes of memory; raise max_snapshot_bytes",
        static_cast<unsigned long long>(head_.stream.worker.id.value()), head_.stream.worker.rank,
        max_bytes_);
  }

  // Requires: is_complete().
  std::vector<events::OwnedBatch> take() {
    ASHLAR_CHECK(is_complete(), "a snapshot is taken with %zu of its %zu parts", received_, parts_.size());
    std::vector<events::OwnedBatch> out;
    out.reserve(parts_.size());
    for (std::optional<events::OwnedBatch>& part : parts_) out.push_back(std::move(*part));
    *this = SnapshotParts(max_bytes_);
    return out;
  }

 private:
  std::vector<std::optional<events::OwnedBatch>> parts_;
  std::size_t received_ = 0;
  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  bool is_too_large_ = false;
  events::EventBatch head_;
};

}  // namespace ashlar::backend::nats
