// The wire format of inference engines: msgpack batches of vLLM (events as maps, or as arrays in older
// versions) and SGLang.
//
// A batch is [timestamp, events, rank?]. Names are unsigned or negative integers of any width, or digests;
// token_ids are integers or pairs. Keys that are not known, and what follows the known positions of an array,
// are skipped; an event whose tag is not known is kept as kUnknown.
//
// Thread safety: free functions.
// Complexity:    decoding is O(bytes), without recursion; memory is at most `max_bytes`, and a batch that is
//                used again allocates nothing once it is large enough (but for long extra keys).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/engine_event.h"

namespace ashlar::events {

// Two bytes of a message may become an event of two hundred: what a batch may take is limited, not what it
// came in.
inline constexpr std::size_t kMaxEngineBatchBytes = std::size_t{256} << 20;

// Replaces `out`, whose views refer to `payload`. The memory of `out`, with what it kept from before, never
// exceeds `max_bytes`; that is checked before memory is taken. Errors, which leave `out` empty: kCorruption,
// with what and at which byte; kCapacity: it would take more than `max_bytes`.
Result<void> decode_engine_batch(std::span<const std::byte> payload, EngineBatch& out,
                                 std::size_t max_bytes = kMaxEngineBatchBytes);

// kMap is what vLLM writes today; kArray what older versions and SGLang do. It has no place for session_id
// and cache_salt.
enum class EngineForm : std::uint8_t { kMap, kArray };

// Replaces `out` with the bytes that vLLM 0.32 sends for the batch (an absent rank is nil; kCleared with an
// owner, and what BlockRemoved says of its group beside the index, are additions of other publishers). A name
// that was negative on the wire is written as the unsigned number of the same bits. Requires: the keys of an
// event in the order of their blocks.
void encode_engine_batch(const EngineBatch& batch, std::vector<std::byte>& out,
                         EngineForm form = EngineForm::kMap);

}  // namespace ashlar::events
