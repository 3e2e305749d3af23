// The blocks of a manager, from its transitions to a listener at the other end of sockets that drop what they
// have no room for.
#include <gtest/gtest.h>

#include <deque>
#include <set>

#include "ashlar/base/random.h"
#include "ashlar/events/event_manager.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/managers.h"
#include "backend/zmq/feed_support.h"
#include "backend/zmq/raw_socket.h"
#include "feed/stream_listeners.h"
#include "support/scratch_folder.h"

namespace ashlar::backend::zmq {
namespace {

using namespace std::chrono_literals;
using Keys = std::set<feed::PresenceListener::Key>;

constexpr events::Worker kWorker{.id = events::WorkerId(5), .rank = 0};

// A manager of 64 blocks in which chains are registered and evicted. Its log holds few events.
class Blocks {
 public:
  Blocks() : manager_(testing::make_manager<events::G1>(options())) {}

  void add_chain() {
    std::vector<tokens::SequenceHash> chain{tokens::SequenceHash::root(1 + random_.below(200))};
    for (std::uint64_t i = random_.below(6); i > 0; --i)
      chain.push_back(chain.back().child(1 + random_.below(3)).value());
    held_.push_back(testing::fill(manager_, std::span<const tokens::SequenceHash>(chain)));
    // Most of the blocks are held by nobody.
    if (held_.size() > 4) held_.pop_front();
  }
  Result<void> add_to(events::EventManager& events) {
    return events.add_source(manager_.event_log(),
                             [this](std::vector<events::KvEvent>& out) { return manager_.list_stored(out); });
  }
  Result<void> remove_from(events::EventManager& events) {
    return events.remove_source(manager_.event_log());
  }
  Keys contents() const {
    std::vector<events::KvEvent> stored;
    (void)manager_.list_stored(stored);
    Keys keys;
    for (const events::KvEvent& event : stored) keys.emplace(event.tier, event.hash);
    EXPECT_EQ(keys.size(), stored.size());
    return keys;
  }

 private:
  static block::ManagerOptions options() {
    block::ManagerOptions options = testing::manager_options(64);
    options.events = testing::make_event_log(256);
    return options;
  }

  block::BlockManager<events::G1> manager_;
  std::deque<block::BlockList<block::ImmutableBlock<events::G1>>> held_;
  Random random_{23};
};

TEST(ZmqBlocksTest, AManagerIsHeardThroughTheLivesOfItsPublisher) {
  const ScratchFolder folder;
  EnginePublisherOptions publisher;
  publisher.endpoint = "ipc://" + folder.file("events");
  publisher.replay_endpoint = "ipc://" + folder.file("replay");
  publisher.hwm = 1;
  publisher.publish_wait = 60s;
  SubscriberOptions hear{.endpoint = publisher.endpoint,
                         .replay_endpoint = publisher.replay_endpoint,
                         .hwm = 1,
                         .reconnect = 10ms,
                         .reconnect_max = 20ms,
                         .replay_timeout = 100s,  // a busy machine answers late
                         .replay_deadline = 100s};
  auto source = make_source({hear});
  feed::PresenceListener presence;
  presence.allow_unknown_blocks();
  feed::StreamReceiver receiver(*source, presence);
  Blocks blocks;
  for (std::uint64_t life = 1; life <= 4; ++life) {
    auto made = events::EventManager::create({.stream = {.worker = kWorker, .incarnation = life}});
    ASSERT_TRUE(made.has_value()) << made.error();
    events::EventManager& events = **made;
    // Sometimes the replay socket has what was dropped, sometimes it takes a snapshot, in parts.
    publisher.buffer_steps = life % 2 == 0 ? 8 : 100'000;
    const std::shared_ptr<ZmqBatchSink> sink = make_sink(publisher, 7);
    sink->serve_snapshots(&events);
    ASSERT_TRUE(blocks.add_to(events).has_value());
    ASSERT_TRUE(events.add_sink(sink, {.max_events = 2}).has_value());
    const auto flush = [&] {
      const Result<void> flushed = events.flush(Clock::real().now() + 60s);
      EXPECT_TRUE(flushed.has_value()) << flushed.error();
      EXPECT_TRUE(sink->publisher().flush(60s));
    };
    // What is left of the life before is heard first, and what is missing of that nobody has any more.
    ASSERT_TRUE(eventually([&] {
      blocks.add_chain();
      flush();
      (void)receiver.poll(1ms);
      return receiver.counters().events > 0 && receiver.counters().restarts == life - 1;
    })) << "life "
        << life;
    const std::uint64_t resyncs = receiver.counters().resyncs;
    // How much is on its way before something is dropped is a matter of the system.
    const auto mended = [&] {
      return life % 2 == 0 ? receiver.counters().snapshots : receiver.counters().replayed;
    };
    for (int burst = 0; burst < 3 || (burst < 60 && mended() == 0); ++burst) {
      for (int i = 0; i < 3000; ++i) {
        blocks.add_chain();
        if (i % 20 == 0) events.drain();
      }
      flush();
      // The last batch may be among the dropped; nobody knows before the next one comes.
      EXPECT_TRUE(eventually([&] {
        blocks.add_chain();
        flush();
        (void)receiver.poll(1ms);
        return receiver.is_complete(kWorker) && presence.of(kWorker) == blocks.contents();
      })) << "life "
          << life << ", burst " << burst;
    }
    EXPECT_EQ(receiver.counters().restarts, life - 1);
    EXPECT_EQ(receiver.counters().resyncs, resyncs) << "life " << life;
    // The life ends in good order, or in the middle of things.
    if (life == 2) {
      ASSERT_TRUE(blocks.remove_from(events).has_value());
    } else {
      for (int i = 0; i < 100; ++i) blocks.add_chain();
    }
    sink->serve_snapshots(nullptr);
  }
  const feed::StreamReceiver::Counters& counters = receiver.counters();
  EXPECT_EQ(presence.problem(), "");
  EXPECT_GT(counters.gaps, 0U) << "nothing was dropped";
  EXPECT_GT(counters.replayed, 0U);
  EXPECT_GT(counters.snapshots, 0U);
  EXPECT_EQ(counters.refused, 0U);
  EXPECT_EQ(source->damaged(), 0U);
}

}  // namespace
}  // namespace ashlar::backend::zmq
