#include "ashlar/events/event_log.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include <atomic>
#include <barrier>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace ashlar::events {
namespace {

using tokens::SequenceHash;

// Keeps what it gets; may do something more per call.
class Recorder final : public EventSink {
 public:
  Recorder() = default;
  explicit Recorder(std::function<void(Recorder&)> then) : then_(std::move(then)) {}

  void on_events(std::span<const KvEvent> events) override {
    ++calls;
    seen.insert(seen.end(), events.begin(), events.end());
    if (then_) then_(*this);
  }

  int calls = 0;
  std::vector<KvEvent> seen;

 private:
  std::function<void(Recorder&)> then_;
};

KvEvent event_of(std::uint64_t chain, KvEventKind kind = KvEventKind::kStored) {
  KvEvent event;
  event.hash = SequenceHash::root(chain);
  event.kind = kind;
  return event;
}

void append(EventLog& log, std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) log.append(event_of(first + i));
}

// "s3" for a stored event with sequence number 3, "r5x2" for a resync of 2 lost events at number 5.
std::vector<std::string> story(const std::vector<KvEvent>& events) {
  std::vector<std::string> words;
  for (const KvEvent& event : events) {
    if (event.kind == KvEventKind::kResync) {
      words.push_back("r" + std::to_string(event.sequence) + "x" + std::to_string(event.block));
    } else {
      EXPECT_EQ(event.hash.chain(), event.sequence) << "the tests name events by their number";
      words.push_back("s" + std::to_string(event.sequence));
    }
  }
  return words;
}
using Story = std::vector<std::string>;

// Numbers rise, and no number is skipped without a resync before it.
void expect_no_silent_hole(const std::vector<KvEvent>& events, std::uint64_t from = 0) {
  std::uint64_t next = from;
  bool told = false;
  for (const KvEvent& event : events) {
    if (event.kind == KvEventKind::kResync) {
      told = true;
      ASSERT_GE(event.sequence, next);
      ASSERT_GT(event.block, 0u);
      continue;
    }
    ASSERT_GE(event.sequence, next);
    ASSERT_TRUE(event.sequence == next || told) << "number " << next << " is missing without a word";
    ASSERT_EQ(event.hash.chain(), event.sequence);
    next = event.sequence + 1;
    told = false;
  }
}

TEST(KvEventTest, ParentAndPrefixGroupAreThereOnlyWhenKnown) {
  KvEvent event = event_of(1);
  EXPECT_FALSE(event.parent());
  EXPECT_FALSE(event.prefix_group());
  event.set_parent(SequenceHash::root(7));
  event.set_prefix_group(SequenceHash::root(8));
  EXPECT_EQ(event.parent(), SequenceHash::root(7));
  EXPECT_EQ(event.prefix_group(), SequenceHash::root(8));
}

TEST(KvEventTest, WhatIsSetIsReadBackAndUnsetLeavesNoTrace) {
  KvEvent event = event_of(1);
  event.set_parent(SequenceHash::root(7));
  event.set_prefix_group(SequenceHash::root(8));
  event.set_name(BlockName(9));
  event.set_local(tokens::LocalHash(10));
  EXPECT_EQ(event.name(), BlockName(9));
  EXPECT_EQ(event.local(), tokens::LocalHash(10));
  event.set_parent(std::nullopt);
  event.set_prefix_group(std::nullopt);
  event.set_name(std::nullopt);
  event.set_local(std::nullopt);
  EXPECT_EQ(event, event_of(1));
}

TEST(EventLogTest, DeliversInOrderWithNumbersFromZero) {
  EventLog log(16);
  Recorder sink;
  EXPECT_EQ(log.drain(sink), 0u);
  EXPECT_EQ(sink.calls, 0) << "nothing to say, no call";
  append(log, 0, 3);
  EXPECT_EQ(log.pending(), 3u);
  EXPECT_EQ(log.next_sequence(), 3u);
  EXPECT_EQ(log.drain(sink), 3u);
  append(log, 3, 2);
  EXPECT_EQ(log.drain(sink), 2u);
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "s2", "s3", "s4"}));
  EXPECT_EQ(log.pending(), 0u);
  EXPECT_EQ(log.lost(), 0u);
}

TEST(EventLogTest, KeepsEveryFieldOfAnEvent) {
  EventLog log(4);
  KvEvent event = event_of(0, KvEventKind::kRemoved);
  event.tier = kTierId<G3>;
  event.block = 42;
  event.has_parent = true;
  event.parent_bits = SequenceHash::root(7);
  log.append(event);
  Recorder sink;
  log.drain(sink);
  ASSERT_EQ(sink.seen.size(), 1u);
  EXPECT_EQ(sink.seen[0], event);
}

TEST(EventLogTest, CapacityIsRoundedUpToAPowerOfTwo) {
  EXPECT_EQ(EventLog(0).capacity(), 2u);
  EXPECT_EQ(EventLog(1).capacity(), 2u);
  EXPECT_EQ(EventLog(2).capacity(), 2u);
  EXPECT_EQ(EventLog(3).capacity(), 4u);
  EXPECT_EQ(EventLog(64).capacity(), 64u);
  EXPECT_EQ(EventLog(65).capacity(), 128u);
  EXPECT_EQ(EventLog().capacity(), std::size_t{1} << 16);
}

TEST(EventLogTest, AFullRingLosesNothingUntilItOverflows) {
  EventLog log(8);
  append(log, 0, 8);
  Recorder sink;
  EXPECT_EQ(log.drain(sink), 8u);
  EXPECT_EQ(sink.seen.back().kind, KvEventKind::kStored);
  EXPECT_EQ(log.lost(), 0u);
}

TEST(EventLogTest, ALossAtTheEndIsOneResyncBehindEverythingThatWasKept) {
  EventLog log(4);
  append(log, 0, 7);
  EXPECT_EQ(log.lost(), 3u);
  EXPECT_EQ(log.pending(), 4u);
  Recorder sink;
  EXPECT_EQ(log.drain(sink), 5u);
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "s2", "s3", "r7x3"}));
  EXPECT_EQ(log.drain(sink), 0u) << "a loss is told once";
  append(log, 7, 1);
  log.drain(sink);
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "s2", "s3", "r7x3", "s7"}));
}

TEST(EventLogTest, ALossIsToldInFrontOfTheNextEventThatIsKept) {
  EventLog log(4);
  append(log, 0, 6);
  bool first = true;
  Recorder sink([&](Recorder&) {
    if (std::exchange(first, false)) append(log, 6, 2);  // the ring has room again, the loss is not told yet
  });
  log.drain(sink);
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "s2", "s3", "r6x2", "s6", "s7"}));
}

TEST(EventLogTest, ALossBehindAResyncIsAnotherResync) {
  EventLog log(2);
  append(log, 0, 3);
  bool first = true;
  Recorder sink([&](Recorder&) {
    if (std::exchange(first, false))
      append(log, 3, 2);  // room for the resync and one event; the other is lost
  });
  log.drain(sink);
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "r3x1", "s3", "r5x1"}));
  EXPECT_EQ(log.lost(), 2u);
}

TEST(EventLogTest, TheResyncMayTakeTheLastPlaceAndCostTheNextEvent) {
  EventLog log(2);
  append(log, 0, 3);
  int call = 0;
  Recorder sink([&](Recorder&) {
    if (++call == 1) append(log, 3, 1);
    if (call == 2) append(log, 4, 3);
  });
  log.drain(sink);
  expect_no_silent_hole(sink.seen);
  EXPECT_EQ(sink.seen.back().kind, KvEventKind::kResync);
  EXPECT_EQ(log.next_sequence(), 7u);
}

TEST(EventLogTest, RepeatedOverflowIsCountedInFull) {
  EventLog log(4);
  Recorder sink;
  std::uint64_t next = 0;
  std::uint64_t told = 0;
  for (int round = 0; round < 50; ++round) {
    append(log, next, 9);
    next += 9;
    log.drain(sink);
  }
  for (const KvEvent& event : sink.seen) told += event.kind == KvEventKind::kResync ? event.block : 0;
  expect_no_silent_hole(sink.seen);
  EXPECT_EQ(told, log.lost());
  EXPECT_EQ(sink.seen.size(), 50u * 5);
}

TEST(EventLogTest, DeliversLargeBacklogsInSeveralBatches) {
  EventLog log(4096);
  append(log, 0, 1000);
  Recorder sink;
  EXPECT_EQ(log.drain(sink), 1000u);
  EXPECT_GT(sink.calls, 1);
  ASSERT_EQ(sink.seen.size(), 1000u);
  expect_no_silent_hole(sink.seen);
}

TEST(EventLogTest, ADrainInsideASinkReturnsAtOnceAndTheOuterOneDelivers) {
  EventLog log(16);
  append(log, 0, 2);
  Recorder inner;
  std::size_t inner_delivered = 99;
  bool first = true;
  Recorder sink([&](Recorder&) {
    if (!std::exchange(first, false)) return;
    append(log, 2, 2);
    inner_delivered = log.drain(inner);
  });
  EXPECT_EQ(log.drain(sink), 4u);
  EXPECT_EQ(inner_delivered, 0u);
  EXPECT_TRUE(inner.seen.empty());
  EXPECT_EQ(story(sink.seen), (Story{"s0", "s1", "s2", "s3"}));
}

TEST(EventLogTest, ASecondDrainIsTurnedAwayWhileOneRuns) {
  EventLog log(16);
  append(log, 0, 1);
  std::atomic<bool> inside{false};
  std::atomic<bool> go_on{false};
  Recorder slow([&](Recorder& self) {
    if (self.calls > 1) return;
    inside.store(true);
    inside.notify_all();
    go_on.wait(false);
  });
  std::thread first([&] { log.drain(slow); });
  inside.wait(false);
  append(log, 1, 3);
  Recorder second;
  EXPECT_EQ(log.drain(second), 0u);
  EXPECT_TRUE(second.seen.empty());
  go_on.store(true);
  go_on.notify_all();
  first.join();
  EXPECT_EQ(slow.seen.size(), 4u) << "the running drain delivers what came meanwhile";
}

// Two drains meet, one of them right after an append. Whoever is turned away may rely on the other: when both
// have returned, nothing is left behind.
TEST(EventLogTest, NoEventIsLeftBehindWhenDrainsMeet) {
  constexpr std::uint64_t kRounds = 20000;
  EventLog log(64);
  Recorder sink;  // drains never overlap, so one recorder is enough for both
  std::barrier<> meet(2);
  std::thread other([&] {
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      meet.arrive_and_wait();
      log.drain(sink);
      meet.arrive_and_wait();
    }
  });
  std::uint64_t left_behind = 0;
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    log.append(event_of(2 * round));
    meet.arrive_and_wait();
    log.append(event_of(2 * round + 1));
    log.drain(sink);
    meet.arrive_and_wait();
    left_behind += log.pending();
    log.drain(sink);
  }
  other.join();
  EXPECT_EQ(left_behind, 0u);
  EXPECT_EQ(log.lost(), 0u);
  ASSERT_EQ(sink.seen.size(), 2 * kRounds);
  expect_no_silent_hole(sink.seen);
}

TEST(EventLogTest, AConsumerThatIsTooSlowSeesEveryHoleAnnounced) {
  constexpr std::uint64_t kEvents = 200000;
  EventLog log(8);
  Recorder sink;
  std::atomic<bool> done{false};
  std::thread producer([&] {
    append(log, 0, kEvents);
    done.store(true, std::memory_order_release);
  });
  while (!done.load(std::memory_order_acquire)) log.drain(sink);
  producer.join();
  log.drain(sink);
  EXPECT_EQ(log.pending(), 0u);
  EXPECT_EQ(log.next_sequence(), kEvents);
  expect_no_silent_hole(sink.seen);
  std::uint64_t stored = 0;
  for (const KvEvent& event : sink.seen) stored += event.kind == KvEventKind::kStored ? 1 : 0;
  EXPECT_EQ(stored + log.lost(), kEvents);
}

TEST(EventLogTest, WhatASinkThrowsAtIsALossThatTheNextDrainTells) {
  class Refusing final : public EventSink {
   public:
    void on_events(std::span<const KvEvent> events) override {
      if (refuse) throw std::runtime_error("not now");
      seen.insert(seen.end(), events.begin(), events.end());
    }
    bool refuse = true;
    std::vector<KvEvent> seen;
  };
  EventLog log(8);
  append(log, 0, 2);
  Refusing sink;
  EXPECT_THROW(log.drain(sink), std::runtime_error);
  append(log, 2, 1);
  sink.refuse = false;
  EXPECT_EQ(log.drain(sink), 2u);
  EXPECT_EQ(story(sink.seen), (Story{"r3x2", "s2"}));
}

}  // namespace
}  // namespace ashlar::events
