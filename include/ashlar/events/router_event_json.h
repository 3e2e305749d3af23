// RouterEvent: an event about one worker on a router's event plane, and its JSON.
//
//   {"worker_id":7,"storage_tier":"device","residency_domain":"worker","event":{"event_id":3,
//    "data":{"stored":{"parent_hash":null,"start_position":0,
//     "blocks":[{"block_hash":1,"tokens_hash":2,"mm_extra_info":null}]}},"dp_rank":0}}
//
// data is {"stored":...}, {"removed":{"block_hashes":[...]}} or "cleared". block_hash is a name, tokens_hash
// a local hash; both are 64 bits, read unsigned or as the negative number of the same bits. Unknown keys are
// skipped, and so is mm_extra_info.
//
// Thread safety: plain values and free functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
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
  TierId tier = {};  // device, host_pinned, disk, external, remote
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

// Replaces `out` by the one event of `json`. Errors: kCorruption, with the fault and its byte; kUnsupported:
// an unknown storage tier.
Result<void> decode_router_event(std::string_view json, RouterEvent& out);

// Appends the events of a batch to `out`: each run of stored or removed blocks becomes one. kAccess, and all
// groups of layers but the first, are skipped. Event ids continue from `next_id`, which ends one past the
// last. Errors, which leave `out` and `next_id` unchanged: kUnsupported: a tier beyond G4, a stored block
// without a local hash or with a parent whose own name is not in the batch, a clearing of one tier only
// (routers clear all), or kResync (send a snapshot).
Result<void> to_router_events(const EventBatch& batch, std::uint64_t& next_id, std::vector<RouterEvent>& out);

// Appends the event as KvEvents. Block hashes are taken as chain hashes. The wire does not carry everything:
// the parent of a run's first block has no parent fragment (compare its chain hash), removed blocks have
// position 0 (compare name()), and kCleared covers all tiers. Errors, which leave `out` unchanged:
// kUnsupported: a parent without a position; kInvalidArgument: a position that does not agree with the
// parent, or is beyond SequenceHash::kMaxPosition.
Result<void> append_kv_events(const RouterEvent& event, std::vector<KvEvent>& out);

// RouterDumpWriter: the dump of an index as router events, in the form of a router's GET /dump:
//
//   {"model:group":{"block_size":16,"events":[…]}}
//
//   RouterDumpWriter writer("llama:default", 16);
//   index.dump(writer);
//   const std::string json = std::move(writer).finish().value();
//   read_router_dump(json, other);
//
// Thread safety: thread-compatible. Memory: the text, about 75 bytes per (worker, tier, block).
class RouterDumpWriter final : public IndexSink {
 public:
  explicit RouterDumpWriter(std::string_view key = "default:default", std::uint32_t block_size = 0);

  // Calls that have no form are remembered as the error of finish().
  StoreVerdict store(const BlocksStored& event) override;
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override;
  void clear(const Worker& worker) override;
  void remove_worker(WorkerId worker) override;

  // Errors: kUnsupported: a tier beyond those of routers, or a call that no dump has: remove_worker().
  [[nodiscard]] Result<std::string> finish() &&;

 private:
  void append(RouterEvent event);

  std::string out_;
  std::map<Worker, std::uint64_t> next_ids_;
  std::optional<Error> error_;
};

// Makes the calls of a dump on `into`; of one with several keys, those of `key`. The whole dump is checked
// first: an error leaves `into` unchanged. Requires: `into` holds nothing of the dump's workers. Errors:
// kCorruption: not a dump, truncated, a block that is stored twice or whose parent is missing; kUnsupported:
// an unknown storage tier; kNotFound: no such key, or several and none was named; kCapacity: `into` refused
// a store, at once or behind its queue (read_dump()): the workers of the dump are cleared.
Result<DumpCounts> read_router_dump(std::string_view json, IndexSink& into, std::string_view key = {});

}  // namespace ashlar::events
