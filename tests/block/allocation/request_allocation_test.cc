// Heap allocations of requests in the steady state: none, when they have max_tokens.
//
// This file replaces the global operator new of its program and counts. The same work is done once before,
// with other tokens, so that the registry has had as many names.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/testing/managers.h"
#include "support/counted_new.h"

namespace ashlar::block {
namespace {

using events::G1;
using tokens::Token;
using Request = RequestSequence<G1>;

constexpr std::uint32_t kBlockSize = 16;
constexpr std::size_t kRequests = 1'000;
constexpr std::size_t kSteps = 3 * kBlockSize;
constexpr std::size_t kMaxTokens = 128;

// How many allocations f() makes.
template <class F>
std::size_t allocations_of(F&& f) {
  const std::size_t before = g_allocations.load(std::memory_order_relaxed);
  f();
  return g_allocations.load(std::memory_order_relaxed) - before;
}

class RequestAllocationTest : public ::testing::TestWithParam<DuplicatePolicy> {
 protected:
  RequestAllocationTest() : manager_(make()), next_(kRequests), chunks_(kRequests), yielded_(kRequests) {}

  static BlockManager<G1> make() {
    ManagerOptions options =
        testing::manager_options(kRequests * kMaxTokens / kBlockSize * 2, kBlockSize, "lru");
    options.duplicates = GetParam();
    return testing::make_manager<G1>(options);
  }
  static Token token(std::uint32_t number, std::size_t place) {
    return Token(number * 1'000'003u + static_cast<std::uint32_t>(place));
  }
  // Prompts of 20 to 35 tokens: in every step one of sixteen requests crosses a boundary. Every fourth is its
  // neighbour's twin.
  void begin(std::uint32_t first, const std::vector<CacheGroup>& groups) {
    requests_.clear();
    batch_.clear();
    for (std::size_t i = 0; i < kRequests; ++i) {
      const auto number = static_cast<std::uint32_t>(first + i - (i % 4 == 3 ? 1 : 0));
      std::vector<Token> prompt;
      for (std::size_t k = 0; k < 20 + number % 16; ++k) prompt.push_back(token(number, k));
      RequestOptions options;
      options.max_tokens = kMaxTokens;
      options.groups = groups;
      chunks_[i] = prompt.size();
      auto request = Request::create(manager_, std::move(prompt), options);
      ASSERT_TRUE(request.has_value());
      requests_.push_back(*std::move(request));
      yielded_[i] = token(number, 999);
    }
    for (Request& request : requests_) batch_.add(request);
    ASSERT_TRUE(batch_.schedule_prefill(chunks_).has_value());
    ASSERT_TRUE(batch_.apply_prefill(yielded_).has_value());
  }
  // Returns how many blocks were taken.
  std::size_t decode(std::size_t steps, std::uint32_t first) {
    std::size_t taken = 0;
    for (std::size_t step = 0; step < steps; ++step) {
      for (std::size_t i = 0; i < kRequests; ++i) {
        const auto number = static_cast<std::uint32_t>(first + i - (i % 4 == 3 ? 1 : 0));
        next_[i] = token(number, 2'000 + step);
      }
      const auto plan = batch_.schedule_decode();
      if (!plan || !batch_.apply_decode(next_)) return 0;
      taken += plan->new_blocks;
    }
    return taken;
  }
  void warm_up(const std::vector<CacheGroup>& groups) {
    begin(500'000, groups);
    EXPECT_GT(decode(kSteps + 2 * kBlockSize, 500'000), 0u);
    batch_.release();
    manager_.reset_inactive_pool();
  }

  BlockObserver hears_all_;
  BlockManager<G1> manager_;
  std::vector<Request> requests_;
  SequenceBatch<G1> batch_;
  std::vector<Token> next_;
  std::vector<std::size_t> chunks_;
  std::vector<std::optional<Token>> yielded_;
};

TEST_P(RequestAllocationTest, DecodeStepsOfABatchAllocateNothing) {
  warm_up({});
  begin(0, {});
  ASSERT_GT(decode(2, 0), 0u);
  std::size_t taken = 0;
  EXPECT_EQ(allocations_of([&] { taken = decode(kSteps, 0); }), 0u);
  EXPECT_EQ(taken, kRequests * kSteps / kBlockSize);
}

TEST_P(RequestAllocationTest, DecodeStepsOfAnObservedManagerAllocateNothing) {
  manager_.observe(hears_all_);
  warm_up({});
  begin(0, {});
  ASSERT_GT(decode(2, 0), 0u);
  std::size_t taken = 0;
  EXPECT_EQ(allocations_of([&] { taken = decode(kSteps, 0); }), 0u);
  EXPECT_EQ(taken, kRequests * kSteps / kBlockSize);
}

TEST_P(RequestAllocationTest, DecodeStepsWithWindowsAllocateNothing) {
  const std::vector<CacheGroup> groups = {CacheGroup::full_attention(), CacheGroup::sliding_window(20)};
  warm_up(groups);
  begin(0, groups);
  ASSERT_GT(decode(2, 0), 0u);
  std::size_t taken = 0;
  EXPECT_EQ(allocations_of([&] { taken = decode(kSteps, 0); }), 0u);
  EXPECT_EQ(taken, 2 * kRequests * kSteps / kBlockSize);
}

TEST_P(RequestAllocationTest, DecodeStepsOfOneRequestAllocateNothing) {
  warm_up({});
  begin(0, {});
  std::size_t refused = 0;
  const auto decode_one = [&](Request& request) {
    for (std::uint32_t i = 0; i < kSteps; ++i) {
      if (!request.schedule_decode() || !request.apply_decode(Token(i))) ++refused;
    }
  };
  decode_one(requests_.back());  // the thread has completed blocks before
  EXPECT_EQ(allocations_of([&] { decode_one(requests_.front()); }), 0u);
  EXPECT_EQ(refused, 0u);
}

TEST_P(RequestAllocationTest, DraftsAndRevertedStepsAllocateNothing) {
  warm_up({});
  begin(0, {});
  Request& request = requests_.front();
  const std::vector<Token> accepted = {Token(1), Token(2), Token(3)};
  std::size_t refused = 0;
  const auto some_steps = [&] {
    for (int i = 0; i < 8; ++i) {
      if (!request.schedule_speculative(6) || !request.apply_speculative(accepted)) ++refused;
      if (!request.schedule_decode() || !request.revert()) ++refused;
      if (!request.schedule_prefill(1) || !request.revert()) ++refused;
    }
  };
  some_steps();
  EXPECT_EQ(allocations_of(some_steps), 0u);
  EXPECT_EQ(refused, 0u);
}

TEST_P(RequestAllocationTest, PreemptionResumptionAndChunksAllocateNothing) {
  warm_up({});
  begin(0, {});
  Request& request = requests_.front();
  std::size_t refused = 0;
  std::size_t cached = 0;
  const auto cycle = [&] {
    if (!request.preempt()) ++refused;
    const auto found = request.resume();
    cached = found ? *found : 0;
    const std::size_t left = request.tokens_to_compute();
    if (left > 1 && (!request.schedule_prefill(left - 1) || !request.apply_prefill())) ++refused;
    if (!request.schedule_prefill(1) || !request.apply_prefill(Token(7))) ++refused;
    if (!request.schedule_decode() || !request.apply_decode(Token(8))) ++refused;
  };
  cycle();
  EXPECT_EQ(allocations_of([&] {
              for (int i = 0; i < 10; ++i) cycle();
            }),
            0u);
  EXPECT_EQ(refused, 0u);
  EXPECT_GE(cached, kBlockSize);
}

TEST_P(RequestAllocationTest, ReleaseAllocatesNothing) {
  warm_up({});
  begin(0, {});
  EXPECT_EQ(allocations_of([&] { batch_.release(); }), 0u);
  EXPECT_EQ(manager_.available_blocks(), manager_.total_blocks());
}

INSTANTIATE_TEST_SUITE_P(Policies, RequestAllocationTest,
                         ::testing::Values(DuplicatePolicy::kAllow, DuplicatePolicy::kReject),
                         [](const auto& tested) {
                           return tested.param == DuplicatePolicy::kAllow ? "Allow" : "Reject";
                         });

}  // namespace
}  // namespace ashlar::block
