// PressureRelay: calls the pressure callbacks of the tiers below G1 on a thread of its own.
//
// A lower tier crosses its watermarks in the middle of a move, while its pool may hold locks; callbacks of
// users run outside them. A tier has at most two calls waiting: whole cycles of low and normal are dropped.
//
// Thread safety: thread-safe.
// Complexity:    O(1) per call; allocates nothing after relayed().
// Invariant:     no callback runs before start() or after stop().
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/block/manager_options.h"

namespace ashlar::tiers {

class PressureRelay {
 public:
  PressureRelay() = default;
  ~PressureRelay() { stop(); }
  PressureRelay(const PressureRelay&) = delete;
  PressureRelay& operator=(const PressureRelay&) = delete;

  // The callback to give to a manager in place of `callback`; empty if that is. It keeps the relay alive.
  // Requires: before start().
  static block::PressureCallback relayed(const std::shared_ptr<PressureRelay>& relay,
                                         block::PressureCallback callback);
  // Starts the thread, if there is a callback. Of what happened so far only pressure that lasts is reported.
  // Errors: kCapacity: no thread.
  Result<void> start();
  // Returns when no callback runs; drops those that wait. Requires: not called by a callback.
  void stop();

 private:
  struct Call {
    block::Pressure pressure = block::Pressure::kNormal;
    std::size_t available = 0;
  };
  struct Tier {
    block::PressureCallback callback;
    std::array<Call, 2> waiting = {};
    std::size_t count = 0;
  };
  struct Due {
    const block::PressureCallback& callback;  // stays where it is after start()
    Call call;
  };
  void add(std::size_t tier, const Call& call);
  void run();
  // Waits for a call; nullopt when stopped.
  std::optional<Due> next();

  Mutex mu_;  // the last of the locks
  CondVar changed_;
  std::vector<Tier> tiers_ ASHLAR_GUARDED_BY(mu_);  // callbacks change only before start()
  std::size_t turn_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ashlar::tiers
