// huge_new(): memory from operator new. From 2 MiB on it is aligned to huge pages and asks for them, which
// saves page faults while it is filled, and most address translations of random accesses.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <new>

namespace ashlar {

inline constexpr std::size_t kHugeBytes = std::size_t{2} << 20;

// Not initialised. Throws std::bad_alloc, or returns null with std::nothrow, as operator new does.
void* huge_new(std::size_t bytes);
void* huge_new(std::size_t bytes, const std::nothrow_t&) noexcept;
// Requires: memory of huge_new() of as many bytes, or null.
void huge_delete(void* memory, std::size_t bytes) noexcept;

}  // namespace ashlar
