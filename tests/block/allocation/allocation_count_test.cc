// Heap allocations of the block layer in the steady state: none, where the caller brings the memory for the
// results.
//
// This file replaces the global operator new of its program and counts. A warm-up comes first: slots make
// their partial state on first use, and the registry's tables grow to the number of hashes that are
// registered at once.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/testing/blocks.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/sequence_builder.h"
#include "support/counted_new.h"

namespace ashlar::block {
namespace {

using events::G1;

constexpr std::uint32_t kBlocks = 64;
constexpr std::uint32_t kBlockSize = 16;
constexpr KvReady kReady = KvReady::asserted_by_caller();

// How many allocations f() makes.
template <class F>
std::size_t allocations_of(F&& f) {
  const std::size_t before = g_allocations.load(std::memory_order_relaxed);
  f();
  return g_allocations.load(std::memory_order_relaxed) - before;
}

// Looks at events and keeps none.
class Blind final : public events::EventSink {
 public:
  void on_events(std::span<const events::KvEvent>) override {}
};

class AllocationCountTest : public ::testing::TestWithParam<std::string> {
 protected:
  AllocationCountTest() : log_(testing::make_event_log()), manager_(make()) {}

  BlockManager<G1> make() {
    ManagerOptions options = testing::manager_options(kBlocks, kBlockSize, GetParam());
    options.registry = testing::make_counting_registry();
    options.events = log_;
    options.watermarks = {8, 16};
    options.on_pressure = [](Pressure, std::size_t) {};
    return testing::make_manager<G1>(options);
  }

  // A prompt of its own, `blocks` long.
  static tokens::TokenSequence prompt(std::uint32_t number, std::size_t blocks) {
    return testing::SequenceBuilder().block_size(kBlockSize).iota(number * 10'000 + 1).blocks(blocks).build();
  }

  // Brings the sequence into the cache, registers it, gives it back.
  void serve(const tokens::TokenSequence& sequence) {
    const std::size_t n = sequence.blocks().size();
    mutables_.resize(n);
    completes_.resize(n);
    immutables_.resize(n);
    ASSERT_TRUE(manager_.allocate_blocks(std::span(mutables_)));
    for (std::size_t i = 0; i < n; ++i) {
      auto done = std::move(mutables_[i]).complete(sequence.blocks()[i], kReady);
      ASSERT_TRUE(done.has_value());
      completes_[i] = *std::move(done);
    }
    ASSERT_TRUE(manager_.register_blocks(std::span(completes_), std::span(immutables_)));
    ImmutableBlock<G1>::release(immutables_);
    log_->drain(sink_);
  }

  std::shared_ptr<events::EventLog> log_;
  Blind sink_;
  BlockManager<G1> manager_;
  std::vector<MutableBlock<G1>> mutables_;
  std::vector<CompleteBlock<G1>> completes_;
  std::vector<ImmutableBlock<G1>> immutables_;
};

TEST_P(AllocationCountTest, MatchCopyAndDropOfBlocksInUseAllocateNothing) {
  const auto sequence = prompt(1, 40);
  const auto names = sequence.sequence_hashes();
  const auto held = testing::fill(manager_, sequence);
  std::vector<ImmutableBlock<G1>> out(names.size());
  BlockList<ImmutableBlock<G1>> list;
  list.reserve(names.size());
  std::vector<ImmutableBlock<G1>> copies(names.size());
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 10; ++i) {
                ASSERT_EQ(manager_.match_blocks(names, std::span(out)), names.size());
                ASSERT_EQ(manager_.match_blocks(names, list), names.size());
                ASSERT_EQ(manager_.match_blocks_scattered(names, out), names.size());
                for (std::size_t at = 0; at < out.size(); ++at) copies[at] = out[at];
                for (auto& copy : copies) copy = {};
                ImmutableBlock<G1>::release(out);
                list.clear();
              }
            }),
            0u);
}

TEST_P(AllocationCountTest, MatchAndDropOfInactiveBlocksAllocateNothing) {
  const auto sequence = prompt(1, 40);
  const auto names = sequence.sequence_hashes();
  testing::fill(manager_, sequence).clear();
  std::vector<ImmutableBlock<G1>> out(names.size());
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 10; ++i) {
                ASSERT_EQ(manager_.match_blocks(names, std::span(out)), names.size());
                ImmutableBlock<G1>::release(out);
                ASSERT_EQ(manager_.match_blocks(names, std::span(out)), names.size());
                for (auto& guard : out) guard = {};
              }
            }),
            0u);
}

TEST_P(AllocationCountTest, AMissAllocatesNothing) {
  const auto names = prompt(7, 40).sequence_hashes();
  std::vector<ImmutableBlock<G1>> out(names.size());
  EXPECT_EQ(allocations_of([&] { ASSERT_EQ(manager_.match_blocks(names, std::span(out)), 0u); }), 0u);
}

TEST_P(AllocationCountTest, ServingNewPromptsWithEvictionAllocatesNothing) {
  // Four times as many distinct hashes as blocks, over and over.
  std::vector<tokens::TokenSequence> prompts;
  for (std::uint32_t i = 0; i < 4 * kBlocks / 8; ++i) prompts.push_back(prompt(i, 8));
  for (int round = 0; round < 2; ++round) {
    for (const auto& sequence : prompts) serve(sequence);
  }
  const ManagerCounters before = manager_.counters();
  EXPECT_EQ(allocations_of([&] {
              for (const auto& sequence : prompts) serve(sequence);
            }),
            0u);
  // Most orders have lost a prompt before it comes again; last in, first out keeps the first that came.
  EXPECT_GE(manager_.counters().evictions - before.evictions, 3 * kBlocks);
}

TEST_P(AllocationCountTest, PromptsThatWereNeverSeenAllocateNothingEither) {
  for (std::uint32_t i = 0; i < 64; ++i) serve(prompt(i, 8));
  std::vector<tokens::TokenSequence> fresh;
  for (std::uint32_t i = 100; i < 164; ++i) fresh.push_back(prompt(i, 8));
  EXPECT_EQ(allocations_of([&] {
              for (const auto& sequence : fresh) serve(sequence);
            }),
            0u);
}

TEST_P(AllocationCountTest, DuplicatesAndOutOfOrderRegistrationOfOneBlockAllocateNothing) {
  const auto sequence = prompt(1, 4);
  serve(sequence);
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 5; ++i) serve(sequence);
            }),
            0u);
}

TEST_P(AllocationCountTest, WeakUpgradeAllocatesNothing) {
  auto guard = testing::registered(manager_, testing::numbered_hash(1));
  const auto weak = guard.downgrade();
  EXPECT_EQ(allocations_of([&] {
              const auto another = guard.downgrade();
              ASSERT_TRUE(another.upgrade().has_value());
              ASSERT_TRUE(weak.upgrade().has_value());
              guard = {};
              ASSERT_TRUE(weak.upgrade().has_value());
            }),
            0u);
}

TEST_P(AllocationCountTest, PinsAllocateNothing) {
  auto guard = testing::registered(manager_, testing::numbered_hash(1));
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 5; ++i) {
                auto pin = guard.pin(std::chrono::hours(1));
                ASSERT_TRUE(pin.has_value() && pin->active());
                std::move(*pin).unpin();
              }
            }),
            0u);
}

TEST_P(AllocationCountTest, TokensOfAPartialBlockAllocateNothingOnceTheSlotWasUsed) {
  const SequenceStart start;
  const auto cycle = [&] {
    auto partial = std::move(mutables_[0]).init_sequence(start);
    ASSERT_TRUE(partial.has_value());
    for (std::uint32_t i = 0; i < kBlockSize; ++i)
      ASSERT_TRUE(partial->add_token(tokens::Token(i)).has_value());
    ASSERT_TRUE(partial->pop_tokens(3).has_value());
    ASSERT_TRUE(partial->add_token(tokens::Token(9)).has_value());
    auto scheduled = std::move(*partial).schedule();
    ASSERT_TRUE(scheduled.has_value());
    mutables_[0] = std::move(*scheduled).cancel().reset();
  };
  mutables_.resize(1);
  ASSERT_TRUE(manager_.allocate_blocks(std::span(mutables_)));
  cycle();
  EXPECT_EQ(allocations_of(cycle), 0u);
}

TEST_P(AllocationCountTest, NumbersAllocateNothing) {
  serve(prompt(1, 8));
  EXPECT_EQ(allocations_of([&] {
              ASSERT_EQ(manager_.status().inactive, 8u);
              ASSERT_EQ(manager_.available_blocks(), kBlocks);
              ASSERT_EQ(manager_.counters().registrations, 8u);
              ASSERT_FALSE(manager_.can_allocate(kBlocks + 1));
              ASSERT_TRUE(manager_.can_allocate(1));
            }),
            0u);
}

INSTANTIATE_TEST_SUITE_P(Backends, AllocationCountTest, ::testing::ValuesIn(eviction_names()),
                         [](const auto& tested) { return tested.param; });

}  // namespace
}  // namespace ashlar::block
