// SizeLimitSignal: while it lives, a write beyond the process's file size limit returns an error instead of
// raising the fatal signal.
//
// Thread safety: confined to its thread.
#pragma once

#include <pthread.h>

#include <csignal>
#include <ctime>

namespace ashlar::storage {

class SizeLimitSignal {
 public:
  SizeLimitSignal() noexcept {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGXFSZ) == 1;
    sigemptyset(&signal_);
    sigaddset(&signal_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  SizeLimitSignal(const SizeLimitSignal&) = delete;
  SizeLimitSignal& operator=(const SizeLimitSignal&) = delete;
  ~SizeLimitSignal() {
    const timespec at_once{0, 0};
    if (!was_pending_) sigtimedwait(&signal_, nullptr, &at_once);  // consumes it, if it was raised
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t signal_;
  sigset_t before_;
  bool was_pending_ = false;
};

}  // namespace ashlar::storage
