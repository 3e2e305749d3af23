// EngineBatch: what an inference engine says about its cache, decoded from its wire format.
//
// Events are as the engine sent them; nothing is checked against what came before (feed/engine_ingest.h does that). The arrays
// of all events lie together in the batch, so that a batch which is decoded into again allocates nothing.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/events/index_sink.h"
#include "ashlar/tokens/token.h"

namespace ashlar::events {

enum class EngineEventKind : std::uint8_t { kStored, kRemoved, kCleared, kUnknown };

// A part of one of the arrays of the batch.
struct EngineRange {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
};

// One thing beside its tokens that enters the hash of a block, as the engine published it.
struct EngineExtraKey {
  enum class Kind : std::uint8_t { kText, kMultimodal, kBytes };
  std::uint32_t block = 0;  // of the event, from 0
  Kind kind = Kind::kText;
  std::string value;        // text, identifier of the item, or bytes
  std::int64_t offset = 0;  // of the multimodal item
};

struct EngineEvent {
  EngineEventKind kind = EngineEventKind::kUnknown;
  EngineRange names;  // of EngineBatch::names
  std::optional<BlockName> parent;
  EngineRange tokens;  // of EngineBatch::tokens
  bool token_pairs =
      false;  // the engine sent pairs (speculative decoding); tokens has first, second, first, second, …
  std::uint32_t block_size = 0;  // tokens
  EngineRange extra_keys;        // of EngineBatch::extra_keys
  bool has_extra_keys = false;   // the engine sent the field
  std::optional<std::uint32_t> group;
  std::optional<std::uint32_t> sliding_window;
  std::optional<std::int64_t> lora_id;
  // Views of the bytes that were decoded; empty where the engine sent nothing.
  std::string_view medium;
  std::string_view lora_name;
  std::string_view spec_kind;
  std::string_view locality;
  std::string_view ownership;
  std::string_view cache_salt;
};

struct EngineBatch {
  double timestamp = 0;  // Unix seconds
  std::optional<std::uint32_t> rank;
  std::vector<EngineEvent> events;
  std::vector<BlockName> names;
  std::vector<tokens::Token> tokens;
  std::vector<EngineExtraKey> extra_keys;

  std::span<const BlockName> names_of(const EngineEvent& event) const {
    return std::span(names).subspan(event.names.begin, event.names.count);
  }
  std::span<const tokens::Token> tokens_of(const EngineEvent& event) const {
    return std::span(tokens).subspan(event.tokens.begin, event.tokens.count);
  }
  std::span<const EngineExtraKey> extra_keys_of(const EngineEvent& event) const {
    return std::span(extra_keys).subspan(event.extra_keys.begin, event.extra_keys.count);
  }
};

}  // namespace ashlar::events
