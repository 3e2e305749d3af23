// SpinLock: a lock for critical sections of some tens of nanoseconds. Uncontended, it costs one exchange to
// take and a plain store to release, half the cost of a Mutex.
//
// A thread that finds it taken backs off for some microseconds, so that the holder keeps its cache lines;
// after some rounds it yields the processor, then it sleeps. Not fair.
//
// Hold it with an ExclusiveHold (scoped_hold.h).
//
// Thread safety: thread-safe. Not recursive.
#pragma once

#include <atomic>
#include <chrono>
#include <thread>

#include "ashlar/base/mutex.h"

namespace ashlar {

class ASHLAR_CAPABILITY("spin_lock") SpinLock {
 public:
  SpinLock() = default;
  SpinLock(const SpinLock&) = delete;
  SpinLock& operator=(const SpinLock&) = delete;

  void lock() noexcept ASHLAR_ACQUIRE() {
    // acquire: pairs with the release in unlock().
    if (taken_.exchange(true, std::memory_order_acquire)) [[unlikely]]
      lock_slowly();
  }
  // release: pairs with the acquire of the next holder.
  void unlock() noexcept ASHLAR_RELEASE() { taken_.store(false, std::memory_order_release); }

 private:
  static constexpr unsigned kSpinRounds = 12;
  static constexpr unsigned kYieldRounds = 32;
  static constexpr unsigned kPauses = 128;  // one round: some tens of critical sections

  static void pause() noexcept {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("isb" ::: "memory");
#endif
  }
  [[gnu::noinline]] void lock_slowly() noexcept {
    for (unsigned round = 0;; ++round) {
      if (round < kSpinRounds) {
        for (unsigned i = 0; i < kPauses; ++i) pause();
      } else if (round < kSpinRounds + kYieldRounds) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
      // relaxed: a guess, which the exchange confirms. acquire: as in lock().
      if (!taken_.load(std::memory_order_relaxed) && !taken_.exchange(true, std::memory_order_acquire))
        return;
    }
  }

  std::atomic<bool> taken_{false};
};

}  // namespace ashlar
