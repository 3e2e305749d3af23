// Random requests over four small tiers, compared with find() and with a naive model. Tiers that keep all:
// lockstep_requests_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "support/rounds.h"
#include "tiers/requests_fixture.h"

namespace ashlar::tiers {
namespace {

// Random requests against what find() knows: a match brings all of it, as far as G1 has room, with its bytes.
// Where every block goes down at once to a tier that keeps all, find() in turn knows just what a naive model
// does: the names of all blocks that were ever computed.
class RandomRequestsTest : public RequestsTest, public ::testing::WithParamInterface<std::string> {
 protected:
  struct Live {
    Request request;
    bool scheduled = false;
  };
  void step(Random& random, std::vector<Live>& live) {
    const auto pick = [&]() -> Live& { return live[random.below(live.size())]; };
    switch (random.below(8)) {
      case 0:
      case 1: {
        if (live.size() > 2) return;
        live.push_back({request(text(static_cast<std::uint32_t>(random.below(6)), 5 + random.below(10)))});
        begin(random, live.back().request);
        if (live.back().request.state() == RequestState::kReleased) live.pop_back();
        return;
      }
      case 2: {
        if (live.empty()) return;
        Live& one = pick();
        if (one.request.state() == RequestState::kPreempted) {
          resume(one.request);
        } else if (one.request.state() == RequestState::kIdle) {
          ASSERT_TRUE(one.request.preempt());
        }
        return;
      }
      case 3: {
        if (live.empty() || live.size() > 3) return;
        Live& one = pick();
        if (one.request.state() != RequestState::kIdle) return;
        auto forked = one.request.fork();
        if (forked) live.push_back({*std::move(forked)});
        return;
      }
      case 4:
        if (!live.empty()) live.erase(live.begin() + static_cast<std::ptrdiff_t>(random.below(live.size())));
        return;
      case 5:
        if (random.below(2) == 0) kv_->reset(std::array{kG1, kG2, kG3}[random.below(3)]).value();
        return;
      default:
        if (!live.empty()) advance(random, pick().request);
    }
  }
  // How many of the blocks that a match may have are in some tier.
  std::size_t known_of(const Request& one) {
    kv_->drain();
    const std::vector<SequenceHash> names(one.sequence_hashes().begin(), one.sequence_hashes().end());
    const std::size_t limit = limit_of(one);
    std::size_t known = 0;
    for (const TierRun& run : kv_->find(std::span(names).first(limit))) known += run.count;
    if (keeps_all_) {
      std::size_t computed = 0;
      while (computed < limit && computed_.contains(names[computed])) ++computed;
      EXPECT_EQ(known, computed);
    }
    return known;
  }
  static std::size_t limit_of(const Request& one) { return (one.size() - 1) / kBlockSize; }
  void resume(Request& one) {
    const std::size_t known = known_of(one);
    const bool room = kv_->g1().available_blocks() >= limit_of(one);
    const std::size_t cached = one.resume().value();
    EXPECT_LE(cached, known * kBlockSize);
    if (room) {
      EXPECT_EQ(cached, known * kBlockSize);
    }
  }
  void begin(Random& random, Request& one) {
    const std::size_t known = known_of(one);
    const std::size_t limit = limit_of(one);
    if (random.below(4) == 0) return begin_and_cancel(random, one);
    const bool room = kv_->g1().available_blocks() >= limit;
    std::size_t cached = 0;
    if (random.below(2) == 0) {
      cached = one.match_prefix().value();
    } else {
      std::atomic<bool> ready{false};
      const block::MatchStart start = one.begin_match([&] { ready = true; }).value();
      while (start.pending && !ready) std::this_thread::yield();
      cached = start.pending ? one.finish_match().value() : start.cached;
    }
    EXPECT_LE(cached, known * kBlockSize);
    if (room) {
      EXPECT_EQ(cached, known * kBlockSize);
    }
  }
  // The request leaves, or waits, while its blocks are on their way.
  void begin_and_cancel(Random& random, Request& one) {
    const auto ended = std::make_shared<std::atomic<bool>>(false);
    if (!one.begin_match([ended] { *ended = true; }).value().pending) return;
    if (random.below(2) == 0) {
      one.release();
    } else {
      ASSERT_TRUE(one.preempt());
    }
    while (!*ended) std::this_thread::yield();
    ++cancelled_;
  }
  // Adds what a request has computed to the model.
  void note(const Request& one) {
    for (std::size_t i = 0; i < one.computed_tokens() / kBlockSize; ++i) computed_.insert(name(one, i, 0));
  }
  void advance(Random& random, Request& one) {
    if (one.state() != RequestState::kIdle) return;
    const std::size_t left = one.tokens_to_compute();
    if (left > 1) {
      const std::size_t tokens = 1 + random.below(left);
      if (!one.schedule_prefill(tokens)) return;
      if (random.below(6) == 0) return static_cast<void>(one.revert());
      copy(one);
      compute(one, tokens);
      ASSERT_TRUE(one.apply_prefill(tokens == left ? std::optional(Token(3)) : std::nullopt));
      return;
    }
    if (random.below(3) == 0) {
      if (!one.schedule_speculative(2)) return;
      copy(one);
      // The drafts are accepted or not; only what is accepted has its names.
      const std::vector<Token> accepted(1 + random.below(3),
                                        Token(static_cast<std::uint32_t>(random.below(2))));
      std::vector<Token> all(one.tokens().begin(), one.tokens().end());
      all.insert(all.end(), accepted.begin(), accepted.end());
      const Request named = request(all);
      for (std::size_t i = one.computed_tokens() / kBlockSize;
           i < (one.computed_tokens() + accepted.size()) / kBlockSize; ++i)
        work_->compute(one.block_table()[i], name(named, i, 0));
      ASSERT_TRUE(one.apply_speculative(accepted));
      return;
    }
    if (!one.schedule_decode()) return;
    copy(one);
    compute(one, 1);
    ASSERT_TRUE(one.apply_decode(Token(static_cast<std::uint32_t>(random.below(2)))));
  }
  // The engine's part of a fork. Partly filled blocks have no bytes to copy here.
  static void copy(const Request&) {}

  bool keeps_all_ = false;
  std::set<SequenceHash> computed_;  // the model
  int cancelled_ = 0;
};

TEST_P(RandomRequestsTest, OverFourTiers) {
  // Where a backend has one seed alone, all of them together have every trigger and both policies.
  const std::vector<std::string> names = block::eviction_names();
  const auto first = static_cast<std::uint64_t>(std::ranges::find(names, GetParam()) - names.begin());
  const std::uint64_t end = first + ashlar::testing::rounds(12);
  ASSERT_GT(names.size(), 5u) << "fewer do not have them all";
  for (std::uint64_t seed = first; seed < end || cancelled_ == 0; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    {
      KvOptions options = KvWorkload::options_in(folder_.file(GetParam() + std::to_string(seed)));
      const Trigger triggers[] = {Trigger::kOnArrival, Trigger::kNearEviction, Trigger::kOnCall};
      options.to_g2.trigger = triggers[seed % 3];
      options.to_g3.trigger = triggers[seed / 3 % 3];
      options.to_g4.trigger = triggers[(seed + seed / 3) % 3];  // nine seeds: every pair of two routes
      options.g1.eviction = options.g2->eviction = options.g3->eviction = options.g4->eviction = GetParam();
      if (seed % 2 == 1)
        options.g1.pool.duplicates = options.g2->pool.duplicates = block::DuplicatePolicy::kAllow;
      options.registry.frequency = block::TinyLfuOptions{.capacity = 1024};
      keeps_all_ = seed % 4 == 0;
      computed_.clear();
      if (keeps_all_) {
        options.to_g2.trigger = options.to_g3.trigger = options.to_g4.trigger = Trigger::kOnArrival;
        options.g4->block_count = 4096;
      }
      open(std::move(options));
    }
    std::vector<Live> live;
    for (int i = 0; i < 80; ++i) {
      step(random, live);
      if (keeps_all_) {
        for (const Live& one : live) note(one.request);
        kv_->drain();  // G2 has few blocks: each goes down before the next comes
      }
      for (const Live& one : live)
        if (one.request.state() != RequestState::kPreempted) {
          ASSERT_TRUE(right(one.request)) << "step " << i;
        }
    }
    live.clear();
    expect_counts_exact();
    work_.reset();
    kv_.reset();
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, RandomRequestsTest, ::testing::ValuesIn(block::eviction_names()),
                         [](const auto& backend) { return backend.param; });

}  // namespace
}  // namespace ashlar::tiers
