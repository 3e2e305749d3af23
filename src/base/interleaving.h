// Interleaving points: named places in slow paths where a test can stop a thread and let others run first.
//
// Production code passes a point at the cost of one acquire load. Tests install a hook through
// ashlar/testing/interleaving.h and pin an order of events by name instead of sleeping.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>

namespace ashlar {

class InterleavingHook {
 public:
  virtual ~InterleavingHook() = default;
  // Called on the thread that passes the point, with no lock of Ashlar's held unless the point says so.
  virtual void at(const char* point) = 0;
};

namespace detail {
inline std::atomic<InterleavingHook*> interleaving_hook{nullptr};
}

inline void interleaving_point(const char* name) {
  // acquire: pairs with the release in set_interleaving_hook().
  if (InterleavingHook* hook = detail::interleaving_hook.load(std::memory_order_acquire)) [[unlikely]]
    hook->at(name);
}

// Installs a hook for the whole process; null removes it. The hook must live until no thread passes a point.
inline void set_interleaving_hook(InterleavingHook* hook) {
  detail::interleaving_hook.store(hook, std::memory_order_release);
}

}  // namespace ashlar
