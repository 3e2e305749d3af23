#include "base/huge_new.h"

#include <sys/mman.h>

#include <cstdint>

namespace ashlar {
namespace {

constexpr std::size_t kHugeBytes = std::size_t{2} << 20;
constexpr std::size_t kAligned = 4096;  // bytes from which memory begins with a cache line
constexpr std::align_val_t kLine{64};

// A hint; without huge pages the memory is only slower.
void* ask(void* memory, std::size_t bytes) noexcept {
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  const std::uintptr_t first = (begin + kHugeBytes - 1) / kHugeBytes * kHugeBytes;
  const std::uintptr_t end = (begin + bytes) / kHugeBytes * kHugeBytes;
  if (memory != nullptr && first < end)
    madvise(static_cast<char*>(memory) + (first - begin), end - first, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

void* huge_new(std::size_t bytes) {
  return bytes < kAligned ? ::operator new(bytes) : ask(::operator new(bytes, kLine), bytes);
}

void* huge_new(std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return bytes < kAligned ? ::operator new(bytes, nothrow)
                          : ask(::operator new(bytes, kLine, nothrow), bytes);
}

void huge_delete(void* memory, std::size_t bytes) noexcept {
  if (bytes < kAligned)
    ::operator delete(memory);
  else
    ::operator delete(memory, kLine);
}

}  // namespace ashlar
