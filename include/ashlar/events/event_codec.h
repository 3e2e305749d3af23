// The bytes of a batch in Ashlar's own format (docs/formats/events.md).
//
// Consecutive events that store a chain, or remove, in one tier travel as one run: what they share is written
// once.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::events {

// Replaces `out`. A buffer that is used again allocates nothing once it is large enough.
void encode_batch(const EventBatch& batch, std::vector<std::byte>& out);

// Replaces `out`. Takes no more than `max_bytes` of memory for it; that is checked before memory is taken.
// Errors: kCorruption: not a batch, cut short, or its checksum does not agree; kUnsupported: a version that
// this library does not know; kCapacity: larger than `max_bytes`.
inline constexpr std::size_t kMaxDecodedBytes = std::size_t{256} << 20;
Result<void> decode_batch(std::span<const std::byte> bytes, OwnedBatch& out,
                          std::size_t max_bytes = kMaxDecodedBytes);

// What every batch begins with, and its smallest size.
inline constexpr std::string_view kBatchMagic = "AKEV";
inline constexpr std::size_t kBatchHeaderBytes = 96;
// Whether the bytes are a batch as it was written, of any version: its magic and checksum agree.
bool is_whole_batch(std::span<const std::byte> bytes) noexcept;

// How many of the first events travel as one: a chain of stores, or removals, of one tier, group and
// location.
std::size_t run_length(std::span<const KvEvent> events) noexcept;

}  // namespace ashlar::events
