// Snapshot: what a fleet held when it was dumped (GET /dump), by the names of its workers.
//
// A router that starts from one expects these blocks at workers of the same name until their own events say
// otherwise. Expectations steer and are not claimed. Beside them it has the state of each rank after a
// message of its engine; events after that message make it complete (EngineFollower::offer()).
//
// Thread safety: plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"
#include "service/route/engine_follower.h"

namespace ashlar::service {

struct HeldPrefix {
  std::uint32_t rank = 0;
  std::vector<tokens::LocalHash> locals;  // from the start of a sequence
};

using SavedRanks = std::map<std::uint32_t, SavedEngine>;  // by rank

struct Snapshot {
  std::map<std::string, std::vector<HeldPrefix>> workers;  // by name
  std::map<std::string, SavedRanks> saved;                 // by name: every worker that is in it
};

// Errors: kCorruption: not a dump of a router, or one that does not name its workers.
Result<Snapshot> read_snapshot(std::string_view json);

// The member of a group's object in a dump that names its workers: `,"workers":{"1":"gpu1"}`.
std::string worker_names_json(const std::map<std::uint64_t, std::string>& names);
// And the one with their states: `,"states":{"1":{"0":{"message":7,"digest":"…","state":"…"}}}`, or for a
// rank that has none `{"missing":"why"}`. The state is base64.
std::string states_json(const std::map<std::uint64_t, SavedRanks>& states);

}  // namespace ashlar::service
