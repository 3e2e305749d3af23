// StreamReceiver: duplicates, gaps, replays, snapshots, restarts; and a wire that does all of it at once.
#include "ashlar/feed/stream_receiver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <limits>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/base/log.h"
#include "ashlar/base/random.h"
#include "ashlar/testing/time_box.h"
#include "events/event_samples.h"
#include "feed/stream_listeners.h"

namespace ashlar::feed {
namespace {

using events::BatchKind;
using events::chain;
using events::EventBatch;
using events::KvEvent;
using events::OwnedBatch;
using events::removed;
using events::StreamId;
using events::Worker;
using events::WorkerId;

// A worker that stores and removes, and remembers everything it published.
class Producer {
 public:
  explicit Producer(StreamId id) : id_(id) {}

  OwnedBatch publish(std::vector<KvEvent> events) {
    OwnedBatch batch;
    batch.head.stream = id_;
    batch.head.first = next_;
    batch.events = std::move(events);
    next_ += batch.events.size();
    for (const KvEvent& event : batch.events) {
      const PresenceListener::Key key{event.tier, event.hash};
      if (event.kind == events::KvEventKind::kStored) held_.emplace(key, event);
      if (event.kind == events::KvEventKind::kRemoved) held_.erase(key);
    }
    log_.push_back(batch);
    return batch;
  }
  OwnedBatch random_batch(Random& random) {
    std::vector<KvEvent> events;
    for (std::uint64_t n = 1 + random.below(6); n-- > 0;) {
      KvEvent block = chain(random.below(6), 5)[random.below(5)];
      block.has_parent = false;
      const bool there = held_.contains({block.tier, block.hash});
      const bool earlier =
          std::ranges::any_of(events, [&](const KvEvent& e) { return e.hash == block.hash; });
      if (earlier) continue;
      events.push_back(there ? removed(block.hash) : block);
    }
    return publish(std::move(events));
  }
  std::vector<OwnedBatch> snapshot(std::size_t parts) const {
    std::vector<KvEvent> all;
    for (const auto& [key, event] : held_) all.push_back(event);
    std::vector<OwnedBatch> out(parts);
    for (std::size_t i = 0; i < parts; ++i) {
      out[i].head.stream = id_;
      out[i].head.kind = BatchKind::kSnapshot;
      out[i].head.first = next_;
      out[i].head.part = static_cast<std::uint32_t>(i);
      out[i].head.parts = static_cast<std::uint32_t>(parts);
    }
    for (std::size_t i = 0; i < all.size(); ++i) out[i * parts / all.size()].events.push_back(all[i]);
    return out;
  }
  const StreamId& id() const { return id_; }
  const std::vector<OwnedBatch>& log() const { return log_; }
  std::set<PresenceListener::Key> held() const {
    std::set<PresenceListener::Key> out;
    for (const auto& [key, event] : held_) out.insert(key);
    return out;
  }

 private:
  StreamId id_;
  std::uint64_t next_ = 0;
  std::vector<OwnedBatch> log_;
  std::map<PresenceListener::Key, KvEvent> held_;
};

// A feed whose answers tests decide.
class BatchScript final : public FeedSource {
 public:
  Result<std::size_t> poll(BatchConsumer& consumer, Clock::Duration) override {
    if (error) return *error;
    std::size_t n = 0;
    for (; !wire.empty(); ++n) {
      const OwnedBatch batch = std::move(wire.front());
      wire.pop_front();
      consumer.on_batch(batch.view());
    }
    return n;
  }
  Result<bool> recover(const StreamId& stream, std::uint64_t from, BatchConsumer& consumer) override {
    ++recoveries;
    if (recover_error) return *recover_error;
    if (can_replay && producer != nullptr && stream == producer->id()) {
      bool has_some = false;
      for (const OwnedBatch& batch : producer->log()) {
        if (batch.view().end() <= from || batch.view().end() > kept_until) continue;
        consumer.on_batch(batch.view());
        has_some = true;
      }
      if (has_some || !can_snapshot) return true;
    }
    if (can_snapshot && producer != nullptr && stream == producer->id()) {
      for (const OwnedBatch& part : producer->snapshot(3)) consumer.on_batch(part.view());
      return true;
    }
    return false;
  }
  std::uint64_t damaged() const noexcept override { return 0; }
  std::string describe() const override { return "script"; }

  std::deque<OwnedBatch> wire;
  const Producer* producer = nullptr;
  bool can_replay = false;
  std::uint64_t kept_until = std::numeric_limits<std::uint64_t>::max();  // events that a replay has
  bool can_snapshot = false;
  int recoveries = 0;
  std::optional<Error> error;
  std::optional<Error> recover_error;
};

class StreamReceiverTest : public ::testing::Test {
 protected:
  const Worker worker_{WorkerId(7), 0};
  Producer producer_{StreamId{worker_, 1}};
  BatchScript source_;
  PresenceListener listener_;
  StreamReceiver receiver_{source_, listener_};

  void SetUp() override { source_.producer = &producer_; }
  void poll() { ASSERT_TRUE(receiver_.poll({})); }
};

TEST_F(StreamReceiverTest, WhatComesTwiceCountsOnce) {
  const OwnedBatch batch = producer_.publish(chain(1, 4));
  source_.wire = {batch, batch, producer_.publish(chain(2, 2)), batch};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
  EXPECT_EQ(receiver_.counters().duplicates, 8u);
  EXPECT_EQ(listener_.resets(), 0u);
}

TEST_F(StreamReceiverTest, OfABatchThatOverlapsTheRestIsTaken) {
  const auto blocks = chain(1, 6);
  const OwnedBatch whole = producer_.publish(blocks);
  OwnedBatch front = whole;
  front.events.resize(4);
  source_.wire = {front, whole};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
}

TEST_F(StreamReceiverTest, ReorderedBatchesWaitForEachOther) {
  const OwnedBatch a = producer_.publish(chain(1, 4));
  const OwnedBatch b = producer_.publish(chain(2, 4));
  const OwnedBatch c = producer_.publish({removed(chain(1, 4)[3].hash)});
  source_.wire = {a, c, b};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
  EXPECT_EQ(source_.recoveries, 0);
}

TEST_F(StreamReceiverTest, AGapIsClosedByReplay) {
  source_.can_replay = true;
  source_.wire = {producer_.publish(chain(1, 4))};
  producer_.publish(chain(2, 4));
  source_.wire.push_back(producer_.publish(chain(3, 4)));
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(receiver_.counters().gaps, 1u);
  EXPECT_EQ(receiver_.counters().replayed, 1u);
  EXPECT_EQ(listener_.resets(), 0u);
  EXPECT_TRUE(receiver_.is_complete(worker_));
}

TEST_F(StreamReceiverTest, AGapIsClosedByASnapshot) {
  source_.can_snapshot = true;
  source_.wire = {producer_.publish(chain(1, 4))};
  producer_.publish({removed(chain(1, 4)[3].hash)});
  source_.wire.push_back(producer_.publish(chain(3, 4)));
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
  EXPECT_EQ(receiver_.counters().snapshots, 1u);
  EXPECT_EQ(listener_.resets(), 1u);
  EXPECT_TRUE(receiver_.is_complete(worker_));
}

TEST_F(StreamReceiverTest, AGapIsClosedByAReplayOfItsFirstPartAndASnapshot) {
  source_.can_replay = true;
  source_.can_snapshot = true;
  source_.kept_until = 8;
  source_.wire = {producer_.publish(chain(1, 4))};
  producer_.publish(chain(2, 4));
  producer_.publish({removed(chain(1, 4)[3].hash)});
  source_.wire.push_back(producer_.publish({removed(chain(2, 4)[3].hash)}));
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
  EXPECT_EQ(source_.recoveries, 2);
  EXPECT_EQ(receiver_.counters().gaps, 1u);
  EXPECT_EQ(receiver_.counters().snapshots, 1u);
  EXPECT_EQ(receiver_.counters().resyncs, 0u);
  EXPECT_TRUE(receiver_.is_complete(worker_));
}

TEST_F(StreamReceiverTest, AGapThatNothingClosesDropsWhatWasKnown) {
  listener_.allow_unknown_blocks();
  source_.wire = {producer_.publish(chain(1, 4))};
  producer_.publish(chain(2, 4));
  source_.wire.push_back(producer_.publish(chain(3, 2)));
  poll();
  EXPECT_EQ(listener_.of(worker_).size(), 2u) << "only what came behind the gap";
  EXPECT_EQ(receiver_.counters().resyncs, 1u);
  EXPECT_FALSE(receiver_.is_complete(worker_));
  for (const OwnedBatch& part : producer_.snapshot(2)) source_.wire.push_back(part);
  poll();
  EXPECT_TRUE(receiver_.is_complete(worker_));
  EXPECT_EQ(listener_.of(worker_), producer_.held());
}

TEST_F(StreamReceiverTest, AFeedThatIsNotThereNowIsAskedAgain) {
  source_.recover_error = make_error(ErrorCode::kUnavailable, "not now");
  source_.wire = {producer_.publish(chain(1, 4))};
  producer_.publish(chain(2, 4));
  source_.wire.push_back(producer_.publish(chain(3, 2)));
  poll();
  EXPECT_EQ(listener_.of(worker_).size(), 4u) << "what was known stays until it is known to be wrong";
  source_.recover_error.reset();
  source_.can_replay = true;
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(receiver_.counters().resyncs, 0u);
}

TEST_F(StreamReceiverTest, WhoComesLateAsksForTheBeginning) {
  source_.can_snapshot = true;
  producer_.publish(chain(1, 4));
  source_.wire = {producer_.publish(chain(2, 3))};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_TRUE(receiver_.is_complete(worker_));
}

TEST_F(StreamReceiverTest, ARestartedWorkerLosesItsOldState) {
  source_.wire = {producer_.publish(chain(1, 4))};
  poll();
  Producer again(StreamId{worker_, 2});
  source_.wire = {again.publish(chain(2, 2)), producer_.publish(chain(3, 3))};
  poll();
  EXPECT_EQ(listener_.of(worker_), again.held());
  EXPECT_EQ(receiver_.counters().restarts, 1u);
  EXPECT_EQ(receiver_.counters().stale, 1u) << "its old life speaks no more";
}

TEST_F(StreamReceiverTest, TwoPublishersOfOneWorkerAreSaidToBeTwo) {
  std::vector<std::string> warnings;
  const ScopedLogSink sink(
      [&](LogLevel, std::string_view, std::string_view line) { warnings.emplace_back(line); });
  Producer other(StreamId{worker_, 9});
  source_.wire = {producer_.publish(chain(1, 4)), other.publish(chain(2, 2))};
  poll();
  // The last words of a life that is over, also when they come again.
  const OwnedBatch last = producer_.publish(chain(3, 1));
  source_.wire = {last, other.publish(chain(4, 1)), last, other.publish(chain(5, 1)), last};
  poll();
  EXPECT_EQ(receiver_.counters().stale, 3u);
  EXPECT_EQ(receiver_.counters().shadowed, 0u);
  EXPECT_TRUE(warnings.empty());
  for (std::uint64_t i = 0; i < 10; ++i) {
    source_.wire = {producer_.publish(chain(10 + i, 1)), other.publish(chain(20 + i, 1))};
    poll();
  }
  EXPECT_EQ(receiver_.counters().shadowed, 1u);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings.front(), receiver_.last_shadowed());
  EXPECT_NE(warnings.front().find("worker " + std::to_string(worker_.id.value())), std::string::npos)
      << warnings.front();
  EXPECT_NE(warnings.front().find("incarnations " + std::to_string(producer_.id().incarnation) + " and 9"),
            std::string::npos)
      << warnings.front();
  EXPECT_EQ(listener_.of(worker_), other.held());
}

TEST_F(StreamReceiverTest, WorkersAndRanksDoNotMix) {
  Producer other(StreamId{{WorkerId(7), 1}, 1});
  source_.wire = {producer_.publish(chain(1, 4)), other.publish(chain(2, 2))};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.of({WorkerId(7), 1}), other.held());
}

TEST_F(StreamReceiverTest, AStreamOfOtherKeysIsRefusedWithAReason) {
  StreamReceiver strict(source_, listener_, {.keys = events::StreamKeys{.scheme = 5, .block_size = 16}});
  OwnedBatch batch = producer_.publish(chain(1, 4));
  batch.head.keys.scheme = 6;
  batch.head.keys.block_size = 16;
  source_.wire = {batch};
  ASSERT_TRUE(strict.poll({}));
  EXPECT_TRUE(listener_.of(worker_).empty());
  EXPECT_EQ(strict.counters().refused, 1u);
  EXPECT_NE(strict.last_refusal().find("hash scheme"), std::string::npos);
}

TEST_F(StreamReceiverTest, PartsOfTwoSnapshotsAreNotMixed) {
  const auto first = producer_.snapshot(2);
  producer_.publish(chain(1, 4));
  const auto second = producer_.snapshot(2);
  source_.wire = {first[0], second[1], second[0], first[1], second[1]};
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  EXPECT_EQ(listener_.problem(), "");
}

TEST_F(StreamReceiverTest, WhoIsNotCompleteIsAskedAgain) {
  StreamReceiver receiver(source_, listener_, {.ask_again = 2});
  listener_.allow_unknown_blocks();
  producer_.publish(chain(1, 4));
  source_.wire = {producer_.publish(chain(2, 2))};
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_FALSE(receiver.is_complete(worker_));
  source_.can_snapshot = true;
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(receiver.poll({}));
  EXPECT_TRUE(receiver.is_complete(worker_));
  EXPECT_EQ(listener_.of(worker_), producer_.held());
}

TEST_F(StreamReceiverTest, NumbersAndPartsThatCannotBeAreRefused) {
  OwnedBatch batch = producer_.publish(chain(1, 2));
  batch.head.first = UINT64_MAX - 1;
  OwnedBatch parts = producer_.snapshot(1)[0];
  parts.head.parts = events::kMaxSnapshotParts + 1;
  OwnedBatch half = producer_.snapshot(2)[0];
  half.head.first = UINT64_MAX;
  source_.wire = {batch, parts, half, producer_.log()[0]};
  poll();
  EXPECT_EQ(receiver_.counters().refused, 2u);
  EXPECT_EQ(listener_.of(worker_), producer_.held());
  // Half a snapshot that never becomes a whole one gives way.
  for (int i = 0; i < 2000; ++i)
    for (const OwnedBatch& part : producer_.snapshot(1)) source_.wire.push_back(part);
  poll();
  EXPECT_EQ(listener_.of(worker_), producer_.held());
}

TEST_F(StreamReceiverTest, TheNumberOfWorkersIsBounded) {
  StreamReceiver receiver(source_, listener_, {.max_workers = 3});
  for (std::uint64_t i = 0; i < 10; ++i)
    source_.wire.push_back(Producer(StreamId{{WorkerId(100 + i), 0}, 1}).publish(chain(i, 1)));
  ASSERT_TRUE(receiver.poll({}));
  EXPECT_EQ(receiver.counters().refused, 7u);
  EXPECT_NE(receiver.last_refusal().find("3"), std::string::npos);
}

TEST_F(StreamReceiverTest, AHugeGapIsBounded) {
  StreamReceiver small(source_, listener_, {.max_waiting = 10});
  listener_.allow_unknown_blocks();
  producer_.publish(chain(1, 4));
  source_.recover_error = make_error(ErrorCode::kUnavailable, "not now");
  for (std::uint64_t i = 2; i < 20; ++i) source_.wire.push_back(producer_.publish(chain(i, 4)));
  ASSERT_TRUE(small.poll({}));
  EXPECT_EQ(small.counters().resyncs, 1u);
  EXPECT_EQ(listener_.of(worker_).size(), 18u * 4);
}

// Loss, doubling, reordering, restarts and snapshots at random: with a feed that can recover the picture is
// the worker's own whenever the wire is quiet.
TEST(StreamReceiverProperty, EveryWireEndsInTheTruth) {
  const testing::TimeBox box(1);
  std::uint64_t seed = 0;
  do {
    Random random(++seed);
    BatchScript source;
    PresenceListener listener;
    StreamReceiver receiver(source, listener);
    const Worker worker{WorkerId(1), 0};
    std::uint64_t life = 1;
    auto producer = std::make_unique<Producer>(StreamId{worker, life});
    source.producer = producer.get();
    source.can_replay = random.below(2) == 0;
    source.can_snapshot = !source.can_replay;
    for (int step = 0; step < 60; ++step) {
      const OwnedBatch batch = producer->random_batch(random);
      switch (random.below(8)) {
        case 0:  // lost
          break;
        case 1:
          source.wire.push_back(batch);
          source.wire.push_back(batch);
          break;
        case 2:
          source.wire.push_front(batch);
          break;
        case 3:
          for (const OwnedBatch& part : producer->snapshot(1 + random.below(3)))
            if (random.below(8) != 0) source.wire.push_back(part);
          break;
        default:
          source.wire.push_back(batch);
      }
      if (random.below(40) == 0) {
        source.wire.clear();
        producer = std::make_unique<Producer>(StreamId{worker, ++life});
        source.producer = producer.get();
      }
      if (random.below(3) == 0) {
        ASSERT_TRUE(receiver.poll({}));
        receiver.check_invariants();
        ASSERT_EQ(listener.problem(), "") << "seed " << seed;
      }
    }
    source.wire.push_back(producer->publish(chain(99, 1)));  // the last word arrives
    ASSERT_TRUE(receiver.poll({}));
    receiver.check_invariants();
    ASSERT_EQ(listener.of(worker), producer->held()) << "seed " << seed;
    ASSERT_EQ(listener.problem(), "") << "seed " << seed;
    ASSERT_TRUE(receiver.is_complete(worker)) << "seed " << seed;
  } while (!box.over());
}

}  // namespace
}  // namespace ashlar::feed
