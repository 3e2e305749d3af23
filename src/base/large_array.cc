#include "base/large_array.h"

#include <sys/mman.h>

#include <cstdint>
#include <new>

namespace ashlar::detail {
namespace {
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kWorthIt = kHugePage / 4;

std::size_t mapped_bytes(std::size_t bytes) noexcept {
  return bytes < kWorthIt ? bytes : (bytes + kHugePage - 1) / kHugePage * kHugePage + kHugePage;
}
}  // namespace

// A mapping is zeroed and committed page by page. Where huge pages pay, it is one huge page longer than
// needed, the array starts at the first huge-page boundary inside, and the excess on both sides is unmapped
// at once.
void* allocate_large(std::size_t bytes) {
  const std::size_t mapped = mapped_bytes(bytes);
  void* memory = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  if (bytes < kWorthIt) return memory;
  const std::size_t past = reinterpret_cast<std::uintptr_t>(memory) % kHugePage;
  const std::size_t before = past == 0 ? 0 : kHugePage - past;
  const std::size_t kept = mapped - kHugePage;
  auto* start = static_cast<std::byte*>(memory) + before;
  if (before != 0) munmap(memory, before);
  if (before != kHugePage) munmap(start + kept, kHugePage - before);
  madvise(start, kept, MADV_HUGEPAGE);  // a hint; without huge pages the table is only slower
  return start;
}

void free_large(void* memory, std::size_t bytes) noexcept {
  munmap(memory, bytes < kWorthIt ? bytes : mapped_bytes(bytes) - kHugePage);
}

}  // namespace ashlar::detail
