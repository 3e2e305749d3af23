// StreamRelay: republishes the events of one feed on others, each worker as its own stream.
//
// It listens to a StreamReceiver, or takes the events of an EngineSession. Every (worker, rank) has an
// EventManager, so published streams are numbered without gaps, survive failing sinks, and start with a
// snapshot for late sinks. Names and hashes stay those of the producer.
//
// The number of streams and ranks is limited. Events beyond the limits, and of streams whose sinks could not
// be created, are counted and dropped; other streams continue. Batches that the relay published itself are
// dropped when they come back.
//
// Thread safety: thread-compatible; each sink is called by its own thread.
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
  // Why the sinks of a stream could not be created.
  struct SinkFailure {
    Error error;
    bool is_of_stream = false;  // of this stream only; otherwise the target itself cannot be used
  };
  // The sinks of a worker's stream.
  using Sinks = std::function<Result<std::vector<std::shared_ptr<events::BatchSink>>, SinkFailure>(
      const events::StreamId&, events::SnapshotSource&)>;
  struct Options {
    Sinks sinks;
    events::BatchProfile profile = {};
    events::StreamKeys keys = {};    // of streams whose source names no keys
    std::uint64_t incarnation = 1;   // of all published streams; must increase on every restart of the relay
    std::size_t max_workers = 1024;  // streams, including those without sinks
    std::uint32_t ranks = UINT32_MAX;  // ranks below it are relayed
    Clock* clock = nullptr;
  };
  // Events that were not relayed.
  struct LeftOut {
    std::uint64_t without_sinks = 0;  // of refused() streams
    std::uint64_t beyond_ranks = 0;
    std::uint64_t beyond_workers = 0;
    std::string last = {};  // describes the last of the latter two

    std::uint64_t all() const noexcept { return without_sinks + beyond_ranks + beyond_workers; }
  };
  explicit StreamRelay(Options options) : options_(std::move(options)) {}
  ~StreamRelay() override;

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;
  // Relays events of a worker from another source.
  void relay(const events::Worker& worker, std::span<const events::KvEvent> events);

  // Whether the relay publishes this stream itself. A receiver must not mistake such a stream for a later
  // incarnation of the relayed one (StreamReceiver::Options::is_own). Always false if relay and source have
  // the same incarnation.
  bool publishes(const events::StreamId& stream) const;

  // Waits until all events have gone out. Errors: kTimeout; that of status().
  Result<void> flush(Clock::TimePoint until);
  // Streams whose sinks could not be created, and why. Their events are not relayed.
  const std::map<events::Worker, Error>& refused() const noexcept { return refused_; }
  // The error of the first target that cannot be used at all. Streams refused for their own reasons are not
  // errors.
  Result<void> status() const { return status_; }
  std::uint64_t relayed() const noexcept { return relayed_; }
  const LeftOut& left_out() const noexcept { return left_out_; }
  // Own batches that came back.
  std::uint64_t returned() const noexcept { return returned_; }
  std::vector<events::EventCounters> counters() const;

 private:
  struct Out {
    std::unique_ptr<events::EventManager> manager;
    std::shared_ptr<events::EventLog> log;
    std::optional<std::uint64_t> incarnation;  // of the source stream when this one was opened
  };
  // Null: the events are dropped.
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
