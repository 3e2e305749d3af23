// ExclusiveHold and SharedHold: hold any annotated lock for a scope. Use MutexLock (ashlar/base/mutex.h) for
// a Mutex that a CondVar waits on, or that is released early.
//
// With kLocks = false they are no-ops, for structures that exist with and without locks.
//
// Thread safety: confined to the scope that holds. Complexity: as lock() and unlock().
#pragma once

#include "ashlar/base/mutex.h"

namespace ashlar {

template <class Lock, bool kLocks = true>
class ASHLAR_SCOPED_CAPABILITY ExclusiveHold {
 public:
  explicit ExclusiveHold(Lock& lock) noexcept ASHLAR_ACQUIRE(lock) : lock_(lock) { take(); }
  ~ExclusiveHold() ASHLAR_RELEASE() { let_go(); }
  ExclusiveHold(const ExclusiveHold&) = delete;
  ExclusiveHold& operator=(const ExclusiveHold&) = delete;

 private:
  void take() noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kLocks) lock_.lock();
  }
  void let_go() noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kLocks) lock_.unlock();
  }
  Lock& lock_;
};
template <class Lock>
ExclusiveHold(Lock&) -> ExclusiveHold<Lock>;

template <class Lock, bool kLocks = true>
class ASHLAR_SCOPED_CAPABILITY SharedHold {
 public:
  explicit SharedHold(Lock& lock) noexcept ASHLAR_ATTRIBUTE(acquire_shared_capability(lock)) : lock_(lock) {
    take();
  }
  ~SharedHold() ASHLAR_ATTRIBUTE(release_capability()) { let_go(); }
  SharedHold(const SharedHold&) = delete;
  SharedHold& operator=(const SharedHold&) = delete;

 private:
  void take() noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kLocks) lock_.lock_shared();
  }
  void let_go() noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kLocks) lock_.unlock_shared();
  }
  Lock& lock_;
};
template <class Lock>
SharedHold(Lock&) -> SharedHold<Lock>;

}  // namespace ashlar
