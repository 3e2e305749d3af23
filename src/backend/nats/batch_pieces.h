// for_each_piece: a batch as messages that are small enough.
//
// Events are cut into batches that follow each other, a snapshot in one batch into parts, and each part of a
// snapshot that comes in parts into equally many. Where a batch fits, it is one piece.
//
// Thread safety: free function.
// Complexity:    encodes once where the batch fits, else twice or so.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

using TakePiece =
    std::function<Result<void>(const events::EventBatch& piece, std::span<const std::byte> bytes)>;

// How the parts of a snapshot are cut, from its first part to its last: what was `part` of `parts` is the
// `pieces` ones from part * pieces on, of parts * pieces.
struct SnapshotCut {
  std::uint64_t first = 0;
  std::int64_t published_ns = 0;
  std::uint32_t parts = 0;
  std::uint32_t pieces = 1;
  std::uint32_t least = 1;  // pieces, of the snapshots to come
};

// Ends with the first error of `take`. `buffer` is used for the bytes, `cut` for what the parts of a stream's
// snapshots have in common; it is needed for those alone. Errors: kCapacity: one event is larger than
// `limit`, or there are more than events::kMaxSnapshotParts; also kCapacity: a part does not fit where the
// earlier ones did, and nothing was taken of it: offer the snapshot again, from its first part on, and it is
// cut finer.
Result<void> for_each_piece(const events::EventBatch& batch, std::size_t limit,
                            std::vector<std::byte>& buffer, const TakePiece& take,
                            SnapshotCut* cut = nullptr);

}  // namespace ashlar::backend::nats
