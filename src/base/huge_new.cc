#include "base/huge_new.h"

#include <sys/mman.h>

namespace ashlar {
namespace {

constexpr std::align_val_t kAlignment{kHugeBytes};

// A hint; without huge pages the memory is only slower.
void* ask(void* memory, std::size_t bytes) noexcept {
  if (memory != nullptr) madvise(memory, bytes / kHugeBytes * kHugeBytes, MADV_HUGEPAGE);
  return memory;
}

}  // namespace

void* huge_new(std::size_t bytes) {
  return bytes < kHugeBytes ? ::operator new(bytes) : ask(::operator new(bytes, kAlignment), bytes);
}

void* huge_new(std::size_t bytes, const std::nothrow_t& nothrow) noexcept {
  return bytes < kHugeBytes ? ::operator new(bytes, nothrow)
                            : ask(::operator new(bytes, kAlignment, nothrow), bytes);
}

void huge_delete(void* memory, std::size_t bytes) noexcept {
  if (bytes < kHugeBytes)
    ::operator delete(memory);
  else
    ::operator delete(memory, kAlignment);
}

}  // namespace ashlar
