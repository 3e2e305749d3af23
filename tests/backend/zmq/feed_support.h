// Streams of events, and listeners that add them up, for tests of feeds over ZeroMQ.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "ashlar/backend/zmq/zmq_batch_sink.h"
#include "ashlar/backend/zmq/zmq_source.h"
#include "ashlar/feed/stream_receiver.h"
#include "backend/zmq/raw_socket.h"

namespace ashlar::backend::zmq {

// What a stream holds: (hash, tier).
using Holdings = std::set<std::pair<tokens::SequenceHash, std::uint8_t>>;

inline void add_up(Holdings& holdings, const events::KvEvent& event) {
  if (event.kind == events::KvEventKind::kStored) holdings.emplace(event.hash, event.tier.value());
  if (event.kind == events::KvEventKind::kRemoved) holdings.erase({event.hash, event.tier.value()});
}

// One worker that stores chains of 8 blocks, and removes most of them again, the last block first.
class TestStream final : public events::SnapshotSource {
 public:
  explicit TestStream(std::uint64_t worker, std::uint64_t incarnation = 1) {
    stream_.worker.id = events::WorkerId(worker);
    stream_.incarnation = incarnation;
  }
  // The next `count` events, as a batch that is valid until the next call.
  events::EventBatch next(std::size_t count) {
    events_.clear();
    for (std::size_t i = 0; i < count; ++i) events_.push_back(next_event());
    events::EventBatch batch;
    batch.stream = stream_;
    batch.keys.block_size = 32;
    batch.first = number_ - count;
    batch.events = events_;
    return batch;
  }
  events::OwnedBatch snapshot() override {
    ++snapshots;
    events::OwnedBatch out;
    out.head.stream = stream_;
    out.head.keys.block_size = 32;
    out.head.kind = events::BatchKind::kSnapshot;
    out.head.first = number_;
    for (const auto& [hash, tier] : holdings_) {
      events::KvEvent event;
      event.hash = hash;
      event.tier = events::TierId(tier);
      out.events.push_back(event);
    }
    return out;
  }
  const events::StreamId& id() const noexcept { return stream_; }
  const Holdings& holdings() const noexcept { return holdings_; }
  std::uint64_t number() const noexcept { return number_; }
  std::atomic<int> snapshots{0};

 private:
  events::KvEvent next_event() {
    const std::uint64_t step = number_ % 16;
    if (step == 0) chain_.clear();
    events::KvEvent event;
    event.sequence = number_++;
    if (step < 8) {
      const std::uint64_t name = stream_.worker.id.value() << 48 | stream_.incarnation << 40 | number_;
      if (!chain_.empty()) {
        event.has_parent = true;
        event.parent_bits = chain_.back();
      }
      event.hash = chain_.empty() ? tokens::SequenceHash::root(name) : chain_.back().child(name).value();
      chain_.push_back(event.hash);
    } else if (step < 15) {  // one of the eight stays
      event.kind = events::KvEventKind::kRemoved;
      event.hash = chain_.back();
      chain_.pop_back();
    } else {
      event.hash = chain_.front();
      event.tier = events::kTierId<events::G2>;
    }
    add_up(holdings_, event);
    return event;
  }

  events::StreamId stream_;
  std::uint64_t number_ = 0;
  std::vector<tokens::SequenceHash> chain_;
  std::vector<events::KvEvent> events_;
  Holdings holdings_;
};

// What receivers were told, by worker.
class TestListener final : public feed::StreamListener {
 public:
  void on_reset(const events::StreamId& stream) override {
    holdings[stream.worker].clear();
    ++resets;
  }
  void on_events(const events::EventBatch& batch) override {
    for (const events::KvEvent& event : batch.events) add_up(holdings[batch.stream.worker], event);
    next[batch.stream.worker] = batch.end();
  }
  std::map<events::Worker, Holdings> holdings;
  std::map<events::Worker, std::uint64_t> next;
  int resets = 0;
};

// Keeps what comes.
class TestConsumer final : public feed::BatchConsumer {
 public:
  void on_batch(const events::EventBatch& batch) override {
    batches.push_back(events::OwnedBatch::of(batch));
  }
  std::vector<events::OwnedBatch> batches;
};

inline std::unique_ptr<ZmqBatchSink> make_sink(EnginePublisherOptions publisher,
                                               std::size_t snapshot_part = 8192) {
  auto made =
      ZmqBatchSink::create({.publisher = patient(std::move(publisher)), .snapshot_part = snapshot_part});
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}
inline SubscriberOptions to_hear(ZmqBatchSink& sink) {
  return {.endpoint = sink.publisher().endpoint(),
          .replay_endpoint = sink.publisher().replay_endpoint(),
          .reconnect = std::chrono::milliseconds(10),
          .reconnect_max = std::chrono::milliseconds(20),
          .replay_timeout = std::chrono::seconds(100),  // a busy machine answers late
          .replay_deadline = std::chrono::seconds(100)};
}
inline std::unique_ptr<ZmqSource> make_source(std::vector<SubscriberOptions> publishers) {
  auto made = ZmqSource::create({.publishers = std::move(publishers)});
  EXPECT_TRUE(made.has_value()) << made.error();
  return std::move(*made);
}
inline void send(ZmqBatchSink& sink, const events::EventBatch& batch) {
  const Result<void> sent = sink.publish(batch);
  EXPECT_TRUE(sent.has_value()) << sent.error();
}

}  // namespace ashlar::backend::zmq
