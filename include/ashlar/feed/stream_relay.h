// StreamRelay: takes events of one feed and publishes them on others, each worker as a stream of its own.
//
// It is the listener of a StreamReceiver, or is given the events of an EngineSession. For every (worker, rank) it has an
// EventManager, so the streams it publishes are numbered without holes, survive sinks that fail, and begin with a snapshot for
// sinks that come late. Names stay those of the producer; hashes are those of whoever computed the events.
//
// Thread safety: thread-compatible; sinks are called by threads of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/events/event_manager.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::feed {

class StreamRelay final : public StreamListener {
 public:
  // The sinks of a worker's stream.
  using Sinks = std::function<Result<std::vector<std::shared_ptr<events::BatchSink>>>(
      const events::StreamId&, events::SnapshotSource&)>;
  struct Options {
    Sinks sinks;
    events::BatchProfile profile = {};
    events::StreamKeys keys =
        {};  // what the streams say of their names; those of the source, where it says something
    std::uint64_t incarnation =
        1;  // of all that is published; a relay that is started again takes a larger one
    Clock* clock = nullptr;
  };
  explicit StreamRelay(Options options) : options_(std::move(options)) {}
  ~StreamRelay() override;

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;
  // Events of a worker, from elsewhere.
  void relay(const events::Worker& worker, std::span<const events::KvEvent> events);

  // Waits until everything has gone out. Errors: kTimeout; and error().
  Result<void> flush(Clock::TimePoint until);
  // Streams whose sinks could not be made, and why. Their events are not relayed; the other streams go on.
  const std::map<events::Worker, Error>& refused() const noexcept { return refused_; }
  // The error of the first refused stream, where no stream could be opened.
  std::optional<Error> error() const;
  std::uint64_t relayed() const noexcept { return relayed_; }
  std::vector<events::EventCounters> counters() const;

 private:
  struct Out {
    std::unique_ptr<events::EventManager> manager;
    std::shared_ptr<events::EventLog> log;
  };
  // Null: the stream is refused.
  Out* out_of(const events::Worker& worker, const events::StreamKeys& keys);
  Result<void> open(Out& out, const events::StreamId& stream, const events::StreamKeys& keys);
  void append(Out& out, std::span<const events::KvEvent> events);
  static std::shared_ptr<events::EventLog> new_log();

  const Options options_;
  std::map<events::Worker, Out> outs_;
  std::map<events::Worker, Error> refused_;
  std::uint64_t relayed_ = 0;
};

}  // namespace ashlar::feed
