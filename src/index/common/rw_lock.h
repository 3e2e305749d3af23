// RwLock: a lock of four bytes for many readers or one writer, small enough for one in every node of a tree.
//
// Readers arriving while a writer waits let it go first; once a writer has had its turn they go before the
// next one. So neither side starves the other. Short waits spin, longer ones sleep on the word.
//
// The step that lets others in is the last one that touches the lock; later steps use only its address, to
// wake sleepers. So a thread that gets the lock, and knows that no other can arrive, may unlock and free it
// at once.
//
// Thread safety: thread-safe. Not recursive, even for readers. At most 65,535 readers at a time.
#pragma once

#include <atomic>
#include <cstdint>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::index {

class ASHLAR_CAPABILITY("rw_lock") RwLock {
 public:
  RwLock() = default;
  RwLock(const RwLock&) = delete;
  RwLock& operator=(const RwLock&) = delete;

  void lock() noexcept ASHLAR_ACQUIRE() {
    // relaxed: a guess, confirmed by the exchange.
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    // acquire: pairs with the releases in unlock() and unlock_shared().
    if ((seen & ~kTurns) != 0 ||
        !word_.compare_exchange_strong(seen, seen | kWriter, std::memory_order_acquire,
                                       std::memory_order_relaxed)) [[unlikely]]
      lock_slowly();
  }
  void unlock() noexcept ASHLAR_RELEASE() {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);  // relaxed: as in lock()
    // release: pairs with the acquires of the next owner. Sleepers that stay asleep set their bit again.
    while (!word_.compare_exchange_weak(seen, after_turn(seen), std::memory_order_release,
                                        std::memory_order_relaxed)) {
    }
    if ((seen & kSleepers) != 0) [[unlikely]]
      word_.notify_all();
  }

  void lock_shared() noexcept ASHLAR_ATTRIBUTE(acquire_shared_capability()) {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);  // relaxed: as in lock()
    // acquire: pairs with the release in unlock().
    if ((seen & (kWriter | kIntent)) != 0 ||
        !word_.compare_exchange_strong(seen, seen + 1, std::memory_order_acquire, std::memory_order_relaxed))
        [[unlikely]]
      lock_shared_slowly();
  }
  void unlock_shared() noexcept ASHLAR_ATTRIBUTE(release_shared_capability()) {
    // release: pairs with the acquire of the next writer, which must see that this reader is done.
    const std::uint32_t was = word_.fetch_sub(1, std::memory_order_release);
    ASHLAR_DCHECK((was & kReaders) != 0, "no reader holds the lock, word %x", was);
    if ((was & kReaders) == 1 && (was & kSleepers) != 0) [[unlikely]]
      word_.notify_all();
  }

 private:
  static constexpr std::uint32_t kWriter = 1u << 31;    // a writer holds the lock
  static constexpr std::uint32_t kIntent = 1u << 30;    // a writer waits
  static constexpr std::uint32_t kSleepers = 1u << 29;  // a thread may sleep on the word
  static constexpr std::uint32_t kOneTurn = 1u << 16;   // turns of writers, modulo
  static constexpr std::uint32_t kTurns = kSleepers - kOneTurn;
  static constexpr std::uint32_t kReaders = kOneTurn - 1;
  static constexpr int kSpins = 64;

  static std::uint32_t after_turn(std::uint32_t word) noexcept {
    return (word & ~(kWriter | kSleepers | kTurns)) | ((word + kOneTurn) & kTurns);
  }
  void lock_slowly() noexcept;
  void lock_shared_slowly() noexcept;
  // Spins briefly, then sleeps until the word differs from `seen`. Returns the word.
  std::uint32_t wait_while(std::uint32_t seen, int& spins) noexcept;

  std::atomic<std::uint32_t> word_{0};
};

}  // namespace ashlar::index
