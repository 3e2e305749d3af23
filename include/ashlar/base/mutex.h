// Mutex, MutexLock, CondVar: the standard ones with thread-safety annotations, so that clang checks the
// locking. The annotation macros are here too.
//
//   Mutex mu_;
//   int count_ ASHLAR_GUARDED_BY(mu_);                // clang refuses an access without mu_
//   void add_locked() ASHLAR_REQUIRES(mu_);           // and a call
//
// docs/concurrency.md has the lock order.
//
// Thread safety: thread-safe. A MutexLock is confined to its scope. Not recursive.
// Complexity:    as std::mutex and std::condition_variable; the annotations cost nothing at run time.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Macros for clang's thread-safety attributes; empty under other compilers.
//
//   of types       CAPABILITY             a lock                SCOPED_CAPABILITY   holds a lock for a scope
//   of data        GUARDED_BY(mu)         read and written with mu held
//                  PT_GUARDED_BY(mu)      the same for a pointer's target
//   of functions   REQUIRES(mu)           the caller holds mu   EXCLUDES(mu)        the caller does not
//                  ACQUIRE, TRY_ACQUIRE   takes the lock        RELEASE             releases it
//                  RETURN_CAPABILITY(mu)  returns mu itself
//   of locks       ACQUIRED_AFTER(mu)     the lock order
//   exceptions     NO_THREAD_SAFETY_ANALYSIS, with a comment that says why
#if defined(__clang__)
#define ASHLAR_ATTRIBUTE(x) __attribute__((x))
#else
#define ASHLAR_ATTRIBUTE(x)
#endif

#define ASHLAR_CAPABILITY(name) ASHLAR_ATTRIBUTE(capability(name))
#define ASHLAR_SCOPED_CAPABILITY ASHLAR_ATTRIBUTE(scoped_lockable)
#define ASHLAR_GUARDED_BY(mutex) ASHLAR_ATTRIBUTE(guarded_by(mutex))
#define ASHLAR_PT_GUARDED_BY(mutex) ASHLAR_ATTRIBUTE(pt_guarded_by(mutex))
#define ASHLAR_REQUIRES(...) ASHLAR_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define ASHLAR_EXCLUDES(...) ASHLAR_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ASHLAR_ACQUIRE(...) ASHLAR_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define ASHLAR_TRY_ACQUIRE(...) ASHLAR_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define ASHLAR_RELEASE(...) ASHLAR_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASHLAR_ACQUIRED_AFTER(...) ASHLAR_ATTRIBUTE(acquired_after(__VA_ARGS__))
#define ASHLAR_RETURN_CAPABILITY(x) ASHLAR_ATTRIBUTE(lock_returned(x))
#define ASHLAR_NO_THREAD_SAFETY_ANALYSIS ASHLAR_ATTRIBUTE(no_thread_safety_analysis)

namespace ashlar {

// A std::mutex that clang knows as a capability. Prefer MutexLock to lock() and unlock().
class ASHLAR_CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ASHLAR_ACQUIRE() { mutex_.lock(); }
  void unlock() ASHLAR_RELEASE() { mutex_.unlock(); }
  bool try_lock() ASHLAR_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds a Mutex for a scope. unlock() ends the hold early, once.
class ASHLAR_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) ASHLAR_ACQUIRE(mutex) : mutex_(&mutex) { mutex_->lock(); }
  ~MutexLock() ASHLAR_RELEASE() {
    if (mutex_ != nullptr) mutex_->unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void unlock() ASHLAR_RELEASE() {
    mutex_->unlock();
    mutex_ = nullptr;
  }

 private:
  Mutex* mutex_;
};

// Always wait in a loop over the condition; a wake-up proves nothing.
class CondVar {
 public:
  CondVar() = default;
  CondVar(const CondVar&) = delete;
  CondVar& operator=(const CondVar&) = delete;

  // Releases the mutex, sleeps until a notification, and takes the mutex again. May wake spuriously.
  void wait(Mutex& mutex) ASHLAR_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    cv_.wait(held);
    held.release();
  }
  // Returns false when the time point passed without a wake-up.
  template <class Clock, class Duration>
  bool wait_until(Mutex& mutex, const std::chrono::time_point<Clock, Duration>& when) ASHLAR_REQUIRES(mutex) {
    std::unique_lock<std::mutex> held(mutex.mutex_, std::adopt_lock);
    const bool woken = cv_.wait_until(held, when) == std::cv_status::no_timeout;
    held.release();
    return woken;
  }
  // Wake one waiter, or all. The mutex need not be held.
  void notify_one() noexcept { cv_.notify_one(); }
  void notify_all() noexcept { cv_.notify_all(); }

 private:
  std::condition_variable cv_;
};

}  // namespace ashlar
