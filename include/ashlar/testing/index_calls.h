// IndexCall: one call of events::IndexSink, kept with its data. RecordedCalls records all calls to a sink, in
// order, and replays them into another sink or index.
//
//   RecordedCalls calls;
//   index.dump(calls);             // what an index holds, as calls
//   calls.replay(other);           // the same content in another structure
//
// Thread safety: thread-compatible. Calls own their data and may be kept.
// Complexity:    a recorded call copies its event; memory grows until forget().
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/events/index_sink.h"

namespace ashlar::testing {

// BlocksStored with blocks of its own.
struct StoreCall {
  events::Worker worker;
  events::StorageTier tier = events::StorageTier::kDevice;
  std::optional<events::BlockName> parent;
  std::optional<std::uint32_t> start_position;
  std::vector<events::StoredBlock> blocks;

  // Refers to this call's blocks.
  events::BlocksStored event() const noexcept { return {worker, tier, parent, start_position, blocks}; }
  friend bool operator==(const StoreCall&, const StoreCall&) = default;
};

// Names that a worker no longer holds in a tier.
struct RemoveCall {
  events::Worker worker;
  events::StorageTier tier = events::StorageTier::kDevice;
  std::vector<events::BlockName> names;

  friend bool operator==(const RemoveCall&, const RemoveCall&) = default;
};

// A worker's rank holds nothing any more.
struct ClearCall {
  events::Worker worker;

  friend bool operator==(const ClearCall&, const ClearCall&) = default;
};

// A worker is gone, with all its ranks.
struct RemoveWorkerCall {
  events::WorkerId worker;

  friend bool operator==(const RemoveWorkerCall&, const RemoveWorkerCall&) = default;
};

using IndexCall = std::variant<StoreCall, RemoveCall, ClearCall, RemoveWorkerCall>;

// One line, for the report of a failed test.
std::string to_string(const IndexCall& call);

// An index's answer to a call.
struct CallAnswer {
  std::optional<events::StoreVerdict> verdict;  // of a store
  std::size_t removed = 0;                      // of a remove

  friend bool operator==(const CallAnswer&, const CallAnswer&) = default;
};

std::string to_string(const CallAnswer& answer);

// Makes the call. Index is an IndexSink or any Indexer.
template <class Index>
CallAnswer apply(const IndexCall& call, Index& index) {
  CallAnswer answer;
  if (const auto* store = std::get_if<StoreCall>(&call)) {
    answer.verdict = index.store(store->event());
  } else if (const auto* remove = std::get_if<RemoveCall>(&call)) {
    answer.removed = index.remove(remove->worker, remove->tier, remove->names);
  } else if (const auto* clear = std::get_if<ClearCall>(&call)) {
    index.clear(clear->worker);
  } else {
    index.remove_worker(std::get<RemoveWorkerCall>(call).worker);
  }
  return answer;
}

// Invariant: calls() has the calls in the order in which they were made.
class RecordedCalls final : public events::IndexSink {
 public:
  RecordedCalls() = default;
  explicit RecordedCalls(std::vector<IndexCall> calls) : calls_(std::move(calls)) {}

  // Reports every store as applied and every name as removed.
  events::StoreVerdict store(const events::BlocksStored& event) override {
    calls_.emplace_back(StoreCall{event.worker,
                                  event.tier,
                                  event.parent,
                                  event.start_position,
                                  {event.blocks.begin(), event.blocks.end()}});
    return event.blocks.empty() ? events::StoreVerdict::kEmpty : events::StoreVerdict::kApplied;
  }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override {
    calls_.emplace_back(RemoveCall{worker, tier, {names.begin(), names.end()}});
    return names.size();
  }
  void clear(const events::Worker& worker) override { calls_.emplace_back(ClearCall{worker}); }
  void remove_worker(events::WorkerId worker) override { calls_.emplace_back(RemoveWorkerCall{worker}); }

  void add(IndexCall call) { calls_.push_back(std::move(call)); }
  const std::vector<IndexCall>& calls() const noexcept { return calls_; }
  void forget() noexcept { calls_.clear(); }

  // Makes all calls in order. Returns the answers, one per call.
  template <class Index>
  std::vector<CallAnswer> replay(Index& index) const {
    std::vector<CallAnswer> answers;
    answers.reserve(calls_.size());
    for (const IndexCall& call : calls_) answers.push_back(apply(call, index));
    return answers;
  }

 private:
  std::vector<IndexCall> calls_;
};

}  // namespace ashlar::testing
