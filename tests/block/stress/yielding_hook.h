// YieldingHook: makes threads give way at the interleaving points, where the windows are. Without it a
// machine with few cores rarely stops a thread there.
//
// Thread safety: thread-safe. One at a time; threads must be joined before it goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "base/interleaving.h"

namespace ashlar::block::stress {

class YieldingHook final : private InterleavingHook {
 public:
  YieldingHook() { set_interleaving_hook(this); }
  ~YieldingHook() override { set_interleaving_hook(nullptr); }
  YieldingHook(const YieldingHook&) = delete;
  YieldingHook& operator=(const YieldingHook&) = delete;

 private:
  void at(const char*) override {
    // Two of three passes; relaxed: which ones does not matter.
    if (passes_.fetch_add(1, std::memory_order_relaxed) % 3 != 0) std::this_thread::yield();
  }
  std::atomic<std::uint64_t> passes_{0};
};

}  // namespace ashlar::block::stress
