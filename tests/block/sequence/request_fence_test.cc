// Steps that are applied when they are launched: what requests, sequences and guards return while a step
// still runs waits for its fence, and a step that fails takes the names of its blocks along.
#include <gtest/gtest.h>

#include <chrono>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/block/sequence_manager.h"
#include "block/sequence/request_fixture.h"

namespace ashlar::block::support {
namespace {

using namespace std::chrono_literals;

class Story final : public events::EventSink {
 public:
  void on_events(std::span<const events::KvEvent> events) override {
    for (const events::KvEvent& event : events)
      words +=
          (event.kind == events::KvEventKind::kStored ? "+" : "-") + std::to_string(event.hash.position());
  }
  std::string words;
};

class RequestFenceTest : public ::testing::Test {
 protected:
  Request request_of(std::uint32_t first, std::size_t count, std::vector<CacheGroup> groups = {}) {
    return value_of(Request::create(manager_, tokens_from(first, count), {.groups = std::move(groups)}));
  }
  // A prefill that is applied at its launch. Returns what says that it has ended.
  static FenceSignal launched(Request& request, std::uint32_t next = 500) {
    auto [fence, signal] = Fence::create();
    value_of(request.schedule_prefill(request.tokens_to_compute()));
    request.set_written_after(fence);
    value_of(request.apply_prefill(Token(next)));
    return std::move(signal);
  }
  std::size_t cached(std::uint32_t first, std::size_t count) {
    Request probe = request_of(first, count);
    return value_of(probe.match_prefix());
  }
  Places at() const { return places(manager_); }
  std::string news() {
    Story story;
    log_->drain(story);
    return std::move(story.words);
  }
  // Nobody gets a block that waits; a waiting allocation gets it when the fence has settled.
  void expect_kept_until(const std::function<void()>& settle) {
    const std::size_t free = manager_.available_blocks();
    ASSERT_LT(free, 8u);
    const auto refused = manager_.allocate_blocks(free + 1);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().reason, Reason::kNoRoom);
    std::thread waits(
        [&] { EXPECT_EQ(value_of(manager_.try_allocate_until(8, Clock::real().now() + 1h)).size(), 8u); });
    while (manager_.status().waiters == 0) std::this_thread::yield();
    settle();
    waits.join();
    EXPECT_EQ(at(), (Places{.reset = 8}));
  }

  std::shared_ptr<events::EventLog> log_ = std::make_shared<events::EventLog>(1 << 10);
  Manager manager_ = value_of(builder_of(8).event_log(log_).build());
};

TEST_F(RequestFenceTest, EveryEndOfARequestWaitsForItsStep) {
  const std::vector<std::function<void(std::optional<Request>&)>> ends = {
      [](auto& request) { request->release(); },
      [](auto& request) { request.reset(); },
      [](auto& request) { request->preempt().value(); },
      [](auto& request) {
        Batch batch;
        batch.add(*request);
        batch.release();
      },
      [](auto& request) { request->release_after(Fence::passed_already()); },
  };
  for (std::size_t i = 0; i < ends.size(); ++i) {
    std::optional<Request> request = request_of(0, 10);
    FenceSignal signal = launched(*request);
    ends[i](request);
    EXPECT_EQ(at(), (Places{.reset = 5, .active = 2, .owned = 1})) << i;
    EXPECT_EQ(cached(0, 10), 8u) << "who follows in the stream may share them";
    expect_kept_until([&] { std::move(signal).signal(); });
  }
}

TEST_F(RequestFenceTest, ASequenceWaitsForTheStepThatComputesIt) {
  const SequenceManager<G1> sequences(manager_);
  for (const bool dropped : {false, true}) {
    auto [fence, signal] = Fence::create();
    {
      auto sequence = value_of(sequences.make_sequence(tokens_from(0, 10)));
      value_of(sequences.allocate(sequence));
      EXPECT_EQ(value_of(sequences.computed(sequence, 10, fence)), 2u);
      if (!dropped) sequences.deallocate(sequence).value();
    }
    EXPECT_EQ(at(), (Places{.reset = 5, .active = 2, .owned = 1}));
    expect_kept_until([&] { std::move(signal).signal(); });
  }
}

TEST_F(RequestFenceTest, BlocksThatLeaveTheirWindowAreStillRead) {
  Request request = request_of(0, 16, {CacheGroup::sliding_window(4)});
  FenceSignal signal = launched(request);
  EXPECT_EQ(request.block_table()[2], kNoBlock);
  EXPECT_EQ(at(), (Places{.reset = 4, .active = 4}));
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 4, .inactive = 3, .active = 1}));
}

TEST_F(RequestFenceTest, BlocksOfRefusedDraftsAreStillWritten) {
  Request request = request_of(0, 3);
  value_of(request.schedule_prefill(3));
  value_of(request.apply_prefill(Token(3)));
  auto [fence, signal] = Fence::create();
  value_of(request.schedule_speculative(12));
  request.set_written_after(fence);
  value_of(request.apply_speculative(tokens_of({70, 71})));
  EXPECT_EQ(table_of(request).size(), 2u);
  EXPECT_EQ(at(), (Places{.reset = 4, .active = 1, .owned = 3})) << "two are the step's";
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 6, .active = 1, .owned = 1}));
}

TEST_F(RequestFenceTest, ARevertedStepNeverRan) {
  Request request = request_of(0, 6);
  FenceSignal signal = launched(request);
  value_of(request.schedule_speculative(12));
  request.revert().value();
  EXPECT_EQ(at(), (Places{.reset = 6, .active = 1, .owned = 1}));
  std::move(signal).signal();
}

TEST_F(RequestFenceTest, TheSourceOfACopyIsStillRead) {
  Request request = request_of(0, 6);
  value_of(request.schedule_prefill(6));
  value_of(request.apply_prefill(Token(6)));
  Request fork = value_of(request.fork());
  auto [fence, signal] = Fence::create();
  ASSERT_EQ(value_of(fork.schedule_decode()).copies.size(), 1u);
  fork.set_written_after(fence);
  value_of(fork.apply_decode(Token(7)));
  request.release();
  EXPECT_EQ(at(), (Places{.reset = 5, .active = 1, .owned = 2}));
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 6, .active = 1, .owned = 1}));
}

TEST_F(RequestFenceTest, StepsInFlightWaitEachForItsOwn) {
  Request request = request_of(0, 16, {CacheGroup::sliding_window(4)});
  FenceSignal first = launched(request);
  value_of(request.schedule_decode());
  auto [fence, second] = Fence::create();
  Batch batch;
  batch.add(request);
  batch.set_written_after(fence);
  value_of(batch.apply_decode(tokens_of({501})));
  request.release();
  EXPECT_EQ(at(), (Places{.reset = 3, .active = 4, .owned = 1}));
  std::move(first).signal();
  EXPECT_EQ(at(), (Places{.reset = 3, .inactive = 3, .active = 1, .owned = 1}));
  std::move(second).signal();
  EXPECT_EQ(at(), (Places{.reset = 4, .inactive = 4}));
}

TEST_F(RequestFenceTest, AReplacedCandidateIsInQuarantine) {
  manager_ = value_of(builder_of(8).duplicate_policy(DuplicatePolicy::kReject).build());
  Request first = request_of(0, 10);
  value_of(first.schedule_prefill(10));
  value_of(first.apply_prefill(Token(1)));
  for (const bool passes : {true, false}) {
    Request second = request_of(0, 10);
    auto [fence, signal] = Fence::create();
    value_of(second.schedule_prefill(10));
    second.set_written_after(fence);
    EXPECT_EQ(value_of(second.apply_prefill(Token(1))).replaced, 2u);
    EXPECT_EQ(at(), (Places{.reset = 2, .active = 2, .owned = 2, .quarantined = 2}));
    EXPECT_FALSE(manager_.allocate_blocks(3));
    passes ? std::move(signal).signal() : std::move(signal).fail();
    EXPECT_EQ(at(), (Places{.reset = 4, .active = 2, .owned = 2}));
    EXPECT_EQ(cached(0, 10), 8u) << "another wrote those that took their place";
  }
}

// ---- steps that fail

TEST_F(RequestFenceTest, AFailedStepTakesItsNamesAlong) {
  Request request = request_of(0, 4);
  std::move(launched(request, 4)).signal();
  value_of(request.schedule_decode());
  auto [fence, signal] = Fence::create();
  value_of(request.apply_decode(Token(5)));
  request.set_written_after(fence);
  for (std::uint32_t next = 6; next < 10; ++next) {
    value_of(request.schedule_decode());
    value_of(request.apply_decode(Token(next)));
  }
  EXPECT_EQ(news(), "+0+1");
  Request sharer = request_of(0, 10);
  EXPECT_EQ(value_of(sharer.match_prefix()), 8u);
  const SequenceHash lost = sharer.sequence_hashes()[1];
  std::move(signal).fail();
  EXPECT_EQ(news(), "-1");
  EXPECT_EQ(cached(0, 10), 4u) << "what an earlier step wrote stays";
  EXPECT_FALSE(manager_.describe(lost));
  EXPECT_EQ(at(), (Places{.reset = 5, .active = 2, .owned = 1})) << "who has it keeps it";
  Request again = request_of(0, 8);
  value_of(again.match_prefix());
  std::move(launched(again)).signal();
  EXPECT_EQ(cached(0, 10), 8u) << "it may be computed again";
  EXPECT_EQ(news(), "+1");
  request.release();
  sharer.release();
  EXPECT_EQ(at(), (Places{.reset = 6, .active = 2})) << "their block is empty";
}

TEST_F(RequestFenceTest, WhatIsReturnedBeforeItsStepFailsIsEmpty) {
  Request request = request_of(0, 10);
  FenceSignal signal = launched(request);
  request.release();
  std::move(signal).fail();
  EXPECT_EQ(news(), "+0+1-1-0") << "children first";
  EXPECT_EQ(at(), (Places{.reset = 8}));
  Request next = request_of(0, 10);
  auto [fence, failed] = Fence::create();
  std::move(failed).fail();
  value_of(next.schedule_prefill(10));
  next.set_written_after(fence);
  EXPECT_EQ(value_of(next.apply_prefill(Token(1))).registered, 2u);
  EXPECT_EQ(cached(0, 10), 0u) << "it had failed before";
  next.release();
  EXPECT_EQ(at(), (Places{.reset = 8}));
}

// The manager of a fence that is abandoned can never be destroyed.
TEST(AbandonedStepTest, ItsBlocksLoseTheirNamesAndNeverReturn) {
  static auto* const managers = new std::deque<Manager>;
  Manager& manager =
      managers->emplace_back(value_of(builder_of(16).duplicate_policy(DuplicatePolicy::kReject).build()));
  Request good = value_of(Request::create(manager, tokens_from(100, 4)));
  value_of(good.schedule_prefill(4));
  value_of(good.apply_prefill(Token(1)));
  Request request = value_of(Request::create(manager, tokens_from(0, 10)));
  Request twin = value_of(Request::create(manager, tokens_from(100, 4)));
  {
    const auto [fence, signal] = Fence::create();
    for (Request* const each : {&request, &twin}) {
      value_of(each->schedule_prefill(each->tokens_to_compute()));
      each->set_written_after(fence);
      value_of(each->apply_prefill(Token(1)));
    }
    request.release();
  }
  Request probe = value_of(Request::create(manager, tokens_from(0, 10)));
  EXPECT_EQ(value_of(probe.match_prefix()), 0u);
  EXPECT_EQ(places(manager), (Places{.reset = 11, .active = 3, .owned = 1, .quarantined = 1}));
  twin.release();
  good.release();
  EXPECT_EQ(places(manager), (Places{.reset = 11, .active = 3, .owned = 1, .quarantined = 1}));
}

TEST_F(RequestFenceTest, ASequenceRegisteredAtOnceThatIsDroppedUnwrittenIsEmpty) {
  struct Nobody final : BlockObserver {
  } nobody;
  Manager manager = manager_of(8);
  manager.observe(nobody);
  const SequenceManager<G1> sequences(manager, {.register_blocks = RegisterBlocks::kAtOnce});
  {
    auto sequence = value_of(sequences.make_sequence(tokens_from(0, 10)));
    value_of(sequences.allocate(sequence));
    sequence.append(Token(11));
    value_of(sequences.may_append(sequence));  // the step before has ended
    sequence.append(Token(12));
    value_of(sequences.may_append(sequence));
    EXPECT_TRUE(sequence.block(2).registered);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 6, .inactive = 2}));
}

// ---- guards

class WrittenBlocksTest : public RequestFenceTest {
 protected:
  Immutable written(const Fence& after, std::size_t which = 0) {
    BlockList<Complete> blocks;
    blocks.push_back(complete_one(manager_, sequence_.blocks()[which]));
    return value_of(manager_.register_blocks(std::move(blocks), {.after = {after}})).take_back();
  }
  SequenceHash name(std::size_t which = 0) const { return sequence_.blocks()[which].sequence_hash(); }

  TokenSequence sequence_ = sequence_of(3);
};

TEST_F(WrittenBlocksTest, ABlockIsInUseUntilItIsWritten) {
  auto [fence, signal] = Fence::create();
  static_cast<void>(written(fence));
  EXPECT_EQ(at(), (Places{.reset = 7, .active = 1}));
  EXPECT_EQ(manager_.reset_inactive_pool(), 0u);
  std::move(signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 7, .inactive = 1}));
  static_cast<void>(written(fence, 1));
  EXPECT_EQ(at(), (Places{.reset = 6, .inactive = 2})) << "it was";
}

TEST_F(WrittenBlocksTest, EveryBlockMayHaveAFenceOfItsOwn) {
  auto [first, first_signal] = Fence::create();
  auto [second, second_signal] = Fence::create();
  BlockList<Complete> blocks;
  for (std::size_t i = 0; i < 3; ++i) blocks.push_back(complete_one(manager_, sequence_.blocks()[i]));
  static_cast<void>(value_of(manager_.register_blocks(std::move(blocks), {.after = {first, second, first}})));
  EXPECT_EQ(at(), (Places{.reset = 5, .active = 3}));
  std::move(second_signal).fail();
  EXPECT_EQ(at(), (Places{.reset = 6, .active = 2}));
  std::move(first_signal).signal();
  EXPECT_EQ(at(), (Places{.reset = 6, .inactive = 2}));
  EXPECT_EQ(manager_.match_blocks(sequence_.sequence_hashes()).size(), 1u);
}

TEST_F(WrittenBlocksTest, AGuardOutlivesTheNameOfItsBlock) {
  auto [fence, signal] = Fence::create();
  Immutable block = written(fence);
  const auto weak = block.downgrade();
  std::move(signal).fail();
  EXPECT_EQ(block.sequence_hash(), name());
  EXPECT_EQ(block.use_count(), 1u);
  EXPECT_FALSE(weak.upgrade());
  EXPECT_EQ(block.pin(1h).error().code(), ErrorCode::kNotFound);
  EXPECT_EQ(manager_.hold(name()).error().code(), ErrorCode::kNotFound);
  EXPECT_TRUE(block.set_retention({.priority = 90}));
  EXPECT_EQ(block.registration_handle().sequence_hash(), name());
  const BlockDescription told = value_of(manager_.describe(block.block_id()));
  EXPECT_EQ(told.references, 1u);
  EXPECT_TRUE(told.tiers.empty());
  block.set_reset_on_release(false);
  Immutable copy = block;
  block = Immutable();
  EXPECT_EQ(at(), (Places{.reset = 7, .active = 1}));
  copy = Immutable();
  EXPECT_EQ(at(), (Places{.reset = 8}));
}

TEST_F(WrittenBlocksTest, PinsAndHoldsKeepTheBytesNotTheName) {
  auto [fence, signal] = Fence::create();
  Immutable block = written(fence);
  std::optional<Pin> pin = value_of(block.pin(1h));
  std::optional<Hold> hold = value_of(manager_.hold(name()));
  std::move(signal).fail();
  EXPECT_FALSE(manager_.describe(name()));
  block = Immutable();
  EXPECT_EQ(at(), (Places{.reset = 7, .pinned = 1}));
  pin.reset();
  EXPECT_EQ(at(), (Places{.reset = 7, .held = 1}));
  hold.reset();
  EXPECT_EQ(at(), (Places{.reset = 8}));
}

TEST_F(WrittenBlocksTest, AnotherBlockOfTheNameTakesItsPlace) {
  auto [fence, signal] = Fence::create();
  auto [later, later_signal] = Fence::create();
  Immutable good = store_one(manager_, sequence_.blocks()[0]);
  const Immutable bad = written(fence);
  const Immutable worse = written(later);
  EXPECT_EQ(manager_.match_blocks(std::vector{name()})[0].block_id(), worse.block_id());
  std::move(later_signal).fail();
  EXPECT_EQ(at(), (Places{.reset = 5, .active = 3}));
  std::move(signal).fail();
  EXPECT_EQ(manager_.match_blocks(std::vector{name()})[0].block_id(), good.block_id());
  EXPECT_EQ(news(), "+0") << "the name was there all the time";
  good = Immutable();
  EXPECT_EQ(at(), (Places{.reset = 5, .inactive = 1, .active = 2}));
}

TEST_F(WrittenBlocksTest, TheRegistryKnowsTheOtherTiers) {
  const BlockRegistry registry = make_registry();
  Manager manager = manager_of(4, registry);
  BlockManager<G2> host = manager_of<G2>(4, registry);
  const BlockList<ImmutableBlock<G2>> below = store_all(host, sequence_);
  auto [fence, signal] = Fence::create();
  BlockList<Complete> blocks;
  for (std::size_t i = 0; i < 3; ++i) blocks.push_back(complete_one(manager, sequence_.blocks()[i]));
  auto mine = value_of(manager.register_blocks(std::move(blocks), {.after = {fence}}));
  std::move(signal).fail();
  EXPECT_EQ(host.match_blocks(sequence_.sequence_hashes()).size(), 3u);
  EXPECT_TRUE(manager.match_blocks(sequence_.sequence_hashes()).empty());
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 3}));
  mine.clear();
  EXPECT_EQ(places(manager), (Places{.reset = 4}));
  EXPECT_EQ(places(host), (Places{.reset = 1, .active = 3}));
}

}  // namespace
}  // namespace ashlar::block::support
