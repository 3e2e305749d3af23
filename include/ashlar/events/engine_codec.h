// EngineBatch: the cache events that an inference engine publishes, and their wire format: the msgpack
// batches of vLLM (events as maps, or as arrays in older versions) and SGLang.
//
// A batch is [timestamp, events, rank?]. Names are unsigned or negative integers of any width, or digests;
// token_ids are integers or pairs. Unknown keys, and elements beyond the known positions of an array, are
// skipped; an event with an unknown tag is kept as kUnknown. Events are decoded as the engine sent them;
// nothing is checked against earlier events (EngineIngest does that, feed/engine_session.h).
//
// All events of a batch share its arrays, so decoding into a used batch allocates nothing.
//
// Thread safety: EngineBatch is thread-compatible; the functions are free functions.
// Complexity:    decoding is O(bytes), without recursion; memory is at most `max_bytes`, and a reused batch
//                allocates nothing once it is large enough (except for long extra keys).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/tokens/token.h"

namespace ashlar::events {

enum class EngineEventKind : std::uint8_t { kStored, kRemoved, kCleared, kUnknown };

// A range of one of the batch's arrays.
struct EngineRange {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

// One input of a block's hash beside its tokens, as the engine published it.
struct EngineExtraKey {
  enum class Kind : std::uint8_t { kText, kMultimodal, kBytes, kOther };
  std::uint32_t block = 0;  // of the event, from 0
  Kind kind = Kind::kText;
  std::string value;        // text, identifier of the item, or bytes; kOther: the raw msgpack value
  std::int64_t offset = 0;  // of the multimodal item

  friend bool operator==(const EngineExtraKey&, const EngineExtraKey&) = default;
};

struct EngineEvent {
  EngineEventKind kind = EngineEventKind::kUnknown;
  EngineRange names;  // of EngineBatch::names
  std::optional<BlockName> parent;
  // If the engine names blocks by whole digests, all of one size: the names are their last 8 bytes. Else 0.
  std::uint32_t digest_size = 0;  // bytes
  EngineRange digests;  // of EngineBatch::digests: those of the names, then the parent's if there is one
  EngineRange tokens;   // of EngineBatch::tokens
  bool token_pairs =
      false;  // the engine sent pairs (speculative decoding); tokens has first, second, first, second, ...
  std::uint32_t block_size = 0;        // tokens
  EngineRange extra_keys;              // of EngineBatch::extra_keys
  std::uint32_t extra_key_blocks = 0;  // the number of blocks listed there, with keys or without
  bool has_extra_keys = false;         // the engine sent the field
  std::optional<std::uint32_t> group;
  std::optional<std::uint32_t> sliding_window;
  std::optional<std::int64_t> lora_id;
  // Views of the decoded bytes; data() is null for absent fields.
  std::string_view medium;
  std::string_view lora_name;
  std::string_view spec_kind;
  std::string_view locality;
  std::string_view ownership;
  std::string_view session_id;
  std::string_view cache_salt;
  // kUnknown: the engine's tag of the event, and all of its bytes.
  std::string_view tag;
  std::span<const std::byte> raw;
};

struct EngineBatch {
  double timestamp = 0;  // Unix seconds
  std::optional<std::uint32_t> rank;
  std::vector<EngineEvent> events;
  std::vector<BlockName> names;
  std::vector<std::byte> digests;
  std::vector<tokens::Token> tokens;
  std::vector<EngineExtraKey> extra_keys;

  void clear() noexcept {
    timestamp = 0;
    rank.reset();
    events.clear();
    names.clear();
    digests.clear();
    tokens.clear();
    extra_keys.clear();
  }
  std::span<const BlockName> names_of(const EngineEvent& event) const {
    return std::span(names).subspan(event.names.begin, event.names.count);
  }
  // The digest of a name, or with index names.count that of the parent; empty if the engine sent none.
  std::span<const std::byte> digest_of(const EngineEvent& event, std::uint32_t index) const {
    const std::size_t at = std::size_t{index} * event.digest_size;
    if (event.digest_size == 0 || at + event.digest_size > event.digests.count) return {};
    return std::span(digests).subspan(event.digests.begin + at, event.digest_size);
  }
  std::span<const tokens::Token> tokens_of(const EngineEvent& event) const {
    return std::span(tokens).subspan(event.tokens.begin, event.tokens.count);
  }
  std::span<const EngineExtraKey> extra_keys_of(const EngineEvent& event) const {
    return std::span(extra_keys).subspan(event.extra_keys.begin, event.extra_keys.count);
  }
};

// Two bytes of a message may become an event of two hundred: the decoded size is limited, not the message.
inline constexpr std::size_t kMaxEngineBatchBytes = std::size_t{256} << 20;

// Replaces `out`, whose views refer to `payload`. The memory of `out`, including capacity kept from before,
// never exceeds `max_bytes`; that is checked before allocating. Errors, which leave `out` empty: kCorruption,
// with the fault and its byte; kCapacity: it would take more than `max_bytes`.
Result<void> decode_engine_batch(std::span<const std::byte> payload, EngineBatch& out,
                                 std::size_t max_bytes = kMaxEngineBatchBytes);

// kMap is vLLM's current form; kArray that of older versions and SGLang. kArray has no field for session_id
// and cache_salt.
enum class EngineForm : std::uint8_t { kMap, kArray };

// Replaces `out` with the bytes that vLLM 0.32 sends for the batch (an absent rank is nil; kCleared with an
// owner, and the group fields of BlockRemoved beyond the index, are additions of other publishers). A name
// that was negative on the wire is written as the unsigned number of the same bits. Requires: the keys of an
// event in the order of their blocks.
void encode_engine_batch(const EngineBatch& batch, std::vector<std::byte>& out,
                         EngineForm form = EngineForm::kMap);

}  // namespace ashlar::events
