// The bytes of a batch in Ashlar's own format (docs/formats/events.md).
//
// Consecutive events that store a chain, or remove, in one tier travel as one run: what they share is written once.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::events {

// Replaces `out`. A buffer that is used again allocates nothing once it is large enough.
void encode_batch(const EventBatch& batch, std::vector<std::byte>& out);

// Replaces `out`. Errors: kCorruption: not a batch, cut short, or its checksum does not agree; kUnsupported: a version that this
// library does not know.
Result<void> decode_batch(std::span<const std::byte> bytes, OwnedBatch& out);

// How many of the first events travel as one: a chain of stores, or removals, of one tier, group and location.
std::size_t run_length(std::span<const KvEvent> events) noexcept;

}  // namespace ashlar::events
