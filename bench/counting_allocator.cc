#include "counting_allocator.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <functional>
#include <mutex>
#include <new>
#include <unordered_map>
#include <utility>

namespace {

// Past operator new, which it serves.
template <class T>
struct Malloc {
  using value_type = T;

  Malloc() = default;
  template <class U>
  explicit Malloc(const Malloc<U>&) noexcept {}

  T* allocate(std::size_t count) { return static_cast<T*>(std::malloc(count * sizeof(T))); }
  void deallocate(T* memory, std::size_t) noexcept { std::free(memory); }
  friend bool operator==(const Malloc&, const Malloc&) = default;
};

// What was asked for, by address: not every delete says it.
struct Ledger {
  std::mutex mu;
  std::unordered_map<void*, std::size_t, std::hash<void*>, std::equal_to<>,
                     Malloc<std::pair<void* const, std::size_t>>>
      sizes;
  std::int64_t live = 0;
};

std::atomic<bool> counting{false};

// Never destroyed: memory is freed until the very end.
Ledger& ledger() {
  static Ledger* const only = new (std::malloc(sizeof(Ledger))) Ledger;
  return *only;
}

void* count(void* memory, std::size_t size) {
  if (memory == nullptr) std::abort();
  // relaxed: switched on before the threads that matter start.
  if (counting.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> lock(ledger().mu);
    ledger().sizes[memory] = size;
    ledger().live += static_cast<std::int64_t>(size);
  }
  return memory;
}

void discount(void* memory) noexcept {
  if (memory != nullptr && counting.load(std::memory_order_relaxed)) {
    const std::lock_guard<std::mutex> lock(ledger().mu);
    if (const auto found = ledger().sizes.find(memory); found != ledger().sizes.end()) {
      ledger().live -= static_cast<std::int64_t>(found->second);
      ledger().sizes.erase(found);
    }
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
  const std::lock_guard<std::mutex> lock(ledger().mu);
  return ledger().live;
}

}  // namespace ashlar::bench

// The forms for arrays and for nothrow call these.
void* operator new(std::size_t size) {
  return count(std::malloc(size), size);
}
void* operator new(std::size_t size, std::align_val_t alignment) {
  return count(aligned(size, alignment), size);
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
