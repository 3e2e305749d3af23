// EventBus: from an EventManager to receivers in the same process, also to those who fall behind.
#include "ashlar/feed/feed_source.h"

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <thread>

#include "ashlar/base/random.h"
#include "ashlar/events/event_manager.h"
#include "events/event_samples.h"
#include "feed/stream_listeners.h"

namespace ashlar::feed {
namespace {

using events::chain;
using events::EventManager;
using events::PublishHandle;
using events::Worker;
using events::WorkerId;

const Worker kWorker{WorkerId(1), 0};

std::set<PresenceListener::Key> held_in(EventManager& manager) {
  std::set<PresenceListener::Key> out;
  for (const events::KvEvent& event : manager.snapshot().events) out.insert({event.tier, event.hash});
  return out;
}

// Polls until the receiver has heard everything that was numbered.
void catch_up(StreamReceiver& receiver, EventManager& manager, PresenceListener& listener) {
  ASSERT_TRUE(manager.flush(Clock::real().now() + std::chrono::seconds(30)));
  for (int i = 0; i < 1000 && listener.of(kWorker) != held_in(manager); ++i)
    ASSERT_TRUE(receiver.poll(std::chrono::milliseconds(10)));
  EXPECT_EQ(listener.of(kWorker), held_in(manager));
  EXPECT_EQ(listener.problem(), "");
}

TEST(EventBusTest, EverySubscriptionHearsEverything) {
  EventBus bus;
  auto manager = EventManager::create({.stream = {kWorker, 1}}).value();
  ASSERT_TRUE(manager->add_sink(bus.sink()));
  const auto a = bus.subscribe();
  const auto b = bus.subscribe();
  PresenceListener at_a;
  PresenceListener at_b;
  StreamReceiver from_a(*a, at_a);
  StreamReceiver from_b(*b, at_b);
  std::vector<PublishHandle> handles;
  for (const auto& block : chain(1, 50)) handles.push_back(manager->publish(block));
  handles.resize(20);
  catch_up(from_a, *manager, at_a);
  catch_up(from_b, *manager, at_b);
}

TEST(EventBusTest, WhoFallsBehindRecovers) {
  for (const std::size_t kept : {std::size_t{4}, std::size_t{100'000}}) {
    EventBus bus({.queue_batches = 2, .replay_batches = kept});
    auto manager = EventManager::create({.stream = {kWorker, 1}}).value();
    bus.serve_snapshots(manager.get());
    ASSERT_TRUE(manager->add_sink(bus.sink(), {.max_events = 4}));
    const auto subscription = bus.subscribe();
    PresenceListener listener;
    StreamReceiver receiver(*subscription, listener);
    std::vector<PublishHandle> handles;
    for (std::uint64_t i = 0; i < 20; ++i)
      for (const auto& block : chain(i, 10)) handles.push_back(manager->publish(block));
    handles.resize(77);
    catch_up(receiver, *manager, listener);
    if (kept == 4) {
      EXPECT_GE(receiver.counters().snapshots, 1u);
    } else {
      EXPECT_GE(receiver.counters().replayed, 1u);
      EXPECT_EQ(receiver.counters().snapshots, 0u);
    }
    bus.serve_snapshots(nullptr);
  }
}

class EventBusReplayTest : public ::testing::Test {
 protected:
  void publish(std::uint64_t first, std::size_t count) {
    const std::vector<events::KvEvent> events(count);
    ASSERT_TRUE(sink_->publish({.stream = kStream, .first = first, .events = events}));
  }
  void snapshot(std::uint64_t first, std::uint32_t part, std::uint32_t parts) {
    ASSERT_TRUE(sink_->publish({.stream = kStream,
                                .kind = events::BatchKind::kSnapshot,
                                .first = first,
                                .part = part,
                                .parts = parts}));
  }
  // The batches that recover() brings; a part of a snapshot as (number, true).
  std::vector<std::pair<std::uint64_t, bool>> recover(std::uint64_t from) {
    struct Collector final : BatchConsumer {
      std::vector<std::pair<std::uint64_t, bool>> heard;
      void on_batch(const events::EventBatch& batch) override {
        heard.emplace_back(batch.first, batch.kind == events::BatchKind::kSnapshot);
      }
    } collector;
    const bool helps = subscription_->recover(kStream, from, collector).value();
    EXPECT_EQ(helps, !collector.heard.empty());
    return collector.heard;
  }
  using Heard = std::vector<std::pair<std::uint64_t, bool>>;

  static constexpr events::StreamId kStream{{WorkerId(1), 0}, 1};
  EventBus bus_;
  std::shared_ptr<events::BatchSink> sink_ = bus_.sink();
  std::unique_ptr<FeedSource> subscription_ = bus_.subscribe();
};

TEST_F(EventBusReplayTest, TheLastWholeSnapshotHelpsWhereverItStands) {
  publish(10, 5);
  snapshot(15, 0, 2);
  snapshot(15, 1, 2);
  publish(15, 5);
  snapshot(20, 0, 2);
  publish(20, 5);
  EXPECT_EQ(recover(3), (Heard{{15, true}, {15, true}, {15, false}, {20, false}}));
  snapshot(25, 0, 1);
  snapshot(26, 1, 2);
  publish(25, 5);
  EXPECT_EQ(recover(3), (Heard{{25, true}, {25, false}}));
}

TEST_F(EventBusReplayTest, WithoutASnapshotTheBatchesThatReachBackHelp) {
  snapshot(10, 0, 1);
  publish(10, 5);
  publish(15, 5);
  snapshot(20, 1, 2);
  publish(20, 5);
  EXPECT_EQ(recover(17), (Heard{{15, false}, {20, false}}));
  EXPECT_EQ(recover(25), Heard{});
  publish(30, 5);
  EXPECT_EQ(recover(25), Heard{}) << "25 to 29 are not there";
}

TEST(EventBusTest, ASubscriptionThatOutlivesTheBusHasEnded) {
  auto bus = std::make_unique<EventBus>();
  const auto subscription = bus->subscribe();
  const auto sink = bus->sink();
  bus.reset();
  PresenceListener listener;
  StreamReceiver receiver(*subscription, listener);
  EXPECT_EQ(receiver.poll({}).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(sink->publish({}));
}

TEST(EventBusTest, ThreadsPublishWhileOthersListen) {
  EventBus bus({.queue_batches = 8, .replay_batches = 16});
  auto manager = EventManager::create({.stream = {kWorker, 1}, .handle_capacity = 256}).value();
  bus.serve_snapshots(manager.get());
  ASSERT_TRUE(manager->add_sink(bus.sink(), {.max_events = 16, .capacity = 512}));
  const auto subscription = bus.subscribe();
  PresenceListener listener;
  StreamReceiver receiver(*subscription, listener);
  std::atomic<bool> done{false};
  std::vector<std::vector<PublishHandle>> kept(2);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 2; ++t)
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 20'000; ++i) {
        if (random.below(2) == 0 && kept[t].size() < 100) {
          kept[t].push_back(manager->publish(chain(random.below(20), 8)[random.below(8)]));
        } else if (!kept[t].empty()) {
          std::swap(kept[t][random.below(kept[t].size())], kept[t].back());
          kept[t].pop_back();
        }
      }
    });
  std::thread listening([&] {
    while (!done.load()) {
      ASSERT_TRUE(receiver.poll(std::chrono::milliseconds(1)));
      receiver.check_invariants();
      manager->check_invariants();
    }
  });
  for (std::thread& thread : threads) thread.join();
  done = true;
  listening.join();
  catch_up(receiver, *manager, listener);
  receiver.check_invariants();
  manager->check_invariants();
  bus.serve_snapshots(nullptr);
}

}  // namespace
}  // namespace ashlar::feed
