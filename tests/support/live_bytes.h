// Replaces the global operator new and delete by ones that know how many bytes are in use. Include it in one
// file of a test program.
#pragma once

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<std::size_t> g_live_bytes = 0;
std::atomic<std::size_t> g_most_live_bytes = 0;  // since the last Peak

void* live_new(std::size_t size, std::size_t alignment) {
  void* const memory = alignment <= alignof(std::max_align_t)
                           ? std::malloc(size)
                           : std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
  if (memory == nullptr) std::abort();
  const std::size_t live = g_live_bytes.fetch_add(malloc_usable_size(memory)) + malloc_usable_size(memory);
  std::size_t most = g_most_live_bytes.load();
  while (most < live && !g_most_live_bytes.compare_exchange_weak(most, live)) {
  }
  return memory;
}
void live_delete(void* memory) noexcept {
  if (memory != nullptr) g_live_bytes.fetch_sub(malloc_usable_size(memory));
  std::free(memory);
}

// What was in use at most since it was made, beyond what was in use then.
class Peak {
 public:
  Peak() : before_(g_live_bytes.load()) { g_most_live_bytes.store(before_); }
  std::size_t bytes() const { return g_most_live_bytes.load() - before_; }

 private:
  std::size_t before_;
};

}  // namespace

// Not inlined: g++ would pair one that it sees through with one that it does not, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  return live_new(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, const std::nothrow_t&) noexcept {
  return live_new(size, 1);
}
[[gnu::noinline]] void* operator new(std::size_t size, std::align_val_t alignment) {
  return live_new(size, static_cast<std::size_t>(alignment));
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  live_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept {
  live_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  live_delete(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  live_delete(memory);
}
