// StreamRelay: takes events of one feed and publishes them on others, each worker as a stream of its own.
//
// It is the listener of a StreamReceiver, or is given the events of an EngineSession. For every (worker,
// rank) it has an EventManager, so the streams it publishes are numbered without holes, survive sinks that
// fail, and begin with a snapshot for sinks that come late. Names stay those of the producer; hashes are
// those of whoever computed the events.
//
// The number of streams is limited, and so are their ranks. What is beyond the limits, and what belongs to a
// stream whose sinks could not be made, is counted and left out; the other streams go on. Batches that the
// relay published itself and that came back are dropped.
//
// Thread safety: thread-compatible; sinks are called by threads of their own.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/events/event_manager.h"
#include "ashlar/feed/stream_receiver.h"

namespace ashlar::feed {

class StreamRelay final : public StreamListener {
 public:
  // Why the sinks of a stream could not be made.
  struct SinkFailure {
    Error error;
    bool is_of_stream = false;  // others may do better; else the target itself cannot be used
  };
  // The sinks of a worker's stream.
  using Sinks = std::function<Result<std::vector<std::shared_ptr<events::BatchSink>>, SinkFailure>(
      const events::StreamId&, events::SnapshotSource&)>;
  struct Options {
    Sinks sinks;
    events::BatchProfile profile = {};
    events::StreamKeys keys =
        {};  // what the streams say of their names; those of the source, where it says something
    std::uint64_t incarnation =
        1;  // of all that is published; a relay that is started again takes a larger one
    std::size_t max_workers = 1024;    // streams, those without sinks included
    std::uint32_t ranks = UINT32_MAX;  // those below it are relayed
    Clock* clock = nullptr;
  };
  // Events that were not relayed.
  struct LeftOut {
    std::uint64_t without_sinks = 0;  // of refused() streams
    std::uint64_t beyond_ranks = 0;
    std::uint64_t beyond_workers = 0;
    std::string last = {};  // the last of the latter two, in words

    std::uint64_t all() const noexcept { return without_sinks + beyond_ranks + beyond_workers; }
  };
  explicit StreamRelay(Options options) : options_(std::move(options)) {}
  ~StreamRelay() override;

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;
  // Events of a worker, from elsewhere.
  void relay(const events::Worker& worker, std::span<const events::KvEvent> events);

  // Whether the relay publishes this stream itself. A receiver must not take such a stream for a later life
  // of the one that is relayed (StreamReceiver::Options::is_own). Always false where relay and source have
  // one incarnation.
  bool publishes(const events::StreamId& stream) const;

  // Waits until all events have gone out. Errors: kTimeout; that of status().
  Result<void> flush(Clock::TimePoint until);
  // Streams whose sinks could not be made, and why. Their events are not relayed; the other streams go on.
  const std::map<events::Worker, Error>& refused() const noexcept { return refused_; }
  // The error of the first target that cannot be used at all. Streams refused for reasons of their own are not errors.
  Result<void> status() const { return status_; }
  std::uint64_t relayed() const noexcept { return relayed_; }
  const LeftOut& left_out() const noexcept { return left_out_; }
  // Batches of publishes() that came back.
  std::uint64_t returned() const noexcept { return returned_; }
  std::vector<events::EventCounters> counters() const;

 private:
  struct Out {
    std::unique_ptr<events::EventManager> manager;
    std::shared_ptr<events::EventLog> log;
    std::optional<std::uint64_t> incarnation;  // of the stream that it came from, when it was opened
  };
  // Null: the events are left out.
  Out* out_of(const events::Worker& worker, const events::StreamKeys& keys, std::size_t events);
  Result<void, SinkFailure> open(Out& out, const events::StreamId& stream, const events::StreamKeys& keys);
  void append(Out& out, std::span<const events::KvEvent> events);
  static std::shared_ptr<events::EventLog> new_log();

  const Options options_;
  std::map<events::Worker, Out> outs_;
  std::map<events::Worker, Error> refused_;
  Result<void> status_;
  LeftOut left_out_;
  std::uint64_t relayed_ = 0;
  std::uint64_t returned_ = 0;
};

}  // namespace ashlar::feed
