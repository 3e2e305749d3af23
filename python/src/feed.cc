// Feeds into an Index. EngineFeed: the event messages of an inference engine (vLLM, SGLang; msgpack).
// EventFeed: the batches of an EventStream.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "errors.h"
#include "events.h"
#include "gil.h"
#include "index.h"
#include "module.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace ashlar::python {
namespace {

// The message that apply() brought; nothing is kept to be asked for again.
class PushedMessages final : public feed::EngineSource {
 public:
  void push(feed::EngineMessage message) { message_ = std::move(message); }

  Result<std::optional<feed::EngineMessage>> receive(Clock::Duration) override {
    return std::exchange(message_, std::nullopt);
  }
  Result<feed::EngineReplay> replay(std::uint64_t) override {
    return Error(ErrorCode::kUnsupported, "messages that were handed over are not kept");
  }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "messages from Python"; }

 private:
  std::optional<feed::EngineMessage> message_;
};

// The lock is taken without the GIL, and nothing under it needs the GIL.
class EngineFeed {
 public:
  EngineFeed(const IndexRef& index, std::uint64_t worker, std::uint32_t block_size, bool full_reports)
      : index_(index.index) {
    options_.ingest.worker = events::WorkerId(worker);
    options_.ingest.block_size = block_size;
    options_.ingest.full_reports = full_reports;
    value_or_raise(begin());
  }

  void resync() {
    if (is_of_parent(index_)) raise_of_parent();
    value_or_raise(without_gil([&]() -> Result<void> {
      const std::lock_guard lock(mutex_);
      ASHLAR_RETURN_IF_ERROR(begin());
      index_->remove_worker(options_.ingest.worker);
      return {};
    }));
  }

  std::size_t apply(nb::bytes payload, std::optional<std::uint64_t> sequence) {
    if (is_of_parent(index_)) raise_of_parent();
    feed::EngineMessage message;
    message.payload.resize(payload.size());
    if (payload.size() != 0) std::memcpy(message.payload.data(), payload.c_str(), payload.size());
    Result<std::size_t> applied = std::size_t{0};
    bool undecodable = false;
    {
      const WithoutGil released;
      const std::lock_guard lock(mutex_);
      const std::uint64_t undecodable_before = session_->counters().undecodable;
      message.sequence = sequence.value_or(session_->next().value_or(0));
      source_->push(std::move(message));
      changes_.clear();
      applied = session_->step(Clock::Duration::zero(), changes_);
      feeder_->apply(changes_);
      undecodable = session_->counters().undecodable != undecodable_before;
    }
    if (undecodable) {
      raise(Error(ErrorCode::kCorruption,
                  "the message is no event batch of an engine; it counts as lost, and what was known of the "
                  "worker is dropped"));
    }
    return value_or_raise(std::move(applied));
  }

  nb::dict counters() {
    feed::EngineIngestCounters seen;
    feed::EngineSessionCounters messages;
    std::string refusal;
    std::size_t present = 0;
    std::uint32_t block_size = 0;
    {
      const WithoutGil released;
      const std::lock_guard lock(mutex_);
      seen = session_->ingest().counters();
      messages = session_->counters();
      refusal = session_->ingest().last_refusal();
      present = session_->ingest().present();
      block_size = session_->ingest().block_size();
    }
    nb::dict out;
    out["received"] = messages.received;
    out["applied"] = messages.applied;
    out["duplicates"] = messages.duplicates;
    out["lost"] = messages.lost;
    out["gaps"] = messages.gaps;
    out["undecodable"] = messages.undecodable;
    out["resyncs"] = messages.resyncs;
    out["restarts"] = messages.restarts;
    out["events"] = seen.events;
    out["stored"] = seen.stored;
    out["removed"] = seen.removed;
    out["repeated"] = seen.repeated;
    out["unknown_removals"] = seen.unknown_removals;
    out["clears"] = seen.clears;
    out["collisions"] = seen.collisions;
    out["present"] = present;
    out["block_size"] = block_size;
    out["last_refusal"] = refusal;
    return out;
  }

 private:
  Result<void> begin() {
    auto source = std::make_unique<PushedMessages>();
    PushedMessages* const pushed = source.get();
    ASHLAR_TRY(auto session, feed::EngineSession::create(std::move(source), options_));
    session_.emplace(std::move(session));
    source_ = pushed;
    feeder_.emplace(*index_, options_.ingest.worker);
    return {};
  }

  const std::shared_ptr<index::AnyIndex> index_;
  feed::EngineSessionOptions options_;
  std::mutex mutex_;
  std::optional<feed::IndexFeeder> feeder_;
  std::optional<feed::EngineSession> session_;
  PushedMessages* source_ = nullptr;  // of session_
  feed::IndexChanges changes_;
};

// The lock is taken without the GIL, and nothing under it needs the GIL.
class EventFeed {
 public:
  EventFeed(const IndexRef& index, std::uint64_t worker)
      : index_(index.index), feeder_(*index_, events::WorkerId(worker)) {}

  void apply(const EventBatchObject& batch) {
    if (is_of_parent(index_)) raise_of_parent();
    const WithoutGil released;
    const std::lock_guard lock(mutex_);
    const events::EventBatch& head = batch.owned.head;
    const std::uint32_t rank = head.stream.worker.rank;
    if (head.kind == events::BatchKind::kSnapshot && head.part == 0) {
      events::KvEvent anew;
      anew.kind = events::KvEventKind::kResync;
      feeder_.apply(rank, std::span(&anew, 1));
    }
    feeder_.apply(rank, batch.owned.events);
  }

  nb::dict counters() {
    feed::IndexFeederCounters seen;
    {
      const WithoutGil released;
      const std::lock_guard lock(mutex_);
      seen = feeder_.counters();
    }
    nb::dict out;
    out["events"] = seen.events;
    out["stored_blocks"] = seen.stored_blocks;
    out["removed_blocks"] = seen.removed_blocks;
    out["clears"] = seen.clears;
    out["without_local"] = seen.without_local;
    out["refused"] = seen.refused();
    return out;
  }

 private:
  const std::shared_ptr<index::AnyIndex> index_;
  std::mutex mutex_;
  feed::IndexFeeder feeder_;
};

}  // namespace

void bind_feed(nb::module_& module) {
  nb::class_<EngineFeed>(
      module, "EngineFeed",
      "Applies the event messages of one inference engine to an Index.\n\n"
      "A message is the msgpack payload that vLLM or SGLang publishes. Copies, late parents\n"
      "and repeated reports are resolved, so that the index holds exactly what the engine\n"
      "holds. It must be the only writer of its worker, and keeps the index alive.")
      .def(nb::init<const IndexRef&, std::uint64_t, std::uint32_t, bool>(), "index"_a, "worker"_a,
           nb::kw_only(), "block_size"_a = 0, "full_reports"_a = true,
           "block_size: tokens; 0: taken from the first message. full_reports: the engine may announce the "
           "blocks of a cache hit again.")
      .def("apply", &EngineFeed::apply, "payload"_a, "sequence"_a = nb::none(),
           "Applies one message; returns how many were applied: 0 for a repeated one. sequence: the engine's "
           "number of the message. After a gap in these numbers everything known of the worker is dropped, "
           "because a missing message may have removed blocks. Without numbers messages count as complete.")
      .def("resync", &EngineFeed::resync,
           "Messages were lost, or the engine was restarted: drops everything known of the worker and starts "
           "anew, its counters too.")
      .def("counters", &EngineFeed::counters, nb::sig("def counters(self) -> dict[str, typing.Any]"),
           "Messages, events and blocks so far, and why events were skipped.");
  nb::class_<EventFeed>(
      module, "EventFeed",
      "Applies the batches of an EventStream to an Index.\n\n"
      "`EventStream(kv, EventFeed(index, worker).apply)` keeps what the index knows of the worker equal to "
      "what `kv` holds. An index needs the hashes of blocks' own tokens: blocks that were staged by their "
      "names alone are left out (`without_local`). It must be the only writer of its worker, and keeps the "
      "index alive.")
      .def(nb::init<const IndexRef&, std::uint64_t>(), "index"_a, "worker"_a,
           "worker: whose blocks these are in the index, whatever the stream says; the rank is the stream's.")
      .def("apply", &EventFeed::apply, "batch"_a,
           "Applies one batch, in the order of the stream. A snapshot replaces what was known of its rank, "
           "and a resync of drain_events() drops it: only a stream makes that good.")
      .def("counters", &EventFeed::counters, nb::sig("def counters(self) -> dict[str, int]"),
           "Events and blocks so far; `refused`: runs of blocks that the index did not take.");
}

}  // namespace ashlar::python
