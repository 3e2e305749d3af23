// Registration in a full pool, while callbacks use the manager as hard as they can: the blocks of the request
// that is being registered are neither freed nor evicted nor handed out again.
//
// Under kReject a registration gives candidates back, and callbacks run inside it. Under kAllow it leaves as
// much room as there was: room is made, and callbacks run, when the blocks of a hash become fewer.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/testing/event_sinks.h"
#include "block/sequence/sequence_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

class RegistrationReentrancyTest : public ::testing::TestWithParam<DuplicatePolicy> {
 protected:
  // What a callback does: empties the cache, takes every block that is left and keeps it, looks around,
  // drains.
  class Vandal {
   public:
    explicit Vandal(RegistrationReentrancyTest& test) : test_(test) {}
    void act() {
      if (busy_ || test_.manager_ == nullptr) return;
      busy_ = true;
      ++calls;
      Manager& manager = *test_.manager_;
      emptied += manager.reset_inactive_pool();
      if (auto blocks = manager.allocate_blocks(manager.available_blocks())) {
        for (Mutable& block : *blocks) held.push_back(std::move(block));
      }
      for (const auto& names : test_.names_) {
        const Blocks found = manager.match_blocks(names);
        matched = std::max(matched, found.size());
      }
      test_.log_->drain(test_.recorder_);
      busy_ = false;
    }
    std::size_t calls = 0;
    std::size_t emptied = 0;
    std::size_t matched = 0;
    std::vector<Mutable> held;

   private:
    RegistrationReentrancyTest& test_;
    bool busy_ = false;
  };

  // The vandal is loose while this lives; what it holds goes back at the end.
  class Loose {
   public:
    Loose(RegistrationReentrancyTest& test, Manager& manager) : test_(test) { test.manager_ = &manager; }
    Loose(const Loose&) = delete;
    Loose& operator=(const Loose&) = delete;
    ~Loose() {
      test_.manager_->check_invariants();
      test_.manager_ = nullptr;
      test_.vandal_.held.clear();
    }

   private:
    RegistrationReentrancyTest& test_;
  };

  // Pressure starts and ends at `mark` available blocks.
  Manager build(std::uint32_t blocks, std::size_t mark) {
    return value_of(builder_of(blocks, registry_)
                        .duplicate_policy(GetParam())
                        .event_log(log_)
                        .watermarks({mark, mark}, [this](Pressure, std::size_t) { vandal_.act(); })
                        .build());
  }
  bool reject() const { return GetParam() == DuplicatePolicy::kReject; }

  // How many refer to the primary of a name that is in use.
  std::uint32_t uses(const SequenceHash& name) {
    const Blocks found = manager_->match_blocks(std::span(&name, 1));
    return found.empty() ? 0 : found[0].use_count() - 1;
  }
  Ids held_ids() const { return ids_of(vandal_.held); }

  std::shared_ptr<events::EventLog> log_ = std::make_shared<events::EventLog>(1 << 10);
  testing::EventRecorder recorder_;
  BlockRegistry registry_ = make_registry();
  Manager* manager_ = nullptr;  // what the vandal may use
  std::vector<std::vector<SequenceHash>> names_;
  Vandal vandal_{*this};
};

TEST_P(RegistrationReentrancyTest, ComputedOfDuplicatesOfARunningRequest) {
  Manager manager = build(6, 1);
  const Sequences sequences(manager);
  const auto prompt = tokens_from(0, 8);
  auto first = computed(sequences, prompt);
  auto second = value_of(sequences.make_sequence(prompt));
  EXPECT_EQ(value_of(sequences.allocate(second)), 4u);
  const auto other = started(sequences, tokens_from(100, 12));  // the pool is full
  ASSERT_EQ(places(manager), (Places{.active = 2, .owned = 4}));
  names_.push_back(names_of(prompt));
  const Loose loose(*this, manager);

  EXPECT_EQ(value_of(sequences.computed(second, 8)), 1u);
  EXPECT_EQ(vandal_.emptied, 0u);
  EXPECT_EQ(uses(names_[0][0]), 2u);
  EXPECT_EQ(uses(names_[0][1]), reject() ? 2u : 1u) << "the two sequences, or the second alone";
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1));
  if (reject()) {
    EXPECT_EQ(vandal_.calls, 1u) << "the candidate made room, and the vandal took it";
    EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1));
    EXPECT_THAT(held_ids(), ElementsAre(2));
  } else {
    EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 2));
    EXPECT_THAT(held_ids(), IsEmpty());
  }
  manager.check_invariants();
  EXPECT_TRUE(sequences.deallocate(first).has_value());
  EXPECT_EQ(uses(names_[0][0]), 1u);
  manager.check_invariants();
}

TEST_P(RegistrationReentrancyTest, ComputedOfCachedBlocks) {
  Manager manager = build(7, 1);
  const Sequences sequences(manager);
  const auto prompt = tokens_from(0, 12);
  auto second = started(sequences, prompt);  // 0 1 2, computed before it could hit
  {
    const auto first = computed(sequences, tokens_from(0, 8));
  }  // 3 4, cached now
  const auto other = started(sequences, tokens_from(100, 8));
  ASSERT_EQ(places(manager), (Places{.inactive = 2, .owned = 5}));
  names_.push_back(names_of(prompt));
  const Loose loose(*this, manager);

  EXPECT_EQ(value_of(sequences.computed(second, 12)), 3u);
  EXPECT_EQ(ids(second.block_table()), reject() ? (Ids{3, 4, 2}) : (Ids{0, 1, 2}));
  EXPECT_EQ(vandal_.calls, 0u) << "one block of each hash was emptied, and as many were available before";
  for (const SequenceHash& name : names_[0]) EXPECT_EQ(uses(name), 1u);
  vandal_.act();
  EXPECT_EQ(vandal_.emptied, 0u) << "no block of the hashes is left in the cache";
  EXPECT_EQ(vandal_.matched, 3u);
  EXPECT_THAT(held_ids(), reject() ? UnorderedElementsAre(0, 1) : UnorderedElementsAre(3, 4));
  EXPECT_EQ(present(manager, names_[0]), 3u);
  manager.check_invariants();
}

TEST_P(RegistrationReentrancyTest, ApplyPrefillInAFullPool) {
  Manager manager = build(6, 1);
  const auto prompt = tokens_from(0, 12);
  auto first = value_of(Request::create(manager, prompt));
  auto second = value_of(Request::create(manager, prompt));
  EXPECT_TRUE(first.schedule_prefill(12).has_value());
  EXPECT_TRUE(second.schedule_prefill(12).has_value());
  ASSERT_EQ(places(manager), (Places{.owned = 6}));
  names_.push_back(names_of(prompt));
  const Loose loose(*this, manager);

  EXPECT_EQ(value_of(first.apply_prefill(Token(12))).registered, 3u);
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1, 2));
  const StepOutcome outcome = value_of(second.apply_prefill(Token(12)));
  EXPECT_EQ(outcome.replaced, reject() ? 3u : 0u);
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1, 2));
  EXPECT_EQ(ids(second.block_table()), reject() ? (Ids{0, 1, 2}) : (Ids{3, 4, 5}));
  EXPECT_EQ(held_ids(), reject() ? (Ids{3, 4, 5}) : Ids{});
  for (const SequenceHash& name : names_[0]) EXPECT_EQ(uses(name), reject() ? 2u : 1u);
  manager.check_invariants();

  second.release();
  EXPECT_THAT(held_ids(), UnorderedElementsAre(3, 4, 5))
      << "what nobody refers to any more, and nothing else";
  EXPECT_EQ(vandal_.calls, 1u);
  EXPECT_EQ(vandal_.emptied, 0u);
  EXPECT_EQ(vandal_.matched, 3u);
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1, 2));
  for (const SequenceHash& name : names_[0]) EXPECT_EQ(uses(name), 1u);
  manager.check_invariants();
}

TEST_P(RegistrationReentrancyTest, DecodeStepsInAFullPool) {
  Manager manager = build(4, 1);
  Request first = prefilled(manager, tokens_from(0, 6), {}, 6);
  Request second = prefilled(manager, tokens_from(0, 6), {}, 6);  // shares the first block
  const auto other = take_one(manager);
  ASSERT_EQ(places(manager), (Places{.active = 1, .owned = 3}));
  names_.push_back(names_of(tokens_from(0, 8)));
  const Loose loose(*this, manager);
  for (std::uint32_t token = 7; token <= 8; ++token) {
    for (Request* each : {&first, &second}) {
      ASSERT_TRUE(each->schedule_decode().has_value());
      ASSERT_TRUE(each->apply_decode(Token(token)).has_value());
      manager.check_invariants();
    }
  }
  EXPECT_EQ(first.computed_tokens(), 8u);
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1));
  EXPECT_EQ(ids(second.block_table()), reject() ? (Ids{0, 1}) : (Ids{0, 2}));
  EXPECT_EQ(uses(names_[0][1]), reject() ? 2u : 1u);
  EXPECT_EQ(held_ids(), reject() ? Ids{2} : Ids{});

  second.release();
  EXPECT_THAT(held_ids(), ElementsAre(2));
  EXPECT_EQ(vandal_.calls, 1u);
  EXPECT_EQ(vandal_.emptied, 0u);
  EXPECT_THAT(ids(first.block_table()), ElementsAre(0, 1));
  for (const SequenceHash& name : names_[0]) EXPECT_EQ(uses(name), 1u);
  manager.check_invariants();
}

TEST_P(RegistrationReentrancyTest, AtOnceRegistersWhileTheRestIsBeingTaken) {
  Manager manager = build(4, 1);
  const Sequences sequences(
      manager, {.hasher = {}, .register_blocks = RegisterBlocks::kAtOnce, .reuse_last_token = false});
  const auto prompt = tokens_from(0, 8);
  {
    const auto first = started(sequences, prompt);
  }
  names_.push_back(names_of(prompt));
  const Loose loose(*this, manager);
  auto second = value_of(sequences.make_sequence(joined(prompt, tokens_from(50, 8))));
  EXPECT_EQ(value_of(sequences.allocate(second)), 8u);
  EXPECT_THAT(ids(second.block_table()), ElementsAre(0, 1, 2, 3));
  EXPECT_EQ(vandal_.calls, 1u);
  EXPECT_EQ(vandal_.emptied, 0u);
  EXPECT_THAT(held_ids(), IsEmpty());
  EXPECT_EQ(present(manager, names_of(joined(prompt, tokens_from(50, 8)))), 4u);
  EXPECT_EQ(places(manager), (Places{.active = 4}));
}

// The touch callback of a hit runs while allocate() is at work. Whatever it takes away, allocate() either has
// all its blocks or none.
TEST_P(RegistrationReentrancyTest, ATouchCallbackTakesAllItCan) {
  Manager manager = build(6, 0);
  const Sequences sequences(manager);
  const auto prompt = tokens_from(0, 8);
  {
    const auto done = computed(sequences, prompt);
  }
  {
    const auto done = computed(sequences, tokens_from(100, 8));
  }
  const auto handle = registry_.register_sequence_hash(names_of(prompt)[0]);
  handle.on_touch([this](const RegistrationHandle&) { vandal_.act(); });
  const Loose loose(*this, manager);
  auto sequence = value_of(sequences.make_sequence(joined(prompt, tokens_from(50, 4))));
  const auto cached = sequences.allocate(sequence);
  EXPECT_EQ(vandal_.calls, 1u);
  EXPECT_EQ(present(manager, names_of(prompt)), 2u) << "the hits were in use";
  const Places at = places(manager);
  if (cached.has_value()) {
    EXPECT_EQ(*cached, 8u);
    EXPECT_EQ(sequence.block_table().size(), 3u);
    for (const std::uint32_t id : held_ids()) {
      EXPECT_THAT(ids(sequence.block_table()), ::testing::Not(::testing::Contains(id)));
    }
    EXPECT_EQ(at, (Places{.active = 2, .owned = 4}));
  } else {
    EXPECT_EQ(cached.error().reason, Why::kNoRoom);
    EXPECT_THAT(sequence.block_table(), IsEmpty());
    EXPECT_EQ(at, (Places{.inactive = 2, .owned = 4}));
  }
}

TEST_P(RegistrationReentrancyTest, AListenerThatMatchesWhatItHearsOf) {
  // A sink may use the manager that fills its log: here it takes and drops every block that is announced.
  Manager manager = build(4, 0);
  const Sequences sequences(manager);
  class Listener final : public events::EventSink {
   public:
    explicit Listener(Manager& manager) : manager_(manager) {}
    void on_events(std::span<const events::KvEvent> events) override {
      for (const events::KvEvent& event : events) {
        const Blocks found = manager_.match_blocks(std::span(&event.hash, 1));
        heard += found.size();
      }
    }
    std::size_t heard = 0;

   private:
    Manager& manager_;
  };
  Listener listener(manager);
  auto sequence = started(sequences, tokens_from(0, 16));
  for (std::size_t tokens = 4; tokens <= 16; tokens += 4) {
    EXPECT_EQ(value_of(sequences.computed(sequence, tokens)), 1u);
    log_->drain(listener);
    EXPECT_EQ(places(manager), (Places{.active = tokens / 4, .owned = 4 - tokens / 4}));
  }
  EXPECT_EQ(listener.heard, 4u);
  EXPECT_THAT(ids(sequence.block_table()), ElementsAre(0, 1, 2, 3));
}

// ---- callbacks that use other sequences of the same manager, on the thread of the call that they interrupt

class NestedSequencesTest : public ::testing::TestWithParam<DuplicatePolicy> {
 protected:
  Manager build(std::uint32_t blocks, std::size_t mark, std::string_view backend = "lru") {
    return value_of(builder_of(blocks)
                        .with_backend(backend)
                        .duplicate_policy(GetParam())
                        .watermarks({mark, mark}, [this](Pressure, std::size_t) { interrupt(); })
                        .build());
  }
  void interrupt() {
    if (!interruption_) return;
    ++interruptions_;
    std::exchange(interruption_, {})();
  }
  bool reject() const { return GetParam() == DuplicatePolicy::kReject; }

  std::function<void()> interruption_;  // runs once
  int interruptions_ = 0;
};

TEST_P(NestedSequencesTest, AllocateInsideAllocate) {
  Manager manager = build(8, 6);
  const Sequences sequences(manager);
  auto outer = value_of(sequences.make_sequence(tokens_from(0, 12)));
  auto inner = value_of(sequences.make_sequence(tokens_from(100, 8)));
  interruption_ = [&] { EXPECT_TRUE(sequences.allocate(inner).has_value()); };
  EXPECT_EQ(value_of(sequences.allocate(outer)), 0u);
  EXPECT_EQ(interruptions_, 1);
  EXPECT_THAT(ids(outer.block_table()), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids(inner.block_table()), ElementsAre(3, 4));
  EXPECT_EQ(places(manager), (Places{.reset = 3, .owned = 5}));
}

TEST_P(NestedSequencesTest, AllocateInsideMayAppend) {
  Manager manager = build(8, 6);
  const Sequences sequences(manager);
  auto outer = started(sequences, tokens_from(0, 8));
  auto inner = value_of(sequences.make_sequence(tokens_from(100, 12)));
  interruption_ = [&] { EXPECT_TRUE(sequences.allocate(inner).has_value()); };
  outer.append(Token(50));
  EXPECT_TRUE(value_of(sequences.may_append(outer)).new_block);
  EXPECT_EQ(interruptions_, 1);
  EXPECT_THAT(ids(outer.block_table()), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids(inner.block_table()), ElementsAre(3, 4, 5));
}

TEST_P(NestedSequencesTest, DeallocateInsideAllocate) {
  Manager manager = build(8, 4);
  const Sequences sequences(manager);
  auto victim = computed(sequences, tokens_from(100, 12));
  auto outer = value_of(sequences.make_sequence(tokens_from(0, 12)));
  interruption_ = [&] { EXPECT_TRUE(sequences.deallocate(victim).has_value()); };
  EXPECT_TRUE(sequences.allocate(outer).has_value());
  EXPECT_EQ(interruptions_, 1);
  EXPECT_THAT(ids(outer.block_table()), ElementsAre(3, 4, 5));
  EXPECT_EQ(places(manager), (Places{.reset = 2, .inactive = 3, .owned = 3}));
}

TEST_P(NestedSequencesTest, ComputedInsideComputedOrDeallocate) {
  // Under kReject the outer registration gives two blocks back and ends the pressure. Under kAllow that
  // happens when the outer sequence ends, and its blocks give way to those of its twin.
  Manager manager = build(44, 3);
  const Sequences sequences(manager);
  const auto prompt = tokens_from(0, 8);
  auto outer = started(sequences, prompt);
  auto twin = computed(sequences, prompt);
  auto inner = started(sequences, tokens_from(100, 4 * 38));
  ASSERT_EQ(manager.available_blocks(), 2u);
  interruption_ = [&] { EXPECT_EQ(value_of(sequences.computed(inner, inner.size())), 38u); };
  EXPECT_EQ(value_of(sequences.computed(outer, 8)), 2u);
  EXPECT_EQ(ids(outer.block_table()), reject() ? (Ids{2, 3}) : (Ids{0, 1}));
  EXPECT_EQ(interruptions_, reject() ? 1 : 0);
  EXPECT_TRUE(sequences.deallocate(outer).has_value());
  EXPECT_EQ(interruptions_, 1);
  EXPECT_THAT(ids(twin.block_table()), ElementsAre(2, 3));
  EXPECT_EQ(present(manager, names_of(prompt)), 2u);
  EXPECT_EQ(present(manager, names_of(tokens_from(100, 4 * 38))), 38u);
  EXPECT_EQ(places(manager), (Places{.reset = 4, .active = 40}));
}

TEST_P(NestedSequencesTest, ScheduleInsideSchedule) {
  Manager manager = build(8, 6);
  auto outer = value_of(Request::create(manager, tokens_from(0, 12)));
  auto inner = value_of(Request::create(manager, tokens_from(100, 8)));
  interruption_ = [&] { EXPECT_TRUE(inner.schedule_prefill(8).has_value()); };
  EXPECT_EQ(value_of(outer.schedule_prefill(12)).new_blocks, 3u);
  EXPECT_EQ(interruptions_, 1);
  EXPECT_THAT(ids(outer.block_table()), ElementsAre(0, 1, 2));
  EXPECT_THAT(ids(inner.block_table()), ElementsAre(3, 4));
}

TEST_P(NestedSequencesTest, PreemptInsideSchedule) {
  Manager manager = build(8, 4);
  Request victim = prefilled(manager, tokens_from(100, 12));
  auto outer = value_of(Request::create(manager, tokens_from(0, 12)));
  interruption_ = [&] { EXPECT_TRUE(victim.preempt().has_value()); };
  EXPECT_TRUE(outer.schedule_prefill(12).has_value());
  EXPECT_EQ(interruptions_, 1);
  EXPECT_TRUE(outer.apply_prefill(Token(12)).has_value());
  EXPECT_EQ(value_of(victim.resume()), 12u);
  EXPECT_EQ(places(manager), (Places{.reset = 2, .active = 6}));
}

TEST_P(NestedSequencesTest, ApplyInsideApplyLeavesTheOuterRetentionInPlace) {
  // The outer step completes a block that its twin has registered before, and gives back the blocks of
  // refused drafts. Under kReject its candidate makes room first, before the worth of the block is set.
  Manager manager = build(9, 1, "hashmap_priority");
  RequestOptions precious;
  precious.retention.prompt.push_back({.begin = 0, .end = {}, .priority = 90, .duration = {}});
  Request outer = prefilled(manager, tokens_from(0, 11), precious, 11);
  Request twin = prefilled(manager, tokens_from(0, 12));
  auto inner = value_of(Request::create(manager, tokens_from(100, 8)));
  EXPECT_TRUE(inner.schedule_prefill(8).has_value());
  EXPECT_EQ(value_of(outer.schedule_speculative(9)).new_blocks, 3u);
  ASSERT_EQ(manager.available_blocks(), 0u);
  interruption_ = [&] { EXPECT_EQ(value_of(inner.apply_prefill(Token(1))).registered, 2u); };
  const StepOutcome outcome = value_of(outer.apply_speculative(std::vector{Token(50)}));
  EXPECT_EQ(outcome.registered, 1u);
  EXPECT_EQ(outcome.replaced, reject() ? 1u : 0u);
  EXPECT_EQ(interruptions_, 1);
  EXPECT_EQ(outer.block_table().size(), 3u);
  twin.release();
  outer.release();
  inner.release();
  const auto victims = manager.eviction_candidates(9);
  const auto place = [&](const SequenceHash& name) {
    return std::find(victims.begin(), victims.end(), name) - victims.begin();
  };
  EXPECT_LT(place(names_of(tokens_from(100, 8))[0]), place(names_of(tokens_from(0, 12))[2]))
      << "what is worth more goes later, though it was released earlier";
}

INSTANTIATE_TEST_SUITE_P(Policies, NestedSequencesTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return std::string(tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject");
                         });

INSTANTIATE_TEST_SUITE_P(Policies, RegistrationReentrancyTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return std::string(tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject");
                         });

}  // namespace
}  // namespace ashlar::block
