// ZmqSource: batches of Ashlar's own format from one or more publishers (zmq_batch_sink.h).
//
// For each stream it remembers which messages of which publisher carried the last batches, so recover()
// requests no more than it needs; if the replay socket no longer keeps them, it requests a snapshot.
//
// A publisher that sends nothing for SubscriberOptions::silence is asked for its last messages, which
// recovers lost ones. One that does not answer is reported as silent by stats() and a warning.
//
// Thread safety: thread-compatible; damaged() and stats() are thread-safe.
// Complexity:    O(events) per batch.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "ashlar/backend/zmq/subscriber_options.h"
#include "ashlar/feed/feed_source.h"

namespace ashlar::backend::zmq {

class ZmqSource final : public feed::FeedSource {
 public:
  struct Options {
    std::vector<SubscriberOptions> publishers = {};
    std::size_t batches_per_poll = 256;
    std::size_t remembered = 1024;  // batches of a stream

    Result<void> validate() const;
  };

  // Errors: as ZmqEngineSource::create().
  static Result<std::unique_ptr<ZmqSource>> create(Options options);
  ~ZmqSource() override;

  // Errors: kUnavailable: no publisher is connected and answers, and nothing came.
  Result<std::size_t> poll(feed::BatchConsumer& consumer, Clock::Duration timeout) override;
  Result<bool> recover(const events::StreamId& stream, std::uint64_t from,
                       feed::BatchConsumer& consumer) override;
  std::uint64_t damaged() const noexcept override;
  std::string describe() const override;
  // Of one publisher, by its index in the options.
  SubscriberStats stats(std::size_t publisher) const;

 private:
  class State;
  explicit ZmqSource(std::unique_ptr<State> state) noexcept;
  std::unique_ptr<State> state_;
};

}  // namespace ashlar::backend::zmq
