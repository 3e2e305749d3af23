// Exhaustive exploration of small concurrent programs under a weak memory model.
//
// The model is the operational C++20 fragment of relaxed, release and acquire accesses, without load
// buffering:
//
//   - An atomic location is a history of messages in modification order; a write appends. A message carries
//   its
//     value and the view it hands to whoever acquires it.
//   - A thread has a view: per location the oldest message it may still read, and per thread the plain
//   accesses
//     of that thread it has come after. A load takes any message not older than the view, so stale reads and
//     store buffering are among the executions.
//   - A release write hands over the writer's view. A read-modify-write reads the last message and hands on
//   that
//     message's view as well (the release sequence goes on), whatever its own order is.
//   - A compare-exchange that fails is a load: it may see any readable message that differs from what it
//   expects.
//   - Plain locations are watched by a vector-clock race detector whose clocks travel in the same views.
//
// What it leaves out: sequentially consistent accesses, fences, a relaxed write placed before another in
// modification order, and a load that reads from a write later in program order. A protocol whose stores
// (other than read-modify-writes) to a location are ordered by a mutex has no executions of the third kind.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

namespace ashlar::block::model {

using Value = std::uint32_t;

inline constexpr int kThreads = 3;
inline constexpr int kLocations = 9;
inline constexpr int kPlainLocations = 4;
inline constexpr int kMessages = 14;

// What a thread has seen: per location the oldest message it may still read, per thread the number of that
// thread's plain accesses that happened before.
//
// Thread safety: thread-compatible, as is everything in this file.
struct View {
  std::array<std::uint8_t, kLocations> seen{};
  std::array<std::uint8_t, kThreads> clock{};

  void join(const View& other) {
    for (int i = 0; i < kLocations; ++i) seen[i] = std::max(seen[i], other.seen[i]);
    for (int i = 0; i < kThreads; ++i) clock[i] = std::max(clock[i], other.clock[i]);
  }

  // Renumbers against a base that every live thread has reached.
  void rebase(const View& base) {
    for (int i = 0; i < kLocations; ++i) seen[i] = less(seen[i], base.seen[i]);
    for (int i = 0; i < kThreads; ++i) clock[i] = less(clock[i], base.clock[i]);
  }

  // Returns: a - b, or 0 where that would be negative.
  static std::uint8_t less(std::uint8_t a, std::uint8_t b) {
    return static_cast<std::uint8_t>(a > b ? a - b : 0);
  }
};

// The shared memory of a program and the views of its threads: a value, copied at every step of the search.
//
// Invariant: after normalise(), message 0 of each history is readable by some live thread, and two memories
// that no continuation can tell apart have, as far as renumbering can achieve it, equal encodings.
class Memory {
 public:
  // Starts every location with one message that all threads know.
  void set_initial(int location, Value value) {
    histories_[location].size = 1;
    histories_[location].messages[0].value = value;
  }
  void set_initial_plain(int location, Value value) { plain_[location].value = value; }

  // Returns: the last value in modification order; for invariants, not for threads.
  Value last(int location) const { return history(location).back().value; }
  Value plain(int location) const { return plain_[location].value; }
  bool locked() const { return mutex_held_; }

  // Forgets what no live thread can read and renumbers the rest. `live` has a bit for every thread that has
  // steps to take; the views of the others are cleared.
  void normalise(unsigned live) {
    if (live == 0) return keep_last_values();
    View base;
    base.seen.fill(0xff);
    base.clock.fill(0xff);
    for (int t = 0; t < kThreads; ++t) {
      if ((live >> t & 1) == 0) {
        views_[t] = View{};
        continue;
      }
      for (int i = 0; i < kLocations; ++i) base.seen[i] = std::min(base.seen[i], views_[t].seen[i]);
      for (int i = 0; i < kThreads; ++i) base.clock[i] = std::min(base.clock[i], views_[t].clock[i]);
    }
    for (int i = 0; i < kLocations; ++i) {
      History& h = histories_[i];
      const int gone = base.seen[i];
      if (gone > 0) std::move(h.messages.begin() + gone, h.messages.begin() + h.size, h.messages.begin());
      h.size -= gone;
      for (int m = 0; m < h.size; ++m) h.messages[m].view.rebase(base);
    }
    for (View& view : views_) view.rebase(base);
    mutex_view_.rebase(base);
    for (Plain& p : plain_) {
      p.write_clock = View::less(p.write_clock, base.clock[p.writer]);
      if (p.write_clock == 0) p.writer = 0;
      for (int t = 0; t < kThreads; ++t) p.read_clock[t] = View::less(p.read_clock[t], base.clock[t]);
    }
  }

  void append_to(std::string& key) const {
    for (const History& h : histories_) {
      key.push_back(static_cast<char>(h.size));
      for (int m = 0; m < h.size; ++m) append_bytes(key, h.messages[m]);
    }
    append_bytes(key, plain_);
    append_bytes(key, views_);
    append_bytes(key, mutex_view_);
    key.push_back(mutex_held_ ? 1 : 0);
  }

  template <class T>
  static void append_bytes(std::string& key, const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

 private:
  friend class Access;

  struct Message {
    Value value = 0;
    View view;
  };
  struct History {
    int size = 0;
    std::array<Message, kMessages> messages{};
    const Message& back() const { return messages[size - 1]; }
  };
  // Epochs count the plain accesses of a thread; 0 is "known to every live thread".
  struct Plain {
    Value value = 0;
    std::uint8_t write_clock = 0;
    std::uint8_t writer = 0;
    std::array<std::uint8_t, kThreads> read_clock{};
    std::array<std::uint8_t, 3> unused{};
  };

  const History& history(int location) const { return histories_[location]; }

  // What is left when no thread has steps to take.
  void keep_last_values() {
    for (History& h : histories_) {
      h.messages[0] = Message{h.back().value, View{}};
      h.size = 1;
    }
    for (Plain& p : plain_) p = Plain{.value = p.value};
    views_ = {};
    mutex_view_ = View{};
  }

  std::array<History, kLocations> histories_{};
  std::array<Plain, kPlainLocations> plain_{};
  std::array<View, kThreads> views_{};
  View mutex_view_;
  bool mutex_held_ = false;
};

// One step of one thread: the operations the thread may use on the memory.
//
// A step makes at most one access with more than one outcome (a load or a compare-exchange); `choice` says
// which outcome this run takes and alternatives() how many there were. With a `log` each access writes what
// it did.
class Access {
 public:
  using Describe = std::string (*)(int location, Value value);

  Access(Memory& memory, int thread, int choice, std::string* log, Describe describe)
      : memory_(memory), thread_(thread), choice_(choice), log_(log), describe_(describe) {}

  int thread() const { return thread_; }
  int alternatives() const { return alternatives_; }
  const std::optional<std::string>& violation() const { return violation_; }
  void fail(std::string what) {
    if (!violation_) violation_ = std::move(what);
  }

  // Names the place in the program this step stands for.
  void at(const char* place) {
    if (log_ != nullptr) *log_ += std::string("T") + std::to_string(thread_) + " " + place;
  }

  Value load(int location, std::memory_order order) {
    const Memory::History& h = memory_.history(location);
    const int first = view().seen[location];
    alternatives_ = h.size - first;
    return take(location, first + choice_, order, "load");
  }

  void store(int location, Value value, std::memory_order order) {
    if (log_ != nullptr) say(location, value, std::string("store ") + name(order));
    append(location, value, releases(order) ? view() : View{}, releases(order));
  }

  struct Exchanged {
    bool done;
    Value seen;
  };
  Exchanged compare_exchange(int location, Value expected, Value desired, std::memory_order success,
                             std::memory_order failure) {
    const Memory::History& h = memory_.history(location);
    std::array<int, kMessages> different{};
    int count = 0;
    for (int m = view().seen[location]; m < h.size; ++m)
      if (h.messages[m].value != expected) different[count++] = m;
    const bool can_succeed = h.back().value == expected;
    alternatives_ = count + (can_succeed ? 1 : 0);
    if (can_succeed && choice_ == 0) {
      modify(location, desired, success, "compare_exchange");
      return {true, expected};
    }
    const int pick = different[choice_ - (can_succeed ? 1 : 0)];
    return {false, take(location, pick, failure, "compare_exchange fails,")};
  }

  // Returns: the value before the addition.
  Value fetch_add(int location, std::int32_t delta, std::memory_order order) {
    const Value old = memory_.last(location);
    modify(location, old + static_cast<Value>(delta), order, delta < 0 ? "fetch_sub" : "fetch_add");
    return old;
  }

  Value read(int location) {
    Memory::Plain& p = memory_.plain_[location];
    if (!ordered(p.writer, p.write_clock)) race("read", "write", p.writer, location);
    p.read_clock[thread_] = ++view().clock[thread_];
    if (log_ != nullptr) say_plain(location, p.value, "plain read");
    return p.value;
  }

  void write(int location, Value value) {
    Memory::Plain& p = memory_.plain_[location];
    if (!ordered(p.writer, p.write_clock)) race("write", "write", p.writer, location);
    for (int t = 0; t < kThreads; ++t)
      if (!ordered(t, p.read_clock[t])) race("write", "read", t, location);
    p.value = value;
    p.read_clock = {};
    p.writer = static_cast<std::uint8_t>(thread_);
    p.write_clock = ++view().clock[thread_];
    if (log_ != nullptr) say_plain(location, value, "plain write");
  }

  // Requires: the mutex is free; a model offers the step only then.
  void lock() {
    if (memory_.mutex_held_) fail("lock of a held mutex");
    memory_.mutex_held_ = true;
    view().join(memory_.mutex_view_);
    if (log_ != nullptr) *log_ += ": lock";
  }

  // `releases` is false only in the test that shows the mutex is needed.
  void unlock(bool releases = true) {
    memory_.mutex_held_ = false;
    if (releases) memory_.mutex_view_ = view();
    if (log_ != nullptr) *log_ += ": unlock";
  }

 private:
  static bool releases(std::memory_order order) {
    return order == std::memory_order_release || order == std::memory_order_acq_rel;
  }
  static bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel;
  }
  static const char* name(std::memory_order order) {
    if (order == std::memory_order_relaxed) return "relaxed";
    if (order == std::memory_order_acquire) return "acquire";
    if (order == std::memory_order_release) return "release";
    return "acq_rel";
  }

  View& view() { return memory_.views_[thread_]; }
  bool ordered(int thread, std::uint8_t clock) { return thread == thread_ || view().clock[thread] >= clock; }

  Value take(int location, int message, std::memory_order order, const char* verb) {
    const Memory::History& h = memory_.history(location);
    const Memory::Message& m = h.messages[message];
    view().seen[location] = static_cast<std::uint8_t>(message);
    if (acquires(order)) view().join(m.view);
    if (log_ != nullptr) {
      say(location, m.value, std::string(verb) + " " + name(order));
      if (message + 1 < h.size) *log_ += " (stale by " + std::to_string(h.size - 1 - message) + ")";
    }
    return m.value;
  }

  void modify(int location, Value value, std::memory_order order, const char* verb) {
    const Memory::Message before = memory_.history(location).back();
    if (acquires(order)) view().join(before.view);
    if (log_ != nullptr) say(location, value, std::string(verb) + " " + name(order) + " to");
    View handed = before.view;
    if (releases(order)) handed.join(view());
    append(location, value, handed, releases(order));
  }

  void append(int location, Value value, View handed, bool releases) {
    Memory::History& h = memory_.histories_[location];
    if (h.size == kMessages) {
      std::fputs("weak_memory.h: a history outgrew kMessages\n", stderr);
      std::abort();
    }
    const auto at = static_cast<std::uint8_t>(h.size);
    view().seen[location] = at;
    if (releases) handed.seen[location] = at;
    h.messages[h.size++] = Memory::Message{value, handed};
  }

  void race(const char* mine, const char* theirs, int other, int location) {
    fail("data race: " + std::string(mine) + " of " + describe_(-1 - location, memory_.plain(location)) +
         " against a " + theirs + " by T" + std::to_string(other));
  }
  void say(int location, Value value, const std::string& verb) {
    *log_ += ": " + verb + " " + describe_(location, value);
  }
  void say_plain(int location, Value value, const char* verb) {
    *log_ += std::string(": ") + verb + " " + describe_(-1 - location, value);
  }

  Memory& memory_;
  int thread_;
  int choice_;
  int alternatives_ = 1;
  std::string* log_;
  Describe describe_;
  std::optional<std::string> violation_;
};

// A program to explore. Its State is a value with a member `memory`; everything else in it (program counters,
// registers, what invariants are stated over) goes into the key by append_to().
//
//   done, enabled   whether a thread has ended, and whether it can step now
//   is_local        the next step commutes with whatever the others can do before it (a plain access, or
//   giving
//                   the mutex back), so that the search takes it first and alone
//   step            one step of a thread, through Access
//   check           the invariants of every state; check_final those of states in which all threads are done
//   describe        a location (plain ones as -1 - n) and a value, in words
template <class M>
concept Program = std::copyable<typename M::State> &&
                  requires(const M& m, const typename M::State& state, typename M::State& next,
                           Access& access, std::string& key, int thread) {
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
  Explorer(const M& program, std::size_t max_states, bool reduce)
      : program_(program), max_states_(max_states), reduce_(reduce) {}

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
      if (reduce_ && alone < 0 && program_.is_local(state, t)) alone = t;
    }
    if (all_done) {
      ++outcome_.ends;
      return !violated(program_.check_final(state));
    }
    if (stuck) return !violated("deadlock");
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
      Access access(next.memory, thread, choice, nullptr, &M::describe);
      program_.step(next, access);
      alternatives = access.alternatives();
      ++outcome_.transitions;
      path_.push_back({thread, choice});
      if (violated(access.violation()) || violated(program_.check(next))) return false;
      normalise(next);
      if (insert(next)) {
        if (seen_.size() > max_states_) return false;
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
    state.memory.normalise(live);
  }

  bool violated(std::optional<std::string> what) {
    if (what) outcome_.violation = std::move(what);
    return outcome_.violation.has_value();
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
      Access access(state.memory, taken.thread, taken.choice, &line, &M::describe);
      program_.step(state, access);
      normalise(state);
      outcome_.trace.push_back(std::move(line));
    }
  }

  const M& program_;
  std::size_t max_states_;
  bool reduce_;
  Outcome outcome_;
  std::unordered_set<Digest, DigestHash> seen_;
  std::vector<Taken> path_;
  std::string key_;
};

// Explores `program` up to `max_states` states. Without `reduce` local steps are interleaved like all others:
// the same ends, more states.
template <Program M>
Outcome explore(const M& program, std::size_t max_states, bool reduce = true) {
  return Explorer<M>(program, max_states, reduce).run();
}

}  // namespace ashlar::block::model
