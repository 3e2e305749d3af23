// SnapshotParts: puts the parts of one snapshot together, in any order.
//
// Parts of another snapshot than the first one's are not taken: a listener never gets a mixture.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

class SnapshotParts {
 public:
  static constexpr std::uint32_t kMostParts = events::kMaxSnapshotParts;

  // False where it is no part of this snapshot, or was there.
  bool add(events::OwnedBatch batch) {
    const events::EventBatch& head = batch.head;
    if (head.kind != events::BatchKind::kSnapshot || head.parts == 0 || head.parts > kMostParts ||
        head.part >= head.parts)
      return false;
    if (parts_.empty()) {
      parts_.resize(head.parts);
      head_ = head;
    } else if (head.stream != head_.stream || head.keys != head_.keys || head.first != head_.first ||
               head.parts != head_.parts || head.published_ns != head_.published_ns) {
      return false;
    }
    if (parts_[head.part]) return false;
    parts_[head.part] = std::move(batch);
    ++there_;
    return true;
  }
  bool is_complete() const noexcept { return !parts_.empty() && there_ == parts_.size(); }
  const events::EventBatch& head() const noexcept { return head_; }  // of any of its parts

  // Requires: is_complete().
  std::vector<events::OwnedBatch> take() {
    std::vector<events::OwnedBatch> out;
    out.reserve(parts_.size());
    for (std::optional<events::OwnedBatch>& part : parts_) out.push_back(std::move(*part));
    *this = {};
    return out;
  }

 private:
  std::vector<std::optional<events::OwnedBatch>> parts_;
  std::size_t there_ = 0;
  events::EventBatch head_;
};

}  // namespace ashlar::backend::nats
