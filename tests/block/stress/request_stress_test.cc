// Many threads, each with requests of its own, on one small manager: prompts in common, forks that change
// hands, and an engine whose memory has no locks. A block that two threads write, or that is read before it
// was computed, holds a wrong number, or is a race that ThreadSanitizer sees.
#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/random.h"
#include "ashlar/block/request_sequence.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/testing/managers.h"
#include "ashlar/testing/time_box.h"
#include "block/sequence/simulated_engine.h"
#include "block/stress/yielding_hook.h"

namespace ashlar::block::stress {
namespace {

using events::G1;
using tokens::Token;
using Request = RequestSequence<G1>;
using Refused = SequenceError::Reason;

constexpr std::uint32_t kRequestBlockSize = 4;
constexpr std::size_t kMaxTokens = 48;
constexpr std::size_t kMostRequests = 3;

class RequestStress {
 public:
  RequestStress(std::size_t threads, DuplicatePolicy duplicates, std::uint64_t seed)
      : groups_(groups_of(seed)),
        blocks_(static_cast<std::uint32_t>(threads * groups_.size() * (seed % 2 == 0 ? 14 : 30))),
        engine_(blocks_, kRequestBlockSize, groups_),
        manager_(make(duplicates, seed)) {
    Random random(seed);
    for (std::size_t i = 0; i < threads; ++i) workers_.push_back(std::make_unique<Worker>(random.fork()));
  }

  void run_round(std::size_t operations) {
    std::vector<std::jthread> threads;
    for (auto& worker : workers_) {
      threads.emplace_back([this, &worker, operations] {
        for (std::size_t i = 0; i < operations && !failed_.load(); ++i) step(*worker);
      });
    }
  }
  // Requires: no round runs.
  void check() {
    EXPECT_FALSE(failed_.load()) << problem();
    manager_.check_invariants();
    for (auto& worker : workers_) {
      for (const Request& request : worker->requests) EXPECT_EQ(engine_.check(request), "");
    }
  }
  void finish() {
    for (auto& worker : workers_) worker->requests.clear();
    {
      const MutexLock lock(mu_);
      handed_over_.clear();
    }
    manager_.check_invariants();
    EXPECT_EQ(manager_.available_blocks(), blocks_);
    EXPECT_EQ(manager_.status().active + manager_.status().owned, 0u);
  }

  ManagerCounters counters() const { return manager_.counters(); }
  std::uint64_t copies() const noexcept { return copies_.load(); }
  std::uint64_t handed_over() const noexcept { return hand_overs_.load(); }

 private:
  struct Worker {
    explicit Worker(Random own) : random(own) {}
    Random random;
    std::vector<Request> requests;
  };

  static std::vector<CacheGroup> groups_of(std::uint64_t seed) {
    if (seed % 3 == 0) return {CacheGroup::full_attention(), CacheGroup::sliding_window(6)};
    return {CacheGroup::full_attention()};
  }
  BlockManager<G1> make(DuplicatePolicy duplicates, std::uint64_t seed) {
    ManagerOptions options =
        testing::manager_options(blocks_, kRequestBlockSize, seed % 4 < 2 ? "lru" : "hashmap_fifo");
    options.duplicates = duplicates;
    return testing::make_manager<G1>(options);
  }

  void fail(const std::string& problem) {
    if (problem.empty()) return;
    const MutexLock lock(mu_);
    if (problem_.empty()) problem_ = problem;
    failed_.store(true);
  }
  std::string problem() const {
    const MutexLock lock(mu_);
    return problem_;
  }
  template <class T>
  bool ok(const Result<T, SequenceError>& result) {
    if (!result) fail(result.error().to_error().to_string());
    return result.has_value();
  }
  // Makes room when there was none.
  template <class T>
  bool scheduled(Worker& worker, Request& request, const Result<T, SequenceError>& plan) {
    if (plan) return true;
    if (plan.error().reason != Refused::kNoRoom) {
      fail(plan.error().to_error().to_string());
    } else if (worker.random.chance(0.5)) {
      request.release();
    } else {
      ok(request.preempt());
    }
    return false;
  }
  static Token token(Random& random) { return Token(static_cast<std::uint32_t>(random.below(2))); }

  void create(Worker& worker) {
    Random family(worker.random.below(3));
    std::vector<Token> prompt;
    const std::size_t size = 1 + worker.random.below(24);
    for (std::size_t i = 0; i < size; ++i) prompt.push_back(token(family));
    RequestOptions options;
    options.groups = groups_;
    options.max_tokens = kMaxTokens;
    auto request = Request::create(manager_, std::move(prompt), options);
    if (!request) return fail(request.error().to_string());
    if (ok(request->match_prefix())) fail(engine_.check(*request));
    worker.requests.push_back(*std::move(request));
  }

  void step(Worker& worker) {
    Random& random = worker.random;
    std::erase_if(worker.requests, [](const Request& request) {
      return request.state() == RequestState::kReleased || request.size() >= kMaxTokens - 8;
    });
    if (worker.requests.size() < kMostRequests && random.chance(0.3)) take_over(worker);
    if (worker.requests.empty()) return create(worker);
    if (worker.requests.size() < kMostRequests && random.chance(0.2)) return create(worker);
    if (random.chance(0.15)) return decode_together(worker);
    Request& request = worker.requests[random.below(worker.requests.size())];
    if (request.state() == RequestState::kPreempted) {
      if (ok(request.resume())) fail(engine_.check(request));
    } else if (random.chance(0.05)) {
      request.release();
    } else if (random.chance(0.1)) {
      hand_over(worker, request);
    } else if (request.tokens_to_compute() != 1) {
      prefill(worker, request);
    } else if (random.chance(0.7)) {
      decode(worker, request);
    } else {
      speculate(worker, request);
    }
    if (request.state() == RequestState::kIdle) fail(engine_.check(request));
  }

  void prefill(Worker& worker, Request& request) {
    const std::size_t left = request.tokens_to_compute();
    const std::size_t chunk = worker.random.chance(0.5) ? left : 1 + worker.random.below(left);
    if (!scheduled(worker, request, request.schedule_prefill(chunk))) return;
    copies_.fetch_add(request.copies().size());
    fail(engine_.run(request, chunk));
    ok(request.apply_prefill(chunk == left ? std::optional(token(worker.random)) : std::nullopt));
  }
  void decode(Worker& worker, Request& request) {
    if (!scheduled(worker, request, request.schedule_decode())) return;
    copies_.fetch_add(request.copies().size());
    fail(engine_.run(request, 1));
    if (worker.random.chance(0.1)) {
      ok(request.revert());
    } else {
      ok(request.apply_decode(token(worker.random)));
    }
  }
  void speculate(Worker& worker, Request& request) {
    std::vector<Token> drafts;
    for (std::size_t i = worker.random.below(6); i > 0; --i) drafts.push_back(token(worker.random));
    if (!scheduled(worker, request, request.schedule_speculative(drafts.size()))) return;
    copies_.fetch_add(request.copies().size());
    fail(engine_.run_with_drafts(request, drafts));
    drafts.resize(worker.random.below(drafts.size() + 1));
    drafts.push_back(token(worker.random));
    ok(request.apply_speculative(drafts));
  }
  void decode_together(Worker& worker) {
    SequenceBatch<G1> batch;
    std::vector<Request*> together;
    std::vector<Token> next;
    for (Request& request : worker.requests) {
      if (request.state() != RequestState::kIdle || request.tokens_to_compute() != 1) continue;
      batch.add(request);
      together.push_back(&request);
      next.push_back(token(worker.random));
    }
    const auto plan = batch.schedule_decode();
    if (!plan) {
      if (plan.error().error.reason != Refused::kNoRoom) fail(plan.error().error.to_error().to_string());
      if (!together.empty()) together[worker.random.below(together.size())]->release();
      return;
    }
    for (const Request* request : together) fail(engine_.run(*request, 1));
    if (!batch.apply_decode(next)) fail("a batch was not applied");
    for (const Request* request : together) fail(engine_.check(*request));
  }

  void hand_over(Worker& worker, Request& request) {
    const bool ready = request.tokens_to_compute() == 1;
    auto fork =
        request.fork(ready && worker.random.chance(0.5) ? std::optional(token(worker.random)) : std::nullopt);
    if (!ok(fork)) return;
    const MutexLock lock(mu_);
    if (handed_over_.size() < 2) handed_over_.push_back(*std::move(fork));
  }
  void take_over(Worker& worker) {
    std::optional<Request> taken;
    {
      const MutexLock lock(mu_);
      if (handed_over_.empty()) return;
      taken = std::move(handed_over_.back());
      handed_over_.pop_back();
    }
    fail(engine_.check(*taken));
    worker.requests.push_back(*std::move(taken));
    hand_overs_.fetch_add(1);
  }

  std::vector<CacheGroup> groups_;
  std::uint32_t blocks_;
  support::SimulatedEngine<G1> engine_;
  BlockManager<G1> manager_;
  std::vector<std::unique_ptr<Worker>> workers_;
  mutable Mutex mu_;
  std::vector<Request> handed_over_ ASHLAR_GUARDED_BY(mu_);
  std::string problem_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<bool> failed_ = false;
  std::atomic<std::uint64_t> copies_ = 0;
  std::atomic<std::uint64_t> hand_overs_ = 0;
};

using Parameters = std::tuple<std::size_t, DuplicatePolicy>;
class RequestStressTest : public ::testing::TestWithParam<Parameters> {};

TEST_P(RequestStressTest, EveryRequestReadsTheKvOfItsTokens) {
  const testing::TimeBox box(1);
  const YieldingHook hook;
  std::uint64_t seed = 0;
  ManagerCounters total;
  std::uint64_t copies = 0;
  std::uint64_t handed_over = 0;
  do {
    SCOPED_TRACE("seed " + std::to_string(++seed));
    RequestStress stress(std::get<0>(GetParam()), std::get<1>(GetParam()), seed);
    for (int round = 0; round < 4; ++round) {
      stress.run_round(400);
      stress.check();
    }
    const ManagerCounters counters = stress.counters();
    total.evictions += counters.evictions;
    total.match_blocks_returned += counters.match_blocks_returned;
    total.duplicates += counters.duplicates + counters.deduplications;
    copies += stress.copies();
    handed_over += stress.handed_over();
    stress.finish();
    // Three seeds at least, with and without windows, however slow the machine.
  } while ((seed < 3 || !box.over()) && !HasFailure());
  EXPECT_GT(total.evictions, 0u);
  EXPECT_GT(total.match_blocks_returned, 0u);
  EXPECT_GT(total.duplicates, 0u);
  EXPECT_GT(copies, 0u);
  EXPECT_GT(handed_over, 0u);
}

INSTANTIATE_TEST_SUITE_P(Threads, RequestStressTest,
                         ::testing::Combine(::testing::Values(2, 4),
                                            ::testing::Values(DuplicatePolicy::kAllow,
                                                              DuplicatePolicy::kReject)),
                         [](const auto& tested) {
                           return std::to_string(std::get<0>(tested.param)) +
                                  (std::get<1>(tested.param) == DuplicatePolicy::kAllow ? "_Allow"
                                                                                        : "_Reject");
                         });

}  // namespace
}  // namespace ashlar::block::stress
