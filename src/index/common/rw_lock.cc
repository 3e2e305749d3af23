#include "index/common/rw_lock.h"

namespace ashlar::index {

std::uint32_t RwLock::wait_while(std::uint32_t seen, int& spins) noexcept {
  if (spins < kSpins) {
    ++spins;
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
    // relaxed: here and below the value is only a guess, confirmed by an exchange.
    return word_.load(std::memory_order_relaxed);
  }
  if ((seen & kSleepers) == 0) {
    if (!word_.compare_exchange_strong(seen, seen | kSleepers, std::memory_order_relaxed)) return seen;
    seen |= kSleepers;
  }
  word_.wait(seen, std::memory_order_relaxed);
  return word_.load(std::memory_order_relaxed);
}

void RwLock::lock_slowly() noexcept {
  int spins = 0;
  std::uint32_t seen = word_.load(std::memory_order_relaxed);  // relaxed: see wait_while()
  for (;;) {
    if ((seen & (kWriter | kReaders)) == 0) {
      // Other waiting writers set their bit again. acquire: as in lock().
      if (word_.compare_exchange_weak(seen, (seen | kWriter) & ~kIntent, std::memory_order_acquire,
                                      std::memory_order_relaxed))
        return;
    } else if ((seen & kIntent) == 0) {
      // relaxed: the bit only makes readers wait.
      if (word_.compare_exchange_weak(seen, seen | kIntent, std::memory_order_relaxed)) seen |= kIntent;
    } else {
      seen = wait_while(seen, spins);
    }
  }
}

void RwLock::lock_shared_slowly() noexcept {
  int spins = 0;
  std::uint32_t seen = word_.load(std::memory_order_relaxed);  // relaxed: see wait_while()
  const std::uint32_t turns = seen & kTurns;
  for (;;) {
    // Waiting writers count only until one of them has had its turn.
    const std::uint32_t stop = (seen & kTurns) == turns ? kWriter | kIntent : kWriter;
    if ((seen & stop) != 0) {
      seen = wait_while(seen, spins);
    } else if (word_.compare_exchange_weak(seen, seen + 1, std::memory_order_acquire,
                                           std::memory_order_relaxed)) {  // acquire: as in lock_shared()
      return;
    }
  }
}

}  // namespace ashlar::index
