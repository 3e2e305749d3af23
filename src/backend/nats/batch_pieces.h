// for_each_piece: cuts a batch into messages below a size limit.
//
// Events are cut into consecutive batches, a whole snapshot into parts, and each part of a snapshot into
// equally many pieces. A batch that fits is one piece.
//
// Thread safety: free function.
// Complexity:    encodes once if the batch fits, otherwise about twice.
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

// How the parts of a snapshot are split, from its first part to its last: `part` of `parts` becomes `pieces`
// parts from part * pieces on, of parts * pieces.
struct SnapshotCut {
  std::uint64_t first = 0;
  std::int64_t published_ns = 0;
  std::uint32_t parts = 0;
  std::uint32_t pieces = 1;
  std::uint32_t least = 1;  // minimum pieces for later snapshots
};

// Stops at the first error of `take`. `buffer` holds the bytes; `cut`, needed only for parts of a snapshot,
// the state shared by its parts. Errors: kCapacity: one event is larger than `limit`, or there are more than
// events::kMaxSnapshotParts; also kCapacity: a part does not fit although earlier ones did; nothing of it was
// taken. Publish the snapshot again from its first part: it is then split further.
Result<void> for_each_piece(const events::EventBatch& batch, std::size_t limit,
                            std::vector<std::byte>& buffer, const TakePiece& take,
                            SnapshotCut* cut = nullptr);

}  // namespace ashlar::backend::nats
