// EngineFeed: the event messages of an inference engine (vLLM, SGLang; msgpack) into an Index.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "errors.h"
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
      : index_(index.index), feeder_(*index_, events::WorkerId(worker)) {
    feed::EngineSessionOptions options;
    options.ingest.worker = events::WorkerId(worker);
    options.ingest.block_size = block_size;
    options.ingest.full_reports = full_reports;
    auto source = std::make_unique<PushedMessages>();
    source_ = source.get();
    session_.emplace(value_or_raise(feed::EngineSession::create(std::move(source), options)));
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
      feeder_.apply(changes_);
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
  const std::shared_ptr<index::AnyIndex> index_;
  std::mutex mutex_;
  feed::IndexFeeder feeder_;
  std::optional<feed::EngineSession> session_;
  PushedMessages* source_ = nullptr;  // of session_
  std::vector<events::KvEvent> changes_;
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
      .def("counters", &EngineFeed::counters,
           "Messages, events and blocks so far, and why events were skipped.");
}

}  // namespace ashlar::python
