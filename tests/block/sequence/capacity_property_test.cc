// A SequenceManager beside PlainBlocks, in random programs that run each step to its end: whatever the plain
// rules have room for, the manager has room for, and it finds at least as many cached tokens.
//
// A failure prints the seed and the program.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/sequence_manager.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/time_box.h"
#include "block/property/trace.h"
#include "block/sequence/plain_blocks.h"
#include "support/rounds.h"

namespace ashlar::block::sequences {
namespace {

using events::G1;
using property::Trace;
using property::TraceOnAbort;
using tokens::Token;

constexpr std::uint64_t kCapacityPrograms = 2000;
constexpr std::size_t kCapacitySteps = 120;
constexpr std::size_t kMostRunning = 6;

class SideBySide {
 public:
  SideBySide(PlainBlocks::Id blocks, std::uint32_t block_size, bool reuse_last_token, Random random,
             Trace& trace)
      : block_size_(block_size),
        random_(random),
        trace_(trace),
        manager_(testing::make_manager<G1>(blocks, block_size)),
        sequences_(manager_, {.hasher = {}, .reuse_last_token = reuse_last_token}),
        plain_(blocks, block_size, reuse_last_token) {
    for (int i = 0; i < 3; ++i) prompts_.push_back(some_tokens(1 + random_.below(4 * block_size)));
  }

  void step() {
    if (running_.empty() || (running_.size() < kMostRunning && random_.chance(0.3))) return start();
    const std::size_t which = random_.below(running_.size());
    if (random_.chance(0.2)) return stop(which);
    decode(which);
  }
  void check_invariants() { manager_.check_invariants(); }

 private:
  struct Pair {
    std::size_t number;
    Sequence<G1> real;
    PlainBlocks::Sequence plain;
  };

  PlainBlocks::Tokens some_tokens(std::size_t count) {
    PlainBlocks::Tokens made;
    while (made.size() < count) made.push_back(static_cast<std::uint32_t>(random_.below(2)));
    return made;
  }

  void start() {
    PlainBlocks::Tokens prompt = prompts_[random_.below(prompts_.size())];
    if (random_.chance(0.5)) {
      const auto more = some_tokens(random_.below(2 * block_size_ + 1));
      prompt.insert(prompt.end(), more.begin(), more.end());
    }
    std::vector<Token> tokens;
    std::string text;
    for (const std::uint32_t token : prompt) {
      tokens.emplace_back(token);
      text += std::to_string(token);
    }
    trace_.add(std::to_string(next_) + " starts with " + text);
    auto made = sequences_.make_sequence(std::move(tokens));
    if (!made) return trace_.fail(made.error().to_string());
    Pair pair{next_++, *std::move(made), {std::move(prompt), {}, 0}};
    if (!plain_.can_allocate(pair.plain)) return trace_.note(", and has no room");
    if (!sequences_.can_allocate(pair.real)) return trace_.fail("can_allocate() is false" + pools());
    plain_.allocate(pair.plain);
    const auto cached = sequences_.allocate(pair.real);
    if (!cached) return trace_.fail("allocate(): " + cached.error().to_error().to_string());
    trace_.note(", " + std::to_string(*cached) + " cached");
    if (*cached < pair.plain.cached)
      return trace_.fail("cached tokens: " + std::to_string(pair.plain.cached) + " by the plain rules");
    computed(pair);
    running_.push_back(std::move(pair));
  }

  void decode(std::size_t which) {
    Pair& pair = running_[which];
    const auto token = static_cast<std::uint32_t>(random_.below(2));
    trace_.add(std::to_string(pair.number) + " gets a " + std::to_string(token));
    pair.real.append(Token(token));
    pair.plain.tokens.push_back(token);
    if (!plain_.can_append(pair.plain)) return stop(which);
    if (!sequences_.can_append(pair.real)) return trace_.fail("can_append() is false" + pools());
    plain_.may_append(pair.plain);
    if (const auto placed = sequences_.may_append(pair.real); !placed)
      return trace_.fail("may_append(): " + placed.error().to_error().to_string());
    computed(pair);
  }

  void stop(std::size_t which) {
    Pair& pair = running_[which];
    trace_.add(std::to_string(pair.number) + " stops");
    plain_.deallocate(pair.plain);
    if (!sequences_.deallocate(pair.real)) trace_.fail("deallocate() refused");
    std::swap(pair, running_.back());
    running_.pop_back();
  }

  void computed(Pair& pair) {
    const auto done = sequences_.computed(pair.real, pair.real.size());
    if (!done) trace_.fail("computed(): " + done.error().to_error().to_string());
  }

  std::string pools() {
    return ": " + manager_.status().to_string() + "; " + std::to_string(plain_.free()) +
           " free by the plain rules";
  }

  std::uint32_t block_size_;
  Random random_;
  Trace& trace_;
  BlockManager<G1> manager_;
  SequenceManager<G1> sequences_;
  PlainBlocks plain_;
  std::vector<PlainBlocks::Tokens> prompts_;
  std::vector<Pair> running_;
  std::size_t next_ = 0;
};

class CapacityPropertyTest : public ::testing::TestWithParam<bool> {
 protected:
  static bool run(std::uint64_t seed) {
    Random random(seed);
    const auto blocks = random.between(PlainBlocks::Id{4}, 20);
    const std::uint32_t block_size = 1u << random.below(3);
    Trace trace("seed " + std::to_string(seed) + ", " + std::to_string(blocks) + " blocks of " +
                std::to_string(block_size));
    const TraceOnAbort on_abort(trace);
    SideBySide sides(blocks, block_size, GetParam(), random.fork(), trace);
    for (std::size_t step = 0; step < kCapacitySteps && !trace.failed(); ++step) sides.step();
    sides.check_invariants();
    EXPECT_FALSE(trace.failed()) << trace.report();
    return !trace.failed();
  }
};

TEST_P(CapacityPropertyTest, WhatThePlainRulesHaveRoomForHasRoom) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(kCapacityPrograms); ++seed) ASSERT_TRUE(run(seed));
}

TEST_P(CapacityPropertyTest, WhatThePlainRulesHaveRoomForHasRoomOnNewSeeds) {
  const testing::TimeBox box(1);
  std::uint64_t seed = kCapacityPrograms;
  while (!box.over()) ASSERT_TRUE(run(++seed));
  RecordProperty("seeds", std::to_string(seed));
}

// The defaults, and hits that may cover the last token.
INSTANTIATE_TEST_SUITE_P(Hits, CapacityPropertyTest, ::testing::Bool(), [](const auto& tested) {
  return tested.param ? "CoverTheLastToken" : "LeaveTheLastToken";
});

}  // namespace
}  // namespace ashlar::block::sequences
