// Replaces the global operator new, and the memory of LargeArray, by ones that fail when a test says so.
// Include it in one file of a test program; not under sanitizers, which replace operator new themselves.
//
//   for_every_allocation([](FailingAllocation& failing) {
//     World world;                                                  // from the start each time
//     const bool done = failing.during([&] { return world.act(); });  // the n-th allocation of act() fails
//     ...                                                           // what is true whether or not it failed
//   });
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <thread>
#include <utility>

#include "base/large_array.h"

namespace {

// Of this thread: the number of the allocation to fail, counted down; 0: none fails.
thread_local std::size_t g_until_failure = 0;
thread_local bool g_fail_all_after = false;
thread_local bool g_failed = false;

void* failing_allocation(std::size_t size, std::size_t alignment) {
  if (g_until_failure != 0 && (--g_until_failure == 0)) {
    g_failed = true;
    if (g_fail_all_after) g_until_failure = 1;
    throw std::bad_alloc();
  }
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(size)
                           : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

// Not inlined: g++ would pair one that it sees through with one that it does not, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return failing_allocation(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  try {
    return failing_allocation(size, 1);
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return failing_allocation(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace ashlar::detail {

void* allocate_large(std::size_t bytes) {
  void* const memory = failing_allocation(bytes, 64);
  std::memset(memory, 0, bytes);
  return memory;
}
void free_large(void* memory, std::size_t) noexcept {
  std::free(memory);
}

}  // namespace ashlar::detail

namespace ashlar::support {

// Which allocations fail: one, or one and all after it.
enum class Shortage : std::uint8_t { kOnce, kFromThenOn };

// The allocation that fails, by its number.
class FailingAllocation {
 public:
  explicit FailingAllocation(std::size_t number) : number_(number) {}

  // Runs f() with that allocation failing. False when std::bad_alloc came out of f(), else what f() says.
  template <class F>
  bool during(F&& f) {
    return run(std::forward<F>(f), /*all_after=*/false);
  }
  // The same, with every allocation after it failing too.
  template <class F>
  bool from_then_on(F&& f) {
    return run(std::forward<F>(f), /*all_after=*/true);
  }
  template <class F>
  bool during(Shortage shortage, F&& f) {
    return run(std::forward<F>(f), shortage == Shortage::kFromThenOn);
  }
  // Whether there was one to fail.
  bool happened() const noexcept { return happened_; }
  std::size_t number() const noexcept { return number_; }

 private:
  template <class F>
  bool run(F&& f, bool all_after) {
    g_failed = false;
    g_fail_all_after = all_after;
    g_until_failure = number_;
    bool result = false;
    try {
      result = std::forward<F>(f)();
    } catch (const std::bad_alloc&) {
      g_until_failure = 0;
    }
    g_until_failure = 0;
    happened_ = g_failed;
    return result;
  }

  std::size_t number_;
  bool happened_ = false;
};

// Runs the scenario with the first allocation failing, with the second, and so on, until there is none to
// fail. Each run has a thread of its own, so that nothing is left of the memory that threads keep. Returns
// how many failed.
template <class Scenario>
std::size_t for_every_allocation(Scenario&& scenario) {
  for (std::size_t number = 1;; ++number) {
    FailingAllocation failing(number);
    std::thread([&] { scenario(failing); }).join();
    if (::testing::Test::HasFailure() || !failing.happened()) return number - 1;
  }
}

}  // namespace ashlar::support
