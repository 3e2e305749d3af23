// MoveControl: cancels moves from outside, at any stage.
//
// Thread safety: thread-safe.
#pragma once

#include <map>
#include <stop_token>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::tiers {

class MoveControl {
 public:
  // Starts no further copy; running copies end soon.
  void cancel() {
    stop_.request_stop();  // first: copies started from now on see it
    std::map<const void*, std::vector<transfer::Transfer>> running;
    {
      const MutexLock lock(mu_);
      running = running_;
    }
    for (const auto& [move, transfers] : running)
      for (const transfer::Transfer& transfer : transfers) transfer.cancel();
  }
  bool cancelled() const { return stop_.stop_requested(); }
  // For code that waits on something other than a copy.
  std::stop_token stop_token() const { return stop_.get_token(); }
  // Registers a running copy of a move. Cancels it at once if the control is cancelled.
  void started(const void* move, const transfer::Transfer& transfer) {
    bool cancel_it = false;
    {
      const MutexLock lock(mu_);
      running_[move].push_back(transfer);
      cancel_it = cancelled();
    }
    if (cancel_it) transfer.cancel();
  }
  // Forgets the copies of a move; all of them have ended.
  void ended(const void* move) {
    std::vector<transfer::Transfer> ended;  // dropped outside the lock
    const MutexLock lock(mu_);
    const auto found = running_.find(move);
    if (found == running_.end()) return;
    ended.swap(found->second);
    running_.erase(found);
  }

 private:
  std::stop_source stop_;
  Mutex mu_;
  std::map<const void*, std::vector<transfer::Transfer>> running_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
