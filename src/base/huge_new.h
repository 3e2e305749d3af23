// huge_new(): memory from operator new. From 4 KiB on it begins with a cache line; what it has of whole huge
// pages asks for them, which saves page faults while it is filled, and most address translations of random
// accesses. It is not aligned to them: operator new would take two more MiB for that, each time.
//
// Thread safety: free functions.
#pragma once

#include <cstddef>
#include <new>

namespace ashlar {

// Not initialised. Throws std::bad_alloc, or returns null with std::nothrow, as operator new does.
void* huge_new(std::size_t bytes);
void* huge_new(std::size_t bytes, const std::nothrow_t&) noexcept;
// Requires: memory of huge_new() of as many bytes, or null.
void huge_delete(void* memory, std::size_t bytes) noexcept;

}  // namespace ashlar
