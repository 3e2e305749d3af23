// StripedRwLock: a reader-writer lock for rarely changing data. Readers of different threads do not contend:
// each takes one stripe, a writer takes all. StripeHold takes the stripe of its thread for a scope.
//
// Thread safety: thread-safe. Not recursive.
// Complexity:    shared, one RwLock; exclusively, kStripes of them.
#pragma once

#include <array>
#include <cstddef>

#include "ashlar/base/mutex.h"
#include "base/scoped_hold.h"
#include "index/common/rw_lock.h"
#include "index/common/thread_number.h"

namespace ashlar::index::detail {

class ASHLAR_CAPABILITY("rw_lock") StripedRwLock {
 public:
  StripedRwLock() = default;

  void lock() noexcept ASHLAR_ACQUIRE() ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    for (Stripe& stripe : stripes_) stripe.lock.lock();
  }
  void unlock() noexcept ASHLAR_RELEASE() ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    for (Stripe& stripe : stripes_) stripe.lock.unlock();
  }

 private:
  friend class StripeHold;
  static constexpr std::size_t kStripes = 16;
  struct alignas(64) Stripe {
    RwLock lock;
  };

  std::array<Stripe, kStripes> stripes_;
};

// Holds a StripedRwLock shared, by the stripe of the calling thread.
class ASHLAR_SCOPED_CAPABILITY StripeHold {
 public:
  explicit StripeHold(StripedRwLock& lock) noexcept
      ASHLAR_ATTRIBUTE(acquire_shared_capability(lock)) ASHLAR_NO_THREAD_SAFETY_ANALYSIS
      : stripe_(lock.stripes_[ThreadNumber::mine() % StripedRwLock::kStripes].lock) {
    stripe_.lock_shared();
  }
  ~StripeHold() ASHLAR_RELEASE() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { stripe_.unlock_shared(); }
  StripeHold(const StripeHold&) = delete;
  StripeHold& operator=(const StripeHold&) = delete;

 private:
  RwLock& stripe_;
};

}  // namespace ashlar::index::detail
