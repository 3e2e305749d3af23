// Snapshot: what a fleet held when it was dumped (GET /dump), by the names of its workers.
//
// A router that starts from one expects these blocks at workers of the same name until their own events say
// otherwise. Expectations steer and are not claimed.
//
// Thread safety: plain values.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

struct HeldPrefix {
  std::uint32_t rank = 0;
  std::vector<tokens::LocalHash> locals;  // from the start of a sequence
};

struct Snapshot {
  std::map<std::string, std::vector<HeldPrefix>> workers;  // by name
};

// Errors: kCorruption: not a dump of a router, or one that does not name its workers.
Result<Snapshot> read_snapshot(std::string_view json);

// The member of a group's object in a dump that names its workers: `,"workers":{"1":"gpu1"}`.
std::string worker_names_json(const std::map<std::uint64_t, std::string>& names);

}  // namespace ashlar::service
