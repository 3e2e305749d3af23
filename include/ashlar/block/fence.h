// Fence: a moment that a device or the kernel reports, once. FenceSignal: the right to report it. KvReady:
// the proof that the KV of a block exists.
//
// Work in flight owns what it touches: a block that a launched computation still reads or writes is not
// allocated again before its fence has passed, even when the caller stops waiting. A fence passes when its
// signal says so, never by time. Destroying a signal unused leaves its fence unpassed forever, and the block
// in quarantine, counted.
//
// A block may be registered only when its KV has been computed or copied. Every way to a CompleteBlock takes
// a KvReady or creates it: InflightBlock::compute_done() creates it from a fence that has passed, a transfer
// creates it from its completion, and a caller who knows by other means vouches for it explicitly.
//
// Thread safety: Fence and FenceSignal are thread-safe, KvReady is an immutable value. Callbacks run on the
//                thread that signals or destroys the signal, outside every lock.
// Complexity:    passed() is one load. create() allocates, on_settled() and on_passed() may.
#pragma once

#include <functional>
#include <memory>
#include <utility>

namespace ashlar::block {

class FenceSignal;

class Fence {
 public:
  // A fence and its signal.
  static std::pair<Fence, FenceSignal> create();
  // A passed fence: for work that is done when launch() returns.
  static Fence passed_already();

  bool passed() const noexcept;
  // True when the signal was destroyed unused: this fence can never pass.
  bool abandoned() const noexcept;
  // Runs `callback` when the fence passes (true) or is abandoned (false), or at once if it has. Every
  // callback runs exactly once. It must not throw.
  void on_settled(std::function<void(bool passed)> callback) const;
  // The same, but never if the fence is abandoned.
  void on_passed(std::function<void()> callback) const;

  // True for copies of the same fence.
  friend bool operator==(const Fence&, const Fence&) = default;

 private:
  friend class FenceSignal;
  struct State;
  explicit Fence(std::shared_ptr<State> state) : state_(std::move(state)) {}
  std::shared_ptr<State> state_;
};

class FenceSignal {
 public:
  FenceSignal(FenceSignal&&) noexcept = default;
  FenceSignal& operator=(FenceSignal&&) noexcept;
  FenceSignal(const FenceSignal&) = delete;
  FenceSignal& operator=(const FenceSignal&) = delete;
  ~FenceSignal();

  // Reports the moment. On return the fence has passed, and its callbacks have run.
  void signal() && noexcept;

 private:
  friend class Fence;
  explicit FenceSignal(std::shared_ptr<Fence::State> state) : state_(std::move(state)) {}
  void abandon() noexcept;
  void settle(bool passed) noexcept;
  std::shared_ptr<Fence::State> state_;
};

class KvReady {
 public:
  // "I, the caller, vouch that the KV of this block is complete in its memory."
  static constexpr KvReady asserted_by_caller() noexcept { return KvReady(); }

 private:
  constexpr KvReady() = default;
};

}  // namespace ashlar::block
