// EventManager: numbers, batches by count, age and load, sinks that fail or fall behind, logs that overflow.
#include "ashlar/events/event_manager.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>

#include "ashlar/base/metrics.h"
#include "ashlar/base/random.h"
#include "events/batch_recorder.h"
#include "events/event_samples.h"

namespace ashlar::events {
namespace {

using Key = std::pair<TierId, tokens::SequenceHash>;

Clock::TimePoint soon() {
  return Clock::real().now() + std::chrono::seconds(30);
}

// What batches add up to, for one who begins with the first of them.
struct Replay {
  std::set<Key> present;
  std::uint64_t next = 0;
  std::size_t snapshots = 0;
  std::string problem;

  void apply(const OwnedBatch& batch) {
    if (batch.head.kind == BatchKind::kSnapshot) {
      if (batch.head.part == 0) present.clear(), ++snapshots;
      next = batch.head.first;
    } else {
      if (batch.head.first != next) problem = "a hole before " + std::to_string(batch.head.first);
      next = batch.view().end();
    }
    for (const KvEvent& event : batch.events) {
      const Key key{event.tier, event.hash};
      if (event.kind == KvEventKind::kStored) {
        if (!present.insert(key).second) problem = "stored twice";
        if (event.has_parent && !event.parent_bits.can_precede(event.hash))
          problem = "not the child of its parent";
      }
      if (event.kind == KvEventKind::kRemoved && present.erase(key) == 0)
        problem = "removed what is not there";
    }
  }
  void apply(const std::vector<OwnedBatch>& batches) {
    for (const OwnedBatch& batch : batches) apply(batch);
  }
};

class EventManagerTest : public ::testing::Test {
 protected:
  std::shared_ptr<EventLog> log(std::size_t capacity = 1 << 16) {
    auto made = std::make_shared<EventLog>(capacity);
    EXPECT_TRUE(made->claim());
    return made;
  }
  std::shared_ptr<BatchRecorder> sink_ = std::make_shared<BatchRecorder>();
};

TEST_F(EventManagerTest, EventsAreNumberedWithoutHolesInWhateverBatches) {
  auto manager = EventManager::create({.stream = {{WorkerId(3), 1}, 9}}).value();
  auto coarse = std::make_shared<BatchRecorder>();
  ASSERT_TRUE(manager->add_sink(sink_, {.max_events = 7}));
  ASSERT_TRUE(manager->add_sink(coarse, BatchProfile::coarse()));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (int i = 0; i < 10; ++i)
    for (const KvEvent& event : chain(static_cast<std::uint64_t>(i), 10)) source->append(event);
  ASSERT_TRUE(manager->flush(soon()));
  for (const auto& sink : {sink_, coarse}) {
    Replay replay;
    replay.apply(sink->all());
    EXPECT_EQ(replay.problem, "");
    EXPECT_EQ(replay.next, 100u);
    EXPECT_EQ(replay.present.size(), 100u);
    EXPECT_EQ(sink->all()[0].head.stream, (StreamId{{WorkerId(3), 1}, 9}));
  }
  EXPECT_GE(sink_->batches(), 100u / 7);
  for (const OwnedBatch& batch : sink_->all()) EXPECT_LE(batch.events.size(), 7u);
}

TEST_F(EventManagerTest, ABatchGoesOutWhenItsOldestEventIsOldEnough) {
  ManualClock clock;
  auto manager = EventManager::create({.drain_every = std::chrono::hours(1), .clock = &clock}).value();
  ASSERT_TRUE(manager->add_sink(sink_, {.max_events = 100, .max_age = std::chrono::milliseconds(10)}));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 3)) source->append(event);
  manager->drain();
  while (clock.waiters() < 2) std::this_thread::yield();  // the drain and the queue
  EXPECT_EQ(sink_->batches(), 0u);
  clock.advance(std::chrono::milliseconds(10));
  while (sink_->batches() == 0) std::this_thread::yield();
  EXPECT_EQ(sink_->events().size(), 3u);
}

TEST_F(EventManagerTest, TheMoreEventsWaitTheSoonerTheyGo) {
  ManualClock clock;
  auto manager = EventManager::create({.drain_every = std::chrono::hours(1), .clock = &clock}).value();
  ASSERT_TRUE(manager->add_sink(sink_, BatchProfile::coarse()));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 1024)) source->append(event);
  manager->drain();
  while (clock.waiters() < 2) std::this_thread::yield();
  clock.advance(std::chrono::seconds(5));  // a quarter of a batch: it would go after 7.5 s
  for (const KvEvent& event : chain(2, 1024)) source->append(event);
  manager->drain();  // half of one: after 5 s
  while (sink_->batches() == 0) std::this_thread::yield();
  EXPECT_EQ(sink_->events().size(), 2048u);
  EXPECT_EQ(sink_->batches(), 1u);
}

TEST_F(EventManagerTest, ASinkThatFailsGetsTheSameBatchAgain) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(manager->add_sink(sink_, {.retry = std::chrono::milliseconds(1)}));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  sink_->fail(3);
  for (const KvEvent& event : chain(1, 5)) source->append(event);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.present.size(), 5u);
  EXPECT_EQ(replay.snapshots, 0u);
  EXPECT_EQ(manager->counters().sinks[0].failures, 3u);
  EXPECT_NE(manager->counters().sinks[0].last_error.find("told to fail"), std::string::npos);
}

TEST_F(EventManagerTest, ASinkThatFallsBehindGetsASnapshotAndNothingWaits) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(
      manager->add_sink(sink_, {.max_events = 16, .capacity = 64, .retry = std::chrono::milliseconds(1)}));
  auto other = std::make_shared<BatchRecorder>();
  ASSERT_TRUE(manager->add_sink(other));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  sink_->fail(-1);
  for (std::uint64_t i = 0; i < 20; ++i) {
    const auto blocks = chain(i, 10);
    for (const KvEvent& event : blocks) source->append(event);
    if (i % 2 == 0)
      for (std::size_t b = blocks.size(); b-- > 0;) source->append(removed(blocks[b].hash));
    manager->drain();
  }
  while (manager->counters().sinks[0].failures == 0) std::this_thread::yield();
  const Result<void> stuck = manager->flush(Clock::real().now());
  ASSERT_FALSE(stuck);
  EXPECT_EQ(stuck.error().code(), ErrorCode::kTimeout);
  EXPECT_NE(stuck.error().message().find("told to fail"), std::string::npos);
  sink_->fail(0);
  ASSERT_TRUE(manager->flush(soon()));
  Replay behind;
  behind.apply(sink_->all());
  Replay ahead;
  ahead.apply(other->all());
  EXPECT_EQ(behind.problem, "");
  EXPECT_GE(behind.snapshots, 1u);
  EXPECT_EQ(ahead.snapshots, 0u);
  EXPECT_EQ(behind.present, ahead.present);
  EXPECT_EQ(behind.present.size(), 100u);
  EXPECT_EQ(behind.next, ahead.next);
  EXPECT_GT(manager->counters().sinks[0].dropped, 0u);
}

TEST_F(EventManagerTest, ALateSinkBeginsWithASnapshot) {
  auto manager = EventManager::create({}).value();
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 30)) source->append(event);
  manager->drain();
  ASSERT_TRUE(manager->add_sink(sink_, {.max_events = 8}));
  for (const KvEvent& event : chain(2, 5)) source->append(event);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.snapshots, 1u);
  EXPECT_EQ(replay.present.size(), 35u);
  EXPECT_GE(sink_->all()[0].head.parts, 4u);
  for (const OwnedBatch& batch : sink_->all()) {
    if (batch.head.kind == BatchKind::kSnapshot) {
      EXPECT_EQ(batch.head.published_ns, sink_->all()[0].head.published_ns);
    }
  }
}

TEST_F(EventManagerTest, ALogWithoutAnOwnerThatOverflowsForgetsAndSaysSo) {
  auto manager = EventManager::create({.drain_every = std::chrono::hours(1)}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  auto source = log(16);
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 10)) source->append(event);
  manager->drain();
  for (const KvEvent& event : chain(2, 400)) source->append(event);
  manager->drain();
  for (const KvEvent& event : chain(3, 4)) source->append(event);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.present.size(), 4u) << "what may have been lost is not claimed";
  const EventCounters counters = manager->counters();
  // Its thread drains once when it starts, which may be in the middle.
  EXPECT_GE(counters.lost, 400u - 2 * 16u);
  EXPECT_LE(counters.lost, 400u - 16u);
  EXPECT_GE(counters.resyncs, 1u);
  EXPECT_LE(counters.resyncs, 2u);
}

// Handles are a source whose owner can be asked.
TEST_F(EventManagerTest, ALogWithAnOwnerThatOverflowsIsMadeGood) {
  auto manager = EventManager::create({.handle_capacity = 16, .drain_every = std::chrono::hours(1)}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  Random random(1);
  std::map<tokens::SequenceHash, PublishHandle> handles;
  for (int round = 0; round < 50; ++round) {
    for (std::uint64_t i = random.below(30); i-- > 0;) {
      const KvEvent block = chain(random.below(10), 8)[random.below(8)];
      if (handles.contains(block.hash)) {
        handles.erase(block.hash);
      } else {
        handles.emplace(block.hash, manager->publish(block));
      }
    }
    ASSERT_TRUE(manager->flush(soon()));
    manager->check_invariants();
    Replay replay;
    replay.apply(sink_->all());
    ASSERT_EQ(replay.problem, "");
    std::set<Key> held;
    for (const auto& [hash, handle] : handles) held.insert({handle.tier(), hash});
    ASSERT_EQ(replay.present, held) << "round " << round;
  }
  EXPECT_GT(manager->counters().repaired, 0u);
  EXPECT_EQ(manager->counters().resyncs, 0u);
}

TEST_F(EventManagerTest, ASourceThatLeavesTakesItsBlocksAlong) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  auto a = log();
  auto b = log();
  ASSERT_TRUE(manager->add_source(a));
  ASSERT_TRUE(manager->add_source(b));
  EXPECT_EQ(manager->add_source(a).error().code(), ErrorCode::kAlreadyExists);
  for (const KvEvent& event : chain(1, 3)) a->append(event);
  for (const KvEvent& event : chain(2, 4, kTierId<G2>)) b->append(event);
  ASSERT_TRUE(manager->remove_source(a));
  EXPECT_EQ(manager->remove_source(a).error().code(), ErrorCode::kNotFound);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.present.size(), 4u);
  EXPECT_EQ(manager->snapshot().events.size(), 4u);
}

TEST_F(EventManagerTest, WhatWaitsGoesOutBeforeTheEnd) {
  {
    auto manager = EventManager::create({.drain_every = std::chrono::hours(1)}).value();
    ASSERT_TRUE(manager->add_sink(sink_, BatchProfile::coarse()));
    const PublishHandle handle = manager->publish(chain(1, 1)[0]);
  }
  EXPECT_EQ(sink_->events().size(), 2u);
}

TEST_F(EventManagerTest, ASinkThatHangsDoesNotKeepTheProducersOrTheOthers) {
  auto manager = EventManager::create({.shutdown_wait = {}}).value();
  auto other = std::make_shared<BatchRecorder>();
  ASSERT_TRUE(manager->add_sink(sink_));
  ASSERT_TRUE(manager->add_sink(other));
  sink_->stop();
  std::vector<PublishHandle> handles;
  for (const KvEvent& block : chain(1, 100)) handles.push_back(manager->publish(block));
  manager->drain();
  while (other->events().size() < 100) std::this_thread::yield();
  sink_->resume();
  EXPECT_TRUE(manager->flush(soon()));
  EXPECT_EQ(sink_->events().size(), 100u);
}

TEST_F(EventManagerTest, AFlushWaitsForASnapshotToArrive) {
  auto manager = EventManager::create({.shutdown_wait = {}}).value();
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 30)) source->append(event);
  manager->drain();
  sink_->fail(-1);
  ASSERT_TRUE(manager->add_sink(sink_, {.max_events = 4, .retry = std::chrono::milliseconds(1)}));
  for (int i = 0; i < 20; ++i)
    ASSERT_FALSE(manager->flush(Clock::real().now() + std::chrono::milliseconds(1))) << "nothing went out";
  sink_->fail(0);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.present.size(), 30u);
}

TEST_F(EventManagerTest, ASnapshotGoesOnWhereAPartFailed) {
  auto manager = EventManager::create({}).value();
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  for (const KvEvent& event : chain(1, 40)) source->append(event);
  manager->drain();
  class EveryOther final : public BatchSink {
   public:
    Result<void> publish(const EventBatch& batch) override {
      if (++calls_ % 2 == 1) return make_error(ErrorCode::kUnavailable, "every other call fails");
      return to->publish(batch);
    }
    std::string describe() const override { return "every other"; }
    std::shared_ptr<BatchRecorder> to = std::make_shared<BatchRecorder>();

   private:
    int calls_ = 0;
  };
  auto sink = std::make_shared<EveryOther>();
  ASSERT_TRUE(manager->add_sink(sink, {.max_events = 4, .retry = std::chrono::milliseconds(1)}));
  ASSERT_TRUE(manager->flush(soon()));
  EXPECT_EQ(sink->to->batches(), 10u);
  EXPECT_EQ(sink->to->events().size(), 40u);
}

TEST_F(EventManagerTest, ASinkThatThrowsOrRemovesItselfHasFailed) {
  auto manager = EventManager::create({.shutdown_wait = {}}).value();
  class Thrower final : public BatchSink {
   public:
    Result<void> publish(const EventBatch&) override {
      if (calls++ == 0) throw std::runtime_error("no patience");
      return manager->remove_sink(self.lock());
    }
    std::string describe() const override { return "thrower"; }
    EventManager* manager = nullptr;
    std::weak_ptr<BatchSink> self;
    std::atomic<int> calls{0};
  };
  auto sink = std::make_shared<Thrower>();
  sink->manager = manager.get();
  sink->self = sink;
  ASSERT_TRUE(manager->add_sink(sink, {.retry = std::chrono::milliseconds(1)}));
  const PublishHandle handle = manager->publish(chain(1, 1)[0]);
  while (manager->counters().sinks[0].failures < 2) std::this_thread::yield();
  EXPECT_NE(manager->counters().sinks[0].last_error.find("remove itself"), std::string::npos);
  ASSERT_TRUE(manager->remove_sink(sink));
}

TEST_F(EventManagerTest, AnOwnerThatThrowsCannotBeAsked) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  auto source = log(16);
  ASSERT_TRUE(manager->add_source(source, [](std::vector<KvEvent>&) -> std::uint64_t { throw 1; }));
  for (const KvEvent& event : chain(2, 40)) source->append(event);
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_TRUE(replay.present.empty());
  EXPECT_GT(manager->counters().resyncs, 0u);
}

TEST_F(EventManagerTest, TwoOwnersOfABlockAreOneToListeners) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  auto source = log();
  ASSERT_TRUE(manager->add_source(source));
  const auto blocks = chain(1, 3);
  std::vector<PublishHandle> handles;
  for (const KvEvent& block : blocks) handles.push_back(manager->publish(block));
  for (const KvEvent& block : blocks) source->append(block);
  manager->drain();
  source->append(removed(blocks[2].hash));
  handles.pop_back();
  handles.pop_back();
  ASSERT_TRUE(manager->flush(soon()));
  Replay replay;
  replay.apply(sink_->all());
  EXPECT_EQ(replay.problem, "");
  EXPECT_EQ(replay.present.size(), 2u) << "the last one has lost both, the middle one has the log";
  EXPECT_EQ(manager->snapshot().events.size(), 2u);
}

TEST_F(EventManagerTest, LocationsAreNamedInTheBatchesThatUseThem) {
  auto manager = EventManager::create({}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  manager->name_location(4, "fast");
  manager->name_location(5, "slow");
  KvEvent block = chain(1, 1)[0];
  block.location = 5;
  const PublishHandle handle = manager->publish(block);
  ASSERT_TRUE(manager->flush(soon()));
  ASSERT_EQ(sink_->batches(), 1u);
  EXPECT_EQ(sink_->all()[0].locations, (std::vector<LocationName>{{5, "slow"}}));
  EXPECT_EQ(manager->snapshot().locations, (std::vector<LocationName>{{5, "slow"}}));
}

TEST_F(EventManagerTest, AccessesAreReportedWhenAskedFor) {
  auto sampler = std::make_shared<AccessSampler>(AccessSampler::Options{.every = 4});
  auto manager =
      EventManager::create({.accesses = sampler, .access_every = std::chrono::nanoseconds(1)}).value();
  ASSERT_TRUE(manager->add_sink(sink_));
  const auto blocks = chain(1, 2);
  for (int i = 0; i < 100; ++i)
    sampler->note(kTierId<G1>, 2, [&](std::size_t at) { return blocks[at].hash; });
  ASSERT_TRUE(manager->flush(soon()));
  std::uint64_t hits = 0;
  for (const KvEvent& event : sink_->events()) {
    EXPECT_EQ(event.kind, KvEventKind::kAccess);
    hits += event.block;
  }
  EXPECT_EQ(hits + sampler->missed(), 200u);
}

TEST_F(EventManagerTest, BadOptionsAreNamed) {
  EXPECT_EQ(EventManager::create({.handle_capacity = 0}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(EventManager::create({.drain_every = {}}).error().code(), ErrorCode::kInvalidArgument);
  auto manager = EventManager::create({}).value();
  EXPECT_EQ(manager->add_sink(sink_, {.max_events = 0}).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(manager->add_sink(sink_, {.max_events = 10, .capacity = 9}).error().code(),
            ErrorCode::kInvalidArgument);
  EXPECT_EQ(manager->add_sink(nullptr).error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(manager->add_source(nullptr).error().code(), ErrorCode::kInvalidArgument);
}

TEST_F(EventManagerTest, CountersAreOnThePageWhileTheyAreRegistered) {
  auto manager = EventManager::create({.stream = {{WorkerId(3), 1}, 9}}).value();
  MetricRegistry registry;
  {
    const auto metrics = manager->add_metrics(registry, {{"worker", "3"}});
    ASSERT_TRUE(metrics) << metrics.error().to_string();
    sink_->fail(2);
    ASSERT_TRUE(manager->add_sink(sink_, {.retry = std::chrono::milliseconds(1)}));
    const PublishHandle handle = manager->publish({.hash = tokens::SequenceHash::root(1)});
    ASSERT_TRUE(manager->flush(soon()));
    const std::string page = registry.prometheus_text();
    const EventCounters counters = manager->counters();
    ASSERT_EQ(counters.sinks.size(), 1u);
    const auto expect = [&](const std::string& sample, std::uint64_t value) {
      EXPECT_NE(page.find("\n" + sample + " " + std::to_string(value) + "\n"), std::string::npos)
          << sample << " " << value << " is not on the page:\n"
          << page;
    };
    EXPECT_EQ(counters.events, 1u);
    expect("ashlar_events_total{worker=\"3\"}", 1);
    expect("ashlar_events_lost_total{worker=\"3\"}", 0);
    expect("ashlar_event_repairs_total{worker=\"3\"}", 0);
    expect("ashlar_event_resyncs_total{worker=\"3\"}", 0);
    expect("ashlar_event_blocks{worker=\"3\"}", 1);
    expect("ashlar_event_waiting{worker=\"3\"}", 0);
    const SinkCounters& sink = counters.sinks[0];
    const std::string labels = "{sink=\"recorder\",worker=\"3\"}";
    EXPECT_EQ(sink.failures, 2u);
    expect("ashlar_event_sink_batches_total" + labels, sink.batches);
    expect("ashlar_event_sink_events_total" + labels, sink.events);
    expect("ashlar_event_sink_snapshots_total" + labels, sink.snapshots);
    expect("ashlar_event_sink_failures_total" + labels, 2);
    expect("ashlar_event_sink_dropped_total" + labels, 0);
    EXPECT_FALSE(manager->add_metrics(registry, {{"worker", "3"}})) << "the same names twice";
  }
  EXPECT_EQ(registry.prometheus_text(), "");
}

}  // namespace
}  // namespace ashlar::events
