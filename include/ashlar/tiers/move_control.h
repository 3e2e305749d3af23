// MoveControl: ends a move from outside, at whatever stage it is.
//
// Thread safety: thread-safe.
#pragma once

#include <optional>
#include <utility>

#include "ashlar/base/mutex.h"
#include "ashlar/transfer/transfer.h"

namespace ashlar::tiers {

class MoveControl {
 public:
  // Nothing more is started; the copy that runs ends soon.
  void cancel() {
    std::optional<transfer::Transfer> running;
    {
      const MutexLock lock(mu_);
      cancelled_ = true;
      running = running_;
    }
    if (running) running->cancel();
  }
  bool cancelled() const {
    const MutexLock lock(mu_);
    return cancelled_;
  }
  // This copy runs now. It is cancelled at once when the move was.
  void running(std::optional<transfer::Transfer> transfer) {
    bool cancel_it = false;
    {
      const MutexLock lock(mu_);
      running_ = transfer;
      cancel_it = cancelled_ && transfer;
    }
    if (cancel_it) transfer->cancel();
  }

 private:
  mutable Mutex mu_;
  bool cancelled_ ASHLAR_GUARDED_BY(mu_) = false;
  std::optional<transfer::Transfer> running_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
