// Memory and the accesses of threads under a weak memory model, for the explorer of explorer.h.
//
// The model is the operational C++20 fragment of relaxed, release, acquire and seq_cst accesses, without load
// buffering:
//
//   - An atomic location is a history of messages in modification order; a write appends. A message carries
//     its value and the view it hands to whoever acquires it.
//   - A thread has a view: per location the oldest message it may still read, and per thread the plain
//     accesses of that thread it has come after. A load takes any message not older than the view, so stale
//     reads and store buffering are among the executions.
//   - A release write hands over the writer's view. A read-modify-write reads the last message and hands on
//     that message's view as well (the release sequence goes on), whatever its own order is.
//   - A compare-exchange that fails is a load: it may see any readable message that differs from what it
//     expects. It does not fail spuriously.
//   - Sequentially consistent accesses happen in the order of the search: such a load takes no message older
//     than the last one that a seq_cst access to the location took or made. Otherwise they are acquires and
//     releases.
//   - Plain locations are watched by a vector-clock race detector whose clocks travel in the same views.
//
// What it leaves out: fences, a relaxed write placed before another in modification order, and a load that
// reads from a write later in program order or in happens-before.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace ashlar::exploration {

using Value = std::uint32_t;

// How large a program may be; the cost of a step grows with it.
struct Limits {
  int threads;
  int locations;
  int plain_locations;
  int messages;  // of one location, of which some thread may still read the first
};

// What a thread has seen: per location the oldest message it may still read, per thread the number of that
// thread's plain accesses that happened before.
//
// Thread safety: thread-compatible, as is everything in this file.
template <Limits L>
struct View {
  std::array<std::uint8_t, L.locations> seen{};
  std::array<std::uint8_t, L.threads> clock{};

  void join(const View& other) {
    for (int i = 0; i < L.locations; ++i) seen[i] = std::max(seen[i], other.seen[i]);
    for (int i = 0; i < L.threads; ++i) clock[i] = std::max(clock[i], other.clock[i]);
  }

  // Renumbers against a base that every live thread has reached.
  void rebase(const View& base) {
    for (int i = 0; i < L.locations; ++i) seen[i] = less(seen[i], base.seen[i]);
    for (int i = 0; i < L.threads; ++i) clock[i] = less(clock[i], base.clock[i]);
  }

  // Clears what is no news to whoever knows `known`.
  void forget(const View& known) {
    for (int i = 0; i < L.locations; ++i)
      if (seen[i] <= known.seen[i]) seen[i] = 0;
    for (int i = 0; i < L.threads; ++i)
      if (clock[i] <= known.clock[i]) clock[i] = 0;
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
template <Limits L>
class Memory {
  using View = exploration::View<L>;

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
  // steps to take; the views of the others are cleared. `loaders` has for every location a bit for each
  // thread that ever reads it or exchanges it.
  void normalise(unsigned live, const std::array<unsigned, L.locations>& loaders) {
    if (live == 0) return keep_last_values();
    for (int t = 0; t < L.threads; ++t)
      if ((live >> t & 1) == 0) views_[t] = View{};
    View base = common_view(live);
    for (int i = 0; i < L.locations; ++i) {
      const unsigned readers = live & loaders[i];
      base.seen[i] =
          readers != 0 ? common_view(readers).seen[i] : static_cast<std::uint8_t>(histories_[i].size - 1);
    }
    for (int i = 0; i < L.locations; ++i) {
      History& h = histories_[i];
      const int gone = base.seen[i];
      if (gone > 0) std::move(h.messages.begin() + gone, h.messages.begin() + h.size, h.messages.begin());
      h.size -= gone;
      for (int m = 0; m < h.size; ++m) h.messages[m].view.rebase(base);
    }
    for (View& view : views_) view.rebase(base);
    mutex_view_.rebase(base);
    for (int i = 0; i < L.locations; ++i) consistent_[i] = View::less(consistent_[i], base.seen[i]);
    for (Plain& p : plain_) {
      p.write_clock = View::less(p.write_clock, base.clock[p.writer]);
      if (p.write_clock == 0) p.writer = 0;
      for (int t = 0; t < L.threads; ++t) p.read_clock[t] = View::less(p.read_clock[t], base.clock[t]);
    }
    for (int i = 0; i < L.locations; ++i) {
      const unsigned readers = live & loaders[i];
      if (readers == live) continue;
      const View known = readers != 0 ? common_view(readers) : View{};
      for (int m = 0; m < histories_[i].size; ++m) {
        if (readers == 0) histories_[i].messages[m].view = View{};
        histories_[i].messages[m].view.forget(known);
      }
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
    append_bytes(key, consistent_);
    key.push_back(mutex_held_ ? 1 : 0);
  }

  template <class T>
  static void append_bytes(std::string& key, const T& value) {
    static_assert(std::has_unique_object_representations_v<T>);
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }

 private:
  template <Limits>
  friend class Access;

  struct Message {
    Value value = 0;
    View view;
  };
  struct History {
    int size = 0;
    std::array<Message, L.messages> messages{};
    const Message& back() const { return messages[size - 1]; }
  };
  // Epochs count the plain accesses of a thread; 0 is "known to every live thread".
  struct Plain {
    Value value = 0;
    std::uint8_t write_clock = 0;
    std::uint8_t writer = 0;
    std::array<std::uint8_t, L.threads> read_clock{};
    std::array<std::uint8_t, 3> unused{};
  };

  const History& history(int location) const { return histories_[location]; }

  // What all of some threads have seen.
  View common_view(unsigned threads) const {
    View common;
    common.seen.fill(0xff);
    common.clock.fill(0xff);
    for (int t = 0; t < L.threads; ++t) {
      if ((threads >> t & 1) == 0) continue;
      for (int i = 0; i < L.locations; ++i) common.seen[i] = std::min(common.seen[i], views_[t].seen[i]);
      for (int i = 0; i < L.threads; ++i) common.clock[i] = std::min(common.clock[i], views_[t].clock[i]);
    }
    return common;
  }

  // What is left when no thread has steps to take.
  void keep_last_values() {
    for (History& h : histories_) {
      h.messages[0] = Message{h.back().value, View{}};
      h.size = 1;
    }
    for (Plain& p : plain_) p = Plain{.value = p.value};
    views_ = {};
    mutex_view_ = View{};
    consistent_ = {};
  }

  std::array<History, L.locations> histories_{};
  std::array<Plain, L.plain_locations> plain_{};
  std::array<View, L.threads> views_{};
  View mutex_view_;
  // The message that the last seq_cst access to the location took or made.
  std::array<std::uint8_t, L.locations> consistent_{};
  bool mutex_held_ = false;
};

// One step of one thread: the operations the thread may use on the memory.
//
// A step makes at most one access with more than one outcome (a load or a compare-exchange); `choice` says
// which outcome this run takes and alternatives() how many there were. With a `log` each access writes what
// it did.
template <Limits L>
class Access {
  using Memory = exploration::Memory<L>;
  using View = exploration::View<L>;

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
    const int first = first_readable(location, order);
    alternatives_ = memory_.history(location).size - first;
    return take(location, first + choice_, order, "load");
  }

  void store(int location, Value value, std::memory_order order) {
    if (log_ != nullptr) say(location, value, std::string("store ") + name(order));
    append(location, value, releases(order) ? view() : View{}, order);
  }

  struct Exchanged {
    bool done;
    Value seen;
  };
  Exchanged compare_exchange(int location, Value expected, Value desired, std::memory_order success,
                             std::memory_order failure) {
    const typename Memory::History& h = memory_.history(location);
    std::array<int, L.messages> different{};
    int count = 0;
    for (int m = first_readable(location, failure); m < h.size; ++m)
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
    typename Memory::Plain& p = memory_.plain_[location];
    if (!ordered(p.writer, p.write_clock)) race("read", "write", p.writer, location);
    p.read_clock[thread_] = ++view().clock[thread_];
    if (log_ != nullptr) say_plain(location, p.value, "plain read");
    return p.value;
  }

  void write(int location, Value value) {
    typename Memory::Plain& p = memory_.plain_[location];
    if (!ordered(p.writer, p.write_clock)) race("write", "write", p.writer, location);
    for (int t = 0; t < L.threads; ++t)
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
    return order == std::memory_order_release || order == std::memory_order_acq_rel || consistent(order);
  }
  static bool acquires(std::memory_order order) {
    return order == std::memory_order_acquire || order == std::memory_order_acq_rel || consistent(order);
  }
  static bool consistent(std::memory_order order) { return order == std::memory_order_seq_cst; }
  static const char* name(std::memory_order order) {
    if (order == std::memory_order_relaxed) return "relaxed";
    if (order == std::memory_order_acquire) return "acquire";
    if (order == std::memory_order_release) return "release";
    if (order == std::memory_order_acq_rel) return "acq_rel";
    return "seq_cst";
  }

  View& view() { return memory_.views_[thread_]; }
  bool ordered(int thread, std::uint8_t clock) { return thread == thread_ || view().clock[thread] >= clock; }

  int first_readable(int location, std::memory_order order) {
    const int first = view().seen[location];
    return consistent(order) ? std::max<int>(first, memory_.consistent_[location]) : first;
  }

  Value take(int location, int message, std::memory_order order, const char* verb) {
    const typename Memory::History& h = memory_.history(location);
    const typename Memory::Message& m = h.messages[message];
    view().seen[location] = static_cast<std::uint8_t>(message);
    if (consistent(order)) memory_.consistent_[location] = static_cast<std::uint8_t>(message);
    if (acquires(order)) view().join(m.view);
    if (log_ != nullptr) {
      say(location, m.value, std::string(verb) + " " + name(order));
      if (message + 1 < h.size) *log_ += " (stale by " + std::to_string(h.size - 1 - message) + ")";
    }
    return m.value;
  }

  void modify(int location, Value value, std::memory_order order, const char* verb) {
    const typename Memory::Message before = memory_.history(location).back();
    if (acquires(order)) view().join(before.view);
    if (log_ != nullptr) say(location, value, std::string(verb) + " " + name(order) + " to");
    View handed = before.view;
    if (releases(order)) handed.join(view());
    append(location, value, handed, order);
  }

  void append(int location, Value value, View handed, std::memory_order order) {
    typename Memory::History& h = memory_.histories_[location];
    if (h.size == L.messages) {
      std::fputs("weak_memory.h: a history outgrew its limit\n", stderr);
      std::abort();
    }
    const auto at = static_cast<std::uint8_t>(h.size);
    view().seen[location] = at;
    if (releases(order)) handed.seen[location] = at;
    if (consistent(order)) memory_.consistent_[location] = at;
    h.messages[h.size++] = typename Memory::Message{value, handed};
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

}  // namespace ashlar::exploration
