// A checkpoint in a journal: the state of the router at the start of a file, so that a replay can begin
// there.
//
// It is a run of records after the head of a file: the state, then per group its expectations and the blocks
// that workers hold, then an end. Hashes and sessions pass through the cipher, as in other records.
//
// Thread safety: functions, and a value.
// Complexity:    O(what the router knows); a record has about a MiB.
#pragma once

#include <functional>
#include <span>

#include "base/byte_io.h"
#include "service/journal/journal_codec.h"
#include "service/route/route_core.h"

namespace ashlar::service {

// Tells the records of a checkpoint, in their order.
using RecordHearer = std::function<void(JournalRecord type, ByteWriter payload)>;
void write_checkpoint(const RouteCore& core, const JournalCipher& cipher, const RecordHearer& record);

constexpr bool is_of_checkpoint(JournalRecord type) noexcept {
  return type >= JournalRecord::kState && type <= JournalRecord::kStateEnd;
}
// Takes one of them into a core that has heard nothing else. False: it cannot be read, or is out of place.
// `hear` is told of every worker; it may be empty.
using SpecHearer = std::function<void(const WorkerSpec& spec)>;
bool read_checkpoint(JournalRecord type, std::uint32_t version, std::span<const std::byte> payload,
                     RouteCore& core, const SpecHearer& hear = {});

}  // namespace ashlar::service
