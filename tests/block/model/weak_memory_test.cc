// The explorer against litmus tests: what the memory model allows is found, and what it forbids is not.
#include "support/weak_memory.h"

#include <gtest/gtest.h>

#include <array>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "support/explorer.h"

namespace ashlar::exploration {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr auto kAcquire = std::memory_order_acquire;
constexpr auto kRelease = std::memory_order_release;

constexpr auto kConsistent = std::memory_order_seq_cst;

constexpr int kX = 0;
constexpr int kY = 1;
constexpr int kThreads = 3;
constexpr int kLocations = 5;

// One step of a litmus test. What load, add and exchange saw goes into the thread's result.
struct Instruction {
  enum class Kind { kLoad, kStore, kAdd, kExchange, kRead, kWrite, kLock, kUnlock, kEndUnlessLastWas };
  Kind kind;
  int location = 0;
  Value value = 0;
  Value desired = 0;
  std::memory_order order = kRelaxed;
};
using Kind = Instruction::Kind;

Instruction load(int location, std::memory_order order = kRelaxed) {
  return {.kind = Kind::kLoad, .location = location, .order = order};
}
Instruction store(int location, Value value, std::memory_order order = kRelaxed) {
  return {.kind = Kind::kStore, .location = location, .value = value, .order = order};
}
Instruction add(int location, Value value, std::memory_order order = kRelaxed) {
  return {.kind = Kind::kAdd, .location = location, .value = value, .order = order};
}
Instruction exchange(int location, Value expected, Value desired) {
  return {.kind = Kind::kExchange, .location = location, .value = expected, .desired = desired};
}
Instruction read() {
  return {.kind = Kind::kRead};
}
Instruction write() {
  return {.kind = Kind::kWrite, .value = 1};
}
Instruction lock() {
  return {.kind = Kind::kLock};
}
Instruction unlock(bool releases = true) {
  return {.kind = Kind::kUnlock, .value = releases ? 1U : 0U};
}
Instruction end_unless_last_was(Value value) {
  return {.kind = Kind::kEndUnlessLastWas, .value = value};
}

// A litmus test as a Program. Every result it can have goes into `results`: what each thread saw, in order,
// the threads separated by bars.
class Litmus {
 public:
  static constexpr Limits kLimits{
      .threads = kThreads, .locations = kLocations, .plain_locations = 1, .messages = 14};

  struct Thread {
    std::uint8_t next = 0;
    std::uint8_t seen_count = 0;
    std::array<std::uint8_t, 4> seen{};
  };
  struct State {
    Memory<kLimits> memory;
    std::array<Thread, kThreads> threads{};
  };

  Litmus(std::vector<std::vector<Instruction>> threads, std::set<std::string>* results)
      : threads_(std::move(threads)), results_(results) {
    threads_.resize(kThreads);
  }

  State initial() const {
    State state;
    for (int i = 0; i < kLocations; ++i) state.memory.set_initial(i, 0);
    return state;
  }
  bool done(const State& state, int thread) const {
    return state.threads[thread].next >= threads_[thread].size();
  }
  bool enabled(const State& state, int thread) const {
    return threads_[thread][state.threads[thread].next].kind != Kind::kLock || !state.memory.locked();
  }
  bool is_local(const State& state, int thread) const {
    return threads_[thread][state.threads[thread].next].kind == Kind::kEndUnlessLastWas;
  }

  void step(State& state, Access<kLimits>& access) const {
    Thread& thread = state.threads[access.thread()];
    const Instruction& i = threads_[access.thread()][thread.next++];
    const auto saw = [&](Value value) {
      thread.seen[thread.seen_count++] = static_cast<std::uint8_t>(value);
    };
    access.at("step");
    switch (i.kind) {
      case Kind::kLoad:
        return saw(access.load(i.location, i.order));
      case Kind::kStore:
        return access.store(i.location, i.value, i.order);
      case Kind::kAdd:
        return saw(access.fetch_add(i.location, static_cast<std::int32_t>(i.value), i.order));
      case Kind::kExchange:
        return saw(access.compare_exchange(i.location, i.value, i.desired, i.order, kRelaxed).seen);
      case Kind::kRead:
        access.read(0);
        return;
      case Kind::kWrite:
        return access.write(0, i.value);
      case Kind::kLock:
        return access.lock();
      case Kind::kUnlock:
        return access.unlock(i.value != 0);
      case Kind::kEndUnlessLastWas:
        if (thread.seen[thread.seen_count - 1] != i.value)
          thread.next = static_cast<std::uint8_t>(threads_[access.thread()].size());
        return;
    }
  }

  std::optional<std::string> check(const State&) const { return std::nullopt; }
  std::optional<std::string> check_final(const State& state) const {
    std::string result;
    for (int t = 0; t < kThreads; ++t) {
      if (t > 0) result += '|';
      for (int i = 0; i < state.threads[t].seen_count; ++i)
        result += std::to_string(state.threads[t].seen[i]);
    }
    results_->insert(result);
    return std::nullopt;
  }
  void append_to(const State& state, std::string& key) const {
    Memory<kLimits>::append_bytes(key, state.threads);
  }
  static std::string describe(int location, Value value) {
    return (location < 0 ? "plain" : "atomic" + std::to_string(location)) + " = " + std::to_string(value);
  }

 private:
  std::vector<std::vector<Instruction>> threads_;
  std::set<std::string>* results_;
};

struct Explored {
  std::set<std::string> results;
  Outcome outcome;
};

Explored run(std::vector<std::vector<Instruction>> threads) {
  Explored explored;
  explored.outcome = explore(Litmus(std::move(threads), &explored.results), {.max_states = 100'000});
  return explored;
}

bool races(std::vector<std::vector<Instruction>> threads) {
  const Outcome outcome = run(std::move(threads)).outcome;
  EXPECT_TRUE(outcome.exhausted || outcome.violation.has_value());
  return outcome.violation.has_value() && outcome.violation->starts_with("data race");
}

using Results = std::set<std::string>;

TEST(WeakMemory, StoreBufferingLetsBothLoadsSeeTheOldValue) {
  EXPECT_EQ(run({{store(kX, 1), load(kY)}, {store(kY, 1), load(kX)}}).results,
            (Results{"0|0|", "0|1|", "1|0|", "1|1|"}));
}

TEST(WeakMemory, OnlySequentialConsistencyOfAllFourAccessesForbidsStoreBuffering) {
  const auto both_old = [](std::memory_order x, std::memory_order from_y, std::memory_order y,
                           std::memory_order from_x) {
    return run({{store(kX, 1, x), load(kY, from_y)}, {store(kY, 1, y), load(kX, from_x)}})
        .results.contains("0|0|");
  };
  EXPECT_FALSE(both_old(kConsistent, kConsistent, kConsistent, kConsistent));
  EXPECT_TRUE(both_old(kRelease, kConsistent, kConsistent, kConsistent));
  EXPECT_TRUE(both_old(kConsistent, kAcquire, kConsistent, kConsistent));
  EXPECT_TRUE(both_old(kConsistent, kConsistent, kRelease, kConsistent));
  EXPECT_TRUE(both_old(kConsistent, kConsistent, kConsistent, kAcquire));
}

TEST(WeakMemory, ConsistentReadersAgreeOnTheOrderOfConsistentWrites) {
  const auto disagree = [](std::memory_order order) {
    return run({{store(kX, 1, order), load(kY, order)},
                {store(kY, 1, order)},
                {load(kY, order), load(kX, order)}})
        .results.contains("0||10");
  };
  EXPECT_FALSE(disagree(kConsistent));
  EXPECT_TRUE(disagree(kAcquire));
}

TEST(WeakMemory, AConsistentStoreReleasesAndAConsistentLoadAcquires) {
  EXPECT_FALSE(
      races({{write(), store(kX, 1, kConsistent)}, {load(kX, kAcquire), end_unless_last_was(1), read()}}));
  EXPECT_FALSE(
      races({{write(), store(kX, 1, kRelease)}, {load(kX, kConsistent), end_unless_last_was(1), read()}}));
}

TEST(WeakMemory, LoadsOfOneLocationNeverGoBack) {
  EXPECT_EQ(run({{store(kX, 1), store(kX, 2)}, {load(kX), load(kX)}}).results,
            (Results{"|00|", "|01|", "|02|", "|11|", "|12|", "|22|"}));
}

TEST(WeakMemory, RelaxedMessagesArriveInAnyOrder) {
  EXPECT_TRUE(run({{store(kX, 1), store(kY, 1)}, {load(kY), load(kX)}}).results.contains("|10|"));
  EXPECT_FALSE(
      run({{store(kX, 1), store(kY, 1, kRelease)}, {load(kY, kAcquire), load(kX)}}).results.contains("|10|"));
}

TEST(WeakMemory, PassingPlainDataNeedsBothReleaseAndAcquire) {
  const auto passing = [](std::memory_order release, std::memory_order acquire) {
    return races({{write(), store(kX, 1, release)}, {load(kX, acquire), end_unless_last_was(1), read()}});
  };
  EXPECT_FALSE(passing(kRelease, kAcquire));
  EXPECT_TRUE(passing(kRelaxed, kAcquire));
  EXPECT_TRUE(passing(kRelease, kRelaxed));
}

TEST(WeakMemory, ARaceIsFoundWhicheverAccessComesFirst) {
  EXPECT_TRUE(races({{write()}, {read()}}));
  EXPECT_TRUE(races({{read()}, {write()}}));
  EXPECT_TRUE(races({{write()}, {write()}}));
  EXPECT_FALSE(races({{read()}, {read()}}));
}

TEST(WeakMemory, ARelaxedAddCarriesTheReleaseOnAndARelaxedStoreDoesNot) {
  EXPECT_FALSE(races({{write(), store(kX, 1, kRelease)},
                      {add(kX, 1)},
                      {load(kX, kAcquire), end_unless_last_was(2), read()}}));
  EXPECT_TRUE(races({{write(), store(kX, 1, kRelease)},
                     {load(kX), end_unless_last_was(1), store(kX, 2)},
                     {load(kX, kAcquire), end_unless_last_was(2), read()}}));
}

TEST(WeakMemory, AcquiringACountComesAfterEveryReleaseInIt) {
  EXPECT_FALSE(races({{read(), add(kX, 1, kRelease)},
                      {read(), add(kX, 1, kRelease)},
                      {load(kX, kAcquire), end_unless_last_was(2), write()}}));
  EXPECT_TRUE(races({{read(), add(kX, 1, kRelaxed)},
                     {read(), add(kX, 1, kRelease)},
                     {load(kX, kAcquire), end_unless_last_was(2), write()}}));
}

TEST(WeakMemory, AddsAreNeverLost) {
  EXPECT_EQ(run({{add(kX, 1)}, {add(kX, 1)}}).results, (Results{"0|1|", "1|0|"}));
}

TEST(WeakMemory, AnExchangeThatFailsMaySeeAStaleValue) {
  EXPECT_EQ(run({{store(kX, 1)}, {exchange(kX, 1, 2), load(kX)}}).results, (Results{"|00|", "|01|", "|12|"}));
}

TEST(WeakMemory, TheMutexOrdersWhatItGuards) {
  EXPECT_FALSE(races({{lock(), write(), unlock()}, {lock(), write(), unlock()}, {lock(), read(), unlock()}}));
  EXPECT_TRUE(races({{lock(), write(), unlock(false)}, {lock(), write(), unlock(false)}}));
}

TEST(WeakMemory, ADeadlockIsAViolationWithItsTrace) {
  const Outcome outcome = run({{lock(), lock()}}).outcome;
  EXPECT_EQ(outcome.violation, "deadlock");
  EXPECT_EQ(outcome.trace, std::vector<std::string>{"T0 step: lock"});
}

TEST(WeakMemory, ASearchForOneViolationGoesPastTheOthers) {
  std::set<std::string> results;
  const Litmus program(
      {{write(), store(kX, 1)}, {load(kX), end_unless_last_was(1), read()}, {lock(), lock()}}, &results);
  const auto find = [&](std::string_view only) {
    return explore(program, {.max_states = 100'000, .only = only}).violation.value_or("none").substr(0, 9);
  };
  EXPECT_EQ(find("data race"), "data race");
  EXPECT_EQ(find("deadlock"), "deadlock");
  EXPECT_EQ(find("livelock"), "none");
}

TEST(WeakMemory, LoadBufferingIsLeftOut) {
  EXPECT_FALSE(run({{load(kX), store(kY, 1)}, {load(kY), store(kX, 1)}}).results.contains("1|1|"));
}

TEST(WeakMemory, ASearchThatReachesItsLimitSaysSo) {
  std::set<std::string> results;
  const Outcome outcome =
      explore(Litmus({{add(kX, 1), add(kX, 1)}, {add(kX, 1)}}, &results), {.max_states = 2});
  EXPECT_FALSE(outcome.exhausted);
  EXPECT_FALSE(outcome.violation.has_value());
}

}  // namespace
}  // namespace ashlar::exploration
