// Exhaustive exploration of small concurrent programs over the memory of weak_memory.h.
#pragma once

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "support/weak_memory.h"

namespace ashlar::exploration {

// A program to explore. kLimits says how large it is. Its State is a value with a member `memory`; everything
// else in it (program counters, registers, what invariants are stated over) goes into the key by append_to().
//
//   done, enabled   whether a thread has ended, and whether it can step now
//   is_local        the next step commutes with whatever the others can do before it (a plain access, or
//                   giving the mutex back), so that the search takes it first and alone
//   step            one step of a thread, through Access
//   check           the invariants of every state; check_final those of states in which all threads are done
//   describe        a location (plain ones as -1 - n) and a value, in words
//   loaders         optional: a bit for every thread that may read or exchange a location; all without it.
//                   With it the search tells apart fewer states.
template <class M>
concept Program = std::copyable<typename M::State> &&
                  requires(const M& m, const typename M::State& state, typename M::State& next,
                           Access<M::kLimits>& access, std::string& key, int thread) {
                    { m.initial() } -> std::same_as<typename M::State>;
                    { m.done(state, thread) } -> std::same_as<bool>;
                    { m.enabled(state, thread) } -> std::same_as<bool>;
                    { m.is_local(state, thread) } -> std::same_as<bool>;
                    { m.step(next, access) } -> std::same_as<void>;
                    { m.check(state) } -> std::same_as<std::optional<std::string>>;
                    { m.check_final(state) } -> std::same_as<std::optional<std::string>>;
                    { m.append_to(state, key) } -> std::same_as<void>;
                    { M::describe(thread, Value{}) } -> std::same_as<std::string>;
                  };

// How to search. Without `reduce` local steps are interleaved like all others: the same ends, more states.
// A violation whose text does not begin with `only` ends its branch and not the search.
struct Search {
  std::size_t max_states;
  bool reduce = true;
  std::string_view only = {};
};

// What a search found. `ends` counts the different final states; `exhausted` is false when it stopped at a
// violation or at the limit of states.
struct Outcome {
  std::size_t states = 0;
  std::size_t transitions = 0;
  std::size_t ends = 0;
  bool exhausted = false;
  std::optional<std::string> violation;
  std::vector<std::string> trace;
};

// Depth-first search over all interleavings and all outcomes of each load, each state visited once.
//
// States are told apart by 128-bit digests of their encodings. The search goes on with the thread that
// stepped last before it turns to another, so that the trace of a violation has few switches.
//
// Complexity: one copy of the state per transition; 16 bytes and a table node per state.
template <Program M>
class Explorer {
 public:
  Explorer(const M& program, const Search& search) : program_(program), search_(search) {
    loaders_.fill((1U << kThreads) - 1);
    if constexpr (requires { program.loaders(0); })
      for (int location = 0; location < M::kLimits.locations; ++location)
        loaders_[location] = program.loaders(location);
  }

  Outcome run() {
    const State start = program_.initial();
    insert(start);
    outcome_.exhausted = visit(start, 0);
    outcome_.states = seen_.size();
    if (outcome_.violation) replay();
    return std::move(outcome_);
  }

 private:
  using State = typename M::State;

  static constexpr int kThreads = M::kLimits.threads;

  struct Digest {
    std::uint64_t low;
    std::uint64_t high;
    bool operator==(const Digest&) const = default;
  };
  struct DigestHash {
    std::size_t operator()(const Digest& d) const { return d.low; }
  };
  struct Taken {
    int thread;
    int choice;
  };

  // Returns: false to end the search.
  bool visit(const State& state, int previous) {
    int alone = -1;
    bool stuck = true;
    bool all_done = true;
    for (int t = 0; t < kThreads; ++t) {
      if (program_.done(state, t)) continue;
      all_done = false;
      if (!program_.enabled(state, t)) continue;
      stuck = false;
      if (search_.reduce && alone < 0 && program_.is_local(state, t)) alone = t;
    }
    if (all_done) {
      ++outcome_.ends;
      return !ends_search(program_.check_final(state));
    }
    if (stuck) return !ends_search("deadlock");
    if (alone >= 0) return advance(state, alone);
    for (int i = 0; i < kThreads; ++i) {
      const int t = (previous + i) % kThreads;
      if (program_.done(state, t) || !program_.enabled(state, t)) continue;
      if (!advance(state, t)) return false;
    }
    return true;
  }

  bool advance(const State& state, int thread) {
    int alternatives = 1;
    for (int choice = 0; choice < alternatives; ++choice) {
      State next = state;
      Access<M::kLimits> access(next.memory, thread, choice, nullptr, &M::describe);
      program_.step(next, access);
      alternatives = access.alternatives();
      ++outcome_.transitions;
      path_.push_back({thread, choice});
      std::optional<std::string> violation = access.violation();
      if (!violation) violation = program_.check(next);
      if (ends_search(violation)) return false;
      normalise(next);
      if (!violation && insert(next)) {
        if (seen_.size() > search_.max_states) return false;
        if (!visit(next, thread)) return false;
      }
      path_.pop_back();
    }
    return true;
  }

  void normalise(State& state) const {
    unsigned live = 0;
    for (int t = 0; t < kThreads; ++t)
      if (!program_.done(state, t)) live |= 1U << t;
    state.memory.normalise(live, loaders_);
  }

  bool ends_search(const std::optional<std::string>& violation) {
    if (!violation || !violation->starts_with(search_.only)) return false;
    outcome_.violation = violation;
    return true;
  }

  bool insert(const State& state) {
    key_.clear();
    state.memory.append_to(key_);
    program_.append_to(state, key_);
    key_.resize((key_.size() + 7) / 8 * 8);
    Digest d{0x9e3779b97f4a7c15ULL, key_.size()};
    for (std::size_t i = 0; i < key_.size(); i += 8) {
      std::uint64_t chunk = 0;
      std::memcpy(&chunk, key_.data() + i, 8);
      d.low = mix(d.low ^ chunk, 0xff51afd7ed558ccdULL);
      d.high = mix(d.high + chunk, 0xc4ceb9fe1a85ec53ULL);
    }
    return seen_.insert({mix(d.low, 0x2545f4914f6cdd1dULL), mix(d.high, 0xd6e8feb86659fd93ULL)}).second;
  }

  static std::uint64_t mix(std::uint64_t x, std::uint64_t factor) {
    x = (x ^ (x >> 32)) * factor;
    return x ^ (x >> 29);
  }

  // Takes the path to the violation again, this time with a log.
  void replay() {
    State state = program_.initial();
    for (const Taken& taken : path_) {
      std::string line;
      Access<M::kLimits> access(state.memory, taken.thread, taken.choice, &line, &M::describe);
      program_.step(state, access);
      normalise(state);
      outcome_.trace.push_back(std::move(line));
    }
  }

  const M& program_;
  Search search_;
  Outcome outcome_;
  std::unordered_set<Digest, DigestHash> seen_;
  std::vector<Taken> path_;
  std::array<unsigned, M::kLimits.locations> loaders_;
  std::string key_;
};

template <Program M>
Outcome explore(const M& program, const Search& search) {
  return Explorer<M>(program, search).run();
}

}  // namespace ashlar::exploration
