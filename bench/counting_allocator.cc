#include "counting_allocator.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace {

std::atomic<bool> counting{false};
std::atomic<std::int64_t> live{0};

// relaxed throughout: a sum that is read when everything has come to rest.
void* count(void* memory) {
  if (memory == nullptr) std::abort();
  if (counting.load(std::memory_order_relaxed)) {
    live.fetch_add(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  }
  return memory;
}

void discount(void* memory) noexcept {
  if (memory != nullptr && counting.load(std::memory_order_relaxed)) {
    live.fetch_sub(static_cast<std::int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  }
  std::free(memory);
}

void* aligned(std::size_t size, std::align_val_t alignment) {
  const auto to = static_cast<std::size_t>(alignment);
  return std::aligned_alloc(to, (size + to - 1) / to * to);
}

}  // namespace

namespace ashlar::bench {

void start_counting_bytes() noexcept {
  counting.store(true, std::memory_order_relaxed);
}
std::int64_t live_bytes() noexcept {
  return live.load(std::memory_order_relaxed);
}

}  // namespace ashlar::bench

// The forms for arrays, for nothrow and with a size call these.
void* operator new(std::size_t size) {
  return count(std::malloc(size));
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return count(aligned(size, alignment));
}
void operator delete(void* memory) noexcept {
  discount(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  discount(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  discount(memory);
}
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept {
  discount(memory);
}
