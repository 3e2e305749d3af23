// SnapshotHead: the entry of a worker in a bucket: where the parts of its snapshot are, and which snapshot
// they belong to.
//
// Thread safety: plain value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

struct SnapshotHead {
  std::uint8_t place = 0;
  std::uint32_t parts = 0;
  std::uint64_t incarnation = 0;
  std::uint64_t first = 0;
  std::int64_t published_ns = 0;
  std::uint64_t revision = 0;  // of the entry; not in its bytes

  std::vector<std::byte> bytes() const;
  // nullopt if the bytes are not a head.
  static std::optional<SnapshotHead> read(std::span<const std::byte> bytes);
  // Whether a batch is part `part` of this snapshot, for any worker.
  bool has_part(const events::EventBatch& batch, std::uint32_t part) const noexcept;
};

}  // namespace ashlar::backend::nats
