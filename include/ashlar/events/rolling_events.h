// RollingEvent: an event of the KV Events API of RFC 1527 (Mooncake), and its JSON.
//
//   {"event_id":42,"timestamp":1739145600000,"event_type":"stored","model_name":"m","block_size":64,
//    "additional_salt":null,"lora_name":null,"tenant_id":"default","backend_id":"worker-0",
//    "medium":"gpu","dp_rank":0,"seq_hashes":[1,2],"base_block_idx":5,"parent_hash":9,"token_ids":null}
//
// event_type is stored, removed (seq_hashes and base_block_idx only) or cleared (neither). Hashes are
// rolling:
//   local[i] = XXH3-64(tokens as little-endian u32, S)
//   seq[0] = local[0]; seq[i] = XXH3-64(LE seq[i-1] | LE local[i], S)
// With S = 1337 and no salt this is the xxh3 chain of tokens::HashScheme. The field names and the rule follow
// the published description of the API. It specifies neither S nor how a salt or a LoRA name enters it, and
// it names gpu, cpu and disk only as common media: "external" for G4 and "remote" are ours.
//
// Thread safety: plain values and free functions.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/token.h"

namespace ashlar::events {

// Fields that all events of one publisher share.
struct RollingSource {
  std::optional<std::string> model_name = {};
  std::optional<std::string> additional_salt = {};
  std::optional<std::string> lora_name = {};
  std::string tenant_id = "default";
  std::string backend_id = {};

  friend bool operator==(const RollingSource&, const RollingSource&) = default;
};

struct RollingEvent {
  RollingSource source = {};
  std::uint64_t event_id = 0;  // consecutive within a source, medium and rank
  std::optional<std::uint64_t> timestamp_ms = {};
  KvEventKind kind = KvEventKind::kStored;  // or kRemoved, kCleared
  std::optional<std::uint32_t> block_size = {};
  std::optional<std::string> medium = {};
  std::optional<std::uint32_t> rank = {};
  std::vector<std::uint64_t> hashes = {};
  std::optional<std::uint32_t> first_position = {};
  std::optional<std::uint64_t> parent = {};
  std::optional<std::vector<tokens::Token>> token_ids = {};

  friend bool operator==(const RollingEvent&, const RollingEvent&) = default;
};

// Appends the JSON of one event. Requires: one of the three kinds.
void append_rolling_event(const RollingEvent& event, std::string& out);

// Replaces `out` by the one event of `json`. Errors: kCorruption, with the fault and its byte.
Result<void> decode_rolling_event(std::string_view json, RollingEvent& out);

// The number of the next event in each of G1 to G4.
using RollingIds = std::array<std::uint64_t, kStorageTiers>;

// Appends the events of a batch to `out`: each run of stored or removed blocks becomes one; kCleared of all
// tiers becomes one per tier; kAccess, and all groups of layers but the first, are skipped. Errors, which
// leave `out` and `ids` unchanged: kUnsupported: blocks named by another scheme than the xxh3 chain, blocks
// with their own names, a tier beyond G4, or kResync (send a snapshot).
Result<void> to_rolling_events(const EventBatch& batch, const RollingSource& source, RollingIds& ids,
                               std::vector<RollingEvent>& out);

// Appends the event as KvEvents. Local hashes are set if the event has tokens and its hashes follow the xxh3
// chain. Fields that the wire does not carry are unset, as with append_kv_events(const RouterEvent&). Errors,
// which leave `out` unchanged: kUnsupported: an unknown medium, or no position; kInvalidArgument: a position
// that does not agree with the parent, is beyond SequenceHash::kMaxPosition, or tokens that do not fill the
// blocks.
Result<void> append_kv_events(const RollingEvent& event, std::vector<KvEvent>& out);

// The rolling hashes of every full block of `tokens`, which follow `parent`. Errors: kInvalidArgument when
// the block size is not in 1..65536.
Result<std::vector<std::uint64_t>> rolling_hashes(std::span<const tokens::Token> tokens,
                                                  std::uint32_t block_size,
                                                  std::uint64_t seed = tokens::Salt::kBaseSeed,
                                                  const std::optional<std::uint64_t>& parent = {});

}  // namespace ashlar::events
