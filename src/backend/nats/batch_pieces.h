// for_each_piece: a batch as messages that are small enough.
//
// Events are cut into batches that follow each other, a snapshot in one batch into parts. Where a batch fits, it is one piece.
//
// Thread safety: free function.
// Complexity:    encodes once where the batch fits, else twice or so.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::backend::nats {

using TakePiece =
    std::function<Result<void>(const events::EventBatch& piece, std::span<const std::byte> bytes)>;

// Ends with the first error of `take`. `buffer` is used for the bytes. Errors: kCapacity: one event, or a part of a
// snapshot that is in several, is larger than `limit`.
Result<void> for_each_piece(const events::EventBatch& batch, std::size_t limit,
                            std::vector<std::byte>& buffer, const TakePiece& take);

}  // namespace ashlar::backend::nats
