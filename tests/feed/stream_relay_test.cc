// StreamRelay: streams that are refused leave the others alone, limits are counted, and nothing goes in
// circles.
#include "ashlar/feed/stream_relay.h"

#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/mutex.h"
#include "events/event_samples.h"
#include "feed/stream_listeners.h"

namespace ashlar::feed {
namespace {

using events::EventBatch;
using events::OwnedBatch;
using events::Worker;
using events::WorkerId;
using Sinks = std::vector<std::shared_ptr<events::BatchSink>>;

class StreamRelayTest : public ::testing::Test {
 protected:
  class Sink final : public events::BatchSink {
   public:
    Result<void> publish(const EventBatch& batch) override {
      const MutexLock lock(mu_);
      batches_.push_back(OwnedBatch::of(batch));
      return {};
    }
    std::string describe() const override { return "a test"; }
    std::vector<OwnedBatch> batches() const {
      const MutexLock lock(mu_);
      return batches_;
    }

   private:
    mutable Mutex mu_;
    std::vector<OwnedBatch> batches_ ASHLAR_GUARDED_BY(mu_);
  };

  StreamRelay::Options options() {
    StreamRelay::Options made;
    made.incarnation = 100;
    made.sinks = [this](const events::StreamId& stream,
                        events::SnapshotSource&) -> Result<Sinks, StreamRelay::SinkFailure> {
      ++opened_;
      if (stream.worker.rank == refused_rank_)
        return StreamRelay::SinkFailure{make_error(ErrorCode::kUnavailable, "the port is taken"),
                                        is_of_stream_};
      return Sinks{sink_};
    };
    return made;
  }
  static OwnedBatch stored(std::uint64_t worker, std::uint32_t rank, std::uint64_t incarnation,
                           std::uint64_t number) {
    OwnedBatch batch;
    batch.head.stream = {{WorkerId(worker), rank}, incarnation};
    batch.head.first = number;
    batch.events = events::chain(worker * 1000 + number, 1);
    return batch;
  }
  static Result<void> flush(StreamRelay& relay) {
    return relay.flush(Clock::real().now() + std::chrono::seconds(60));
  }

  const std::shared_ptr<Sink> sink_ = std::make_shared<Sink>();
  std::uint32_t refused_rank_ = 1;
  bool is_of_stream_ = true;
  std::size_t opened_ = 0;
};

// In either order.
TEST_F(StreamRelayTest, AStreamWithoutSinksLeavesTheOthersAlone) {
  for (const std::uint32_t first : {0, 1}) {
    StreamRelay relay(options());
    relay.on_events(stored(7, first, 1, 0).view());
    EXPECT_TRUE(relay.status());
    relay.on_events(stored(7, 1 - first, 1, 0).view());
    EXPECT_TRUE(relay.status());
    EXPECT_TRUE(flush(relay));
    EXPECT_EQ(relay.relayed(), 1u);
    ASSERT_EQ(relay.refused().size(), 1u);
    EXPECT_EQ(relay.refused().begin()->first, (Worker{WorkerId(7), 1}));
    EXPECT_EQ(relay.refused().begin()->second.message(), "the port is taken");
    EXPECT_EQ(relay.left_out().without_sinks, 1u);
  }
}

TEST_F(StreamRelayTest, ATargetThatCannotBeUsedIsAnError) {
  is_of_stream_ = false;
  for (const std::uint32_t first : {0, 1}) {
    StreamRelay relay(options());
    relay.on_events(stored(7, first, 1, 0).view());
    relay.on_events(stored(7, 1 - first, 1, 0).view());
    ASSERT_FALSE(relay.status());
    EXPECT_EQ(relay.status().error().message(), "the port is taken");
    EXPECT_EQ(flush(relay).error().code(), ErrorCode::kUnavailable);
  }
}

TEST_F(StreamRelayTest, RanksBeyondTheLimitAreCountedAndOpenNothing) {
  StreamRelay::Options limited = options();
  limited.ranks = 1;
  StreamRelay relay(std::move(limited));
  for (std::uint32_t rank = 0; rank < 5000; ++rank) relay.on_events(stored(7, rank, 1, 0).view());
  EXPECT_EQ(relay.relayed(), 1u);
  EXPECT_EQ(opened_, 1u);
  EXPECT_TRUE(relay.refused().empty());
  EXPECT_EQ(relay.left_out().beyond_ranks, 4999u);
  EXPECT_NE(relay.left_out().last.find("rank 4999 of worker 7"), std::string::npos) << relay.left_out().last;
  EXPECT_TRUE(relay.status());
}

TEST_F(StreamRelayTest, WorkersBeyondTheLimitAreCountedAndOpenNothing) {
  refused_rank_ = 0;
  StreamRelay::Options limited = options();
  limited.max_workers = 3;
  StreamRelay relay(std::move(limited));
  for (std::uint64_t worker = 0; worker < 5000; ++worker)
    relay.on_events(stored(worker, worker == 1 ? 1 : 0, 1, 0).view());
  relay.on_events(stored(1, 1, 1, 1).view());
  EXPECT_EQ(opened_, 3u);
  EXPECT_EQ(relay.refused().size(), 2u) << "they count, too";
  EXPECT_EQ(relay.relayed(), 2u);
  EXPECT_EQ(relay.left_out().without_sinks, 2u);
  EXPECT_EQ(relay.left_out().beyond_workers, 4997u);
  EXPECT_NE(relay.left_out().last.find("worker 4999 rank 0"), std::string::npos) << relay.left_out().last;
}

class NoFeed final : public FeedSource {
 public:
  Result<std::size_t> poll(BatchConsumer&, Clock::Duration) override { return std::size_t{0}; }
  Result<bool> recover(const events::StreamId&, std::uint64_t, BatchConsumer&) override { return false; }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "nothing"; }
};

// All that the relay publishes is read by it again.
TEST_F(StreamRelayTest, NamesOfParentsAreNotRelayed) {
  StreamRelay relay(options());
  std::vector<events::KvEvent> named = events::chain(1, 3);
  for (events::KvEvent& event : named) {
    event.block = event.bytes = 0;
    event.set_parent_name(event.has_parent ? std::optional(events::BlockName(event.parent_bits.chain()))
                                           : std::nullopt);
  }
  relay.relay({WorkerId(3), 0}, named);
  ASSERT_TRUE(flush(relay));
  std::size_t relayed = 0;
  for (const OwnedBatch& batch : sink_->batches())
    for (const events::KvEvent& event : batch.events) {
      EXPECT_FALSE(event.has_parent_name);
      EXPECT_EQ(event.block, 0u);
      EXPECT_EQ(event.bytes, 0u);
      ++relayed;
    }
  EXPECT_EQ(relayed, 3u);
}

TEST_F(StreamRelayTest, WhatComesBackIsDroppedAndTheSourceIsStillHeard) {
  StreamRelay relay(options());
  NoFeed feed;
  StreamReceiver receiver(
      feed, relay, {.is_own = [&](const events::StreamId& stream) { return relay.publishes(stream); }});
  std::size_t back = 0;
  for (std::uint64_t number = 0; number < 10; ++number) {
    receiver.on_batch(stored(7, 0, 1, number).view());
    ASSERT_TRUE(flush(relay));
    for (const std::vector<OwnedBatch> sent = sink_->batches(); back < sent.size(); ++back)
      receiver.on_batch(sent[back].view());
  }
  EXPECT_EQ(back, 10u);
  EXPECT_EQ(relay.relayed(), 10u);
  EXPECT_EQ(receiver.counters().own, 10u);
  EXPECT_EQ(receiver.counters().stale, 0u);
  EXPECT_EQ(receiver.counters().restarts, 0u);
}

TEST_F(StreamRelayTest, WhatComesBackIsNotRelayedByARelayAloneEither) {
  StreamRelay relay(options());
  relay.on_events(stored(7, 0, 1, 0).view());
  EXPECT_TRUE(relay.publishes({{WorkerId(7), 0}, 100}));
  EXPECT_FALSE(relay.publishes({{WorkerId(7), 0}, 1}));
  EXPECT_FALSE(relay.publishes({{WorkerId(8), 0}, 100}));
  relay.on_reset({{WorkerId(7), 0}, 100});
  relay.on_events(stored(7, 0, 100, 0).view());
  EXPECT_EQ(relay.returned(), 1u);
  EXPECT_EQ(relay.relayed(), 1u);
  // A source may have the same number.
  relay.on_events(stored(9, 0, 100, 0).view());
  relay.on_events(stored(9, 0, 100, 1).view());
  EXPECT_EQ(relay.returned(), 1u);
  EXPECT_EQ(relay.relayed(), 3u);
}

}  // namespace
}  // namespace ashlar::feed
