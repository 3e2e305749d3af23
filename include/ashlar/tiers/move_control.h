// MoveControl: ends moves from outside, at whatever stage they are.
//
// Thread safety: thread-safe.
#pragma once

#include <map>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/transfer/transfer.h"

namespace ashlar::tiers {

class MoveControl {
 public:
  // Nothing more is started; the copies that run end soon.
  void cancel() {
    std::map<const void*, std::vector<transfer::Transfer>> running;
    {
      const MutexLock lock(mu_);
      cancelled_ = true;
      running = running_;
    }
    for (const auto& [move, transfers] : running)
      for (const transfer::Transfer& transfer : transfers) transfer.cancel();
  }
  bool cancelled() const {
    const MutexLock lock(mu_);
    return cancelled_;
  }
  // This copy of a move runs now. It is cancelled at once when the control was.
  void started(const void* move, const transfer::Transfer& transfer) {
    bool cancel_it = false;
    {
      const MutexLock lock(mu_);
      running_[move].push_back(transfer);
      cancel_it = cancelled_;
    }
    if (cancel_it) transfer.cancel();
  }
  // None of that move's runs any more.
  void ended(const void* move) {
    std::vector<transfer::Transfer> ended;  // dropped outside the lock
    const MutexLock lock(mu_);
    const auto found = running_.find(move);
    if (found == running_.end()) return;
    ended.swap(found->second);
    running_.erase(found);
  }

 private:
  mutable Mutex mu_;
  bool cancelled_ ASHLAR_GUARDED_BY(mu_) = false;
  std::map<const void*, std::vector<transfer::Transfer>> running_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
