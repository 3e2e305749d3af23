// The bytes of a batch in Ashlar's own format (docs/formats/events.md).
//
// Consecutive stores of a chain in one tier are encoded as one run, and so are removals that go along a chain
// in either direction: common fields are written once, and parents follow from the blocks.
//
// Thread safety: thread-safe; free functions without state.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"

namespace ashlar::events {

// Replaces `out`. A reused buffer allocates nothing once it is large enough.
void encode_batch(const EventBatch& batch, std::vector<std::byte>& out);

// Replaces `out`. Uses at most `max_bytes` of memory; the limit is checked before allocating.
// Errors: kCorruption: not a batch, truncated, or a wrong checksum; kUnsupported: an unknown version;
// kCapacity: larger than `max_bytes`.
inline constexpr std::size_t kMaxDecodedBytes = std::size_t{256} << 20;
Result<void> decode_batch(std::span<const std::byte> bytes, OwnedBatch& out,
                          std::size_t max_bytes = kMaxDecodedBytes);

// The first bytes of every batch, and its smallest size.
inline constexpr std::string_view kBatchMagic = "AKEV";
inline constexpr std::size_t kBatchHeaderBytes = 96;
// Whether the bytes are an undamaged batch, of any version: its magic and checksum agree.
bool is_whole_batch(std::span<const std::byte> bytes) noexcept;

// Length of the first run, for formats that send runs: a chain of stores, or removals of whatever sequences,
// of one tier, group and location.
std::size_t run_length(std::span<const KvEvent> events) noexcept;

}  // namespace ashlar::events
