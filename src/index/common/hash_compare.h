// hash_compare: the inner loops of a query, with the widest vector instructions of this machine: the common
// prefix of two hash lists, and one number written to many places.
//
// Files compiled for a wider instruction set include nothing else, so that none of their inline functions can
// end up in portable code.
#pragma once

#include <cstdint>

namespace ashlar::index::detail {

// The number of leading elements that are equal, at most n.
using CommonPrefix = std::uint32_t (*)(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n);

std::uint32_t common_prefix_portable(const std::uint64_t* a, const std::uint64_t* b,
                                     std::uint32_t n) noexcept;
#if defined(__x86_64__)
std::uint32_t common_prefix_avx2(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n) noexcept;
std::uint32_t common_prefix_avx512(const std::uint64_t* a, const std::uint64_t* b, std::uint32_t n) noexcept;
#endif

// Writes `value` to the elements of a[0..64) whose bit is set in `mask`.
using WriteMasked = void (*)(std::uint32_t* a, std::uint64_t mask, std::uint32_t value);

void write_masked_portable(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept;
#if defined(__x86_64__)
void write_masked_avx2(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept;
void write_masked_avx512(std::uint32_t* a, std::uint64_t mask, std::uint32_t value) noexcept;
#endif

// The fastest ones on this machine, chosen once.
CommonPrefix common_prefix_kernel() noexcept;
WriteMasked write_masked_kernel() noexcept;

}  // namespace ashlar::index::detail
