// Fence: a moment that a device or the kernel reports, once. FenceSignal: the right to report it. KvReady:
// the proof that the KV of a block exists.
//
// Work in flight owns what it touches: a block that a launched computation still reads or writes is not
// allocated again before its fence has passed, even when the caller stops waiting. That holds for guards
// (InflightBlock, release_after()), for blocks that are registered with a fence (RegistrationOptions::after),
// and for what a request or sequence returns while the fence of its last step has not settled. A fence
// settles in one of three ways, by its signal, never by time:
//
//   passed     the work has ended, its blocks are written         their blocks return
//   failed     the work has ended, its blocks are not written     their blocks return; registered ones lose
//                                                                 their names at once
//   abandoned  the signal was destroyed unused: nobody can say    the same, but they never return: they stay
//              when the work ends                                 in quarantine or in use, counted
//
// A block may be registered only when its KV has been computed or copied. Every way to a CompleteBlock takes
// a KvReady or creates it: InflightBlock::compute_done() creates it from a fence that has passed, a transfer
// creates it from its completion, and a caller who knows by other means vouches for it explicitly.
//
// Thread safety: Fence and FenceSignal are thread-safe, KvReady is an immutable value. Callbacks run on the
//                thread that signals or destroys the signal, outside every lock, in the order of their calls.
// Complexity:    passed() is one load. create() allocates, the on_…() calls may.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace ashlar::block {

class FenceSignal;

// How a fence has settled.
enum class FenceEnd : std::uint8_t { kPassed, kFailed, kAbandoned };

class Fence {
 public:
  // A fence and its signal.
  static std::pair<Fence, FenceSignal> create();
  // A passed fence: for work that is done when launch() returns.
  static Fence passed_already();

  bool passed() const noexcept;
  // True when the work has ended without writing its blocks.
  bool failed() const noexcept;
  // True when the signal was destroyed unused.
  bool abandoned() const noexcept;
  // Passed or failed: the work touches its blocks no longer. They are back when signal() or fail() has
  // returned, not before.
  bool ended() const noexcept;
  // Failed or abandoned.
  bool never_passes() const noexcept;
  // Runs `callback` when the fence passes (true), fails or is abandoned (false), or at once if it has. Every
  // callback runs exactly once. It must not throw.
  void on_settled(std::function<void(bool passed)> callback) const;
  // The same, when the fence passes or fails; never if it is abandoned.
  void on_ended(std::function<void()> callback) const;
  // The same, but only when the fence passes.
  void on_passed(std::function<void()> callback) const;

  // Something that waits for a fence. Called once, as callbacks are, and destroyed when all that wait were
  // called.
  class Waiting {
   public:
    virtual ~Waiting() = default;
    virtual void settled(FenceEnd end) noexcept = 0;

   private:
    friend class Fence;
    friend class FenceSignal;
    std::unique_ptr<Waiting> next_;
  };
  // on_settled() for a caller that may have no memory: allocates nothing.
  void keep(std::unique_ptr<Waiting> waiting) const noexcept;

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
  // Reports that the work has ended, or was never launched, and its blocks are not written: nothing reads or
  // writes them any more. On return the fence has failed, and its callbacks have run.
  void fail() && noexcept;

 private:
  friend class Fence;
  explicit FenceSignal(std::shared_ptr<Fence::State> state) : state_(std::move(state)) {}
  void abandon() noexcept;
  void settle(FenceEnd end) noexcept;
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
