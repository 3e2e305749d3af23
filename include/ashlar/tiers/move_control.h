// MoveControl: ends a move from outside, at whatever stage it is.
//
// Thread safety: thread-safe.
#pragma once

#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/transfer/transfer.h"

namespace ashlar::tiers {

class MoveControl {
 public:
  // Nothing more is started; the copies that run end soon.
  void cancel() {
    std::vector<transfer::Transfer> running;
    {
      const MutexLock lock(mu_);
      cancelled_ = true;
      running = running_;
    }
    for (const transfer::Transfer& transfer : running) transfer.cancel();
  }
  bool cancelled() const {
    const MutexLock lock(mu_);
    return cancelled_;
  }
  // This copy runs now. It is cancelled at once when the move was.
  void started(const transfer::Transfer& transfer) {
    bool cancel_it = false;
    {
      const MutexLock lock(mu_);
      running_.push_back(transfer);
      cancel_it = cancelled_;
    }
    if (cancel_it) transfer.cancel();
  }
  // None runs any more.
  void ended() {
    std::vector<transfer::Transfer> ended;  // dropped outside the lock
    const MutexLock lock(mu_);
    ended.swap(running_);
  }

 private:
  mutable Mutex mu_;
  bool cancelled_ ASHLAR_GUARDED_BY(mu_) = false;
  std::vector<transfer::Transfer> running_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
