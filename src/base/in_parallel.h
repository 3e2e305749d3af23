// in_parallel: a loop on several threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <thread>
#include <utility>
#include <vector>

#include "base/start_thread.h"

namespace ashlar {

// Calls fn(i) for all i below `count`, on the caller's thread and up to `threads` - 1 others. Proceeds with
// fewer threads if some cannot start. fn must not throw.
template <class F>
void in_parallel(std::size_t count, std::size_t threads, F&& fn) {
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    // relaxed: only the number is shared; joining publishes the results.
    for (std::size_t i = 0; (i = next.fetch_add(1, std::memory_order_relaxed)) < count;) fn(i);
  };
  std::vector<std::thread> others;
  for (std::size_t t = 1; t < std::min(threads, count); ++t) {
    std::thread thread;
    if (!start_thread(&thread, work)) break;
    others.push_back(std::move(thread));
  }
  work();
  for (std::thread& thread : others) thread.join();
}

}  // namespace ashlar
