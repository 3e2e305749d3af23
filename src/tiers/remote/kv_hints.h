// KvHint: an action of an envelope of KV hints, as routers send it:
//
//   {"protocol_version": "1.0", "message_id": "m-1", "actions": [{"action_id": "a-1",
//    "action_type": "kv.fetch", "action_version": "1.0", "payload": {"source_control_endpoint":
//    "10.0.0.1:7000", "block_hashes": [12345, …], "mode": "copy"}}]}
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tiers/remote.h"

namespace ashlar::tiers {

struct KvHint {
  static constexpr std::size_t kMaxActions = 1024;
  static constexpr std::size_t kMaxHashes = 65536;

  std::string message_id;  // of the envelope
  std::string action_id;
  std::string action_type;
  std::string version;
  std::string source;
  std::string mode;
  std::vector<std::uint64_t> block_hashes;
  std::string refusal;  // why it cannot be executed; empty: it can
};

// The actions, in order. Errors: kInvalidArgument: not an envelope, with the place; kUnsupported: its
// version.
Result<std::vector<KvHint>> parse_hints(std::string_view envelope);

std::string outcomes_to_json(std::span<const HintOutcome> outcomes);

}  // namespace ashlar::tiers
