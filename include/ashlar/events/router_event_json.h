// RouterEvent: what a router's event plane says of one worker, and its JSON.
//
//   {"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":3,
//    "data":{"stored":{"parent_hash":null,"start_position":0,
//     "blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}}
//
// data is {"stored":...}, {"removed":{"block_hashes":[...]}} or "cleared". block_hash is a name, tokens_hash
// a local hash; both are 64 bits, read unsigned or as the negative number of the same bits. Keys that are not
// known are skipped, mm_extra_info with them.
//
// Thread safety: plain values and free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/events/event_batch.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"

namespace ashlar::events {

struct RouterEvent {
  Worker worker = {};
  TierId tier = {};  // G1 to G4: device, host_pinned, disk, external
  std::string residency_domain = "worker";
  std::uint64_t event_id = 0;               // of the worker's rank, from 0, one per event
  KvEventKind kind = KvEventKind::kStored;  // or kRemoved, kCleared
  std::optional<BlockName> parent = {};
  std::optional<std::uint32_t> start_position = {};
  std::vector<StoredBlock> blocks = {};  // of kStored
  std::vector<BlockName> removed = {};   // of kRemoved

  friend bool operator==(const RouterEvent&, const RouterEvent&) = default;
};

// Appends the JSON of one event. Requires: a tier of G1 to G4, and one of the three kinds.
void append_router_event(const RouterEvent& event, std::string& out);

// Replaces `out` by the one event of `json`. Errors: kCorruption, with what and at which byte; kUnsupported:
// a storage tier that is not known.
Result<void> decode_router_event(std::string_view json, RouterEvent& out);

// Appends the events of a batch to `out`: each run of stored or removed blocks becomes one. kAccess, and
// groups of layers but the first, are left out. Event ids count on from `next_id`, which is left after the
// last one. Errors, which leave `out` and `next_id` as they were: kUnsupported: a tier beyond G4, a stored
// block without a local hash or with a parent whose own name is not in the batch, a clearing of one tier only
// (routers clear all), or kResync (send a snapshot).
Result<void> to_router_events(const EventBatch& batch, std::uint64_t& next_id, std::vector<RouterEvent>& out);

// Appends what the event says as records of ours. Block hashes are taken as chain hashes. What the wire does
// not carry is open: the parent of a run's first block has no parent fragment (compare its chain hash),
// removed blocks have position 0 (compare name()), and kCleared is of all tiers. Errors, which leave `out` as
// it was: kUnsupported: a parent without a position; kInvalidArgument: a position that does not agree with
// the parent, or is beyond SequenceHash::kMaxPosition.
Result<void> append_kv_events(const RouterEvent& event, std::vector<KvEvent>& out);

}  // namespace ashlar::events
