// The body of a kernel (xxh3_kernel.h): each kernel's file includes it once, under its own compiler flags.
//
// Local hashes do not depend on each other; the chain step is a hash of 16 bytes that depends on the one
// before. One loop does both, so that the core works ahead on local hashes while a chain step is in flight.
// Its speed is that of the slower of the two, so both are kept short:
//   - The secret that XXH3 derives from a seed holds, word for word, the sums that its rule for 17 to 128
//   bytes makes
//     of seed and default secret. With the derived secret at hand that rule needs no seed
//     (kernel_hash_short). Above 240 bytes XXH3 takes the derived secret itself.
//   - The chain step is written out for its one size and seed (kernel_chain).
//   - Block sizes in common use get a loop with the size as a constant.
#pragma once

#include "tokens/xxh3_kernel.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tokens {
namespace {

inline std::uint64_t kernel_load(const unsigned char* bytes) {
  std::uint64_t word;
  __builtin_memcpy(&word, bytes, sizeof(word));
  return word;
}

inline void kernel_store(unsigned char* bytes, std::uint64_t word) {
  __builtin_memcpy(bytes, &word, sizeof(word));
}

// The 128-bit product, its halves folded into one word.
inline std::uint64_t kernel_fold(std::uint64_t a, std::uint64_t b) {
  __extension__ using Product = unsigned __int128;
  const Product product = Product{a} * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

inline std::uint64_t kernel_avalanche(std::uint64_t hash) {
  hash ^= hash >> 37;
  hash *= 0x165667919e3779f9u;
  return hash ^ (hash >> 32);
}

inline std::uint64_t kernel_mix(const unsigned char* bytes, const unsigned char* secret) {
  return kernel_fold(kernel_load(bytes) ^ kernel_load(secret),
                     kernel_load(bytes + 8) ^ kernel_load(secret + 8));
}

// XXH3-64 of 17 to 128 bytes: 16-byte pieces from both ends, each against its own part of the derived secret.
inline std::uint64_t kernel_hash_short(const unsigned char* bytes, std::size_t size,
                                       const unsigned char* secret) {
  std::uint64_t sum = size * 0x9e3779b185ebca87u;
  if (size > 96) sum += kernel_mix(bytes + 48, secret + 96) + kernel_mix(bytes + size - 64, secret + 112);
  if (size > 64) sum += kernel_mix(bytes + 32, secret + 64) + kernel_mix(bytes + size - 48, secret + 80);
  if (size > 32) sum += kernel_mix(bytes + 16, secret + 32) + kernel_mix(bytes + size - 32, secret + 48);
  sum += kernel_mix(bytes, secret) + kernel_mix(bytes + size - 16, secret + 16);
  return kernel_avalanche(sum);
}

// XXH3-64 of 16 bytes, `previous` then `local`, with kXxh3ChainSeed.
inline std::uint64_t kernel_chain(std::uint64_t previous, std::uint64_t local) {
  // Bytes 24..39 and 40..55 of the default secret, folded; the seed is added to one and taken from the other.
  constexpr std::uint64_t kFlipPrevious = 0x6782737bea4239b9u + kXxh3ChainSeed;
  constexpr std::uint64_t kFlipLocal = 0xaf56bc3b0996523au - kXxh3ChainSeed;
  const std::uint64_t low = previous ^ kFlipPrevious;
  const std::uint64_t high = local ^ kFlipLocal;
  return kernel_avalanche(kernel_fold(low, high) + (16 + high + __builtin_bswap64(low)));
}

inline std::uint64_t kernel_local(const unsigned char* bytes, std::size_t size, const unsigned char* secret,
                                  std::uint64_t seed) {
  if (size > 16 && size <= 128) return kernel_hash_short(bytes, size, secret);
  return XXH3_64bits_withSecretandSeed(bytes, size, secret, kXxh3SecretSize, seed);
}

std::uint64_t kernel_hash(const void* bytes, std::size_t size, const void* secret, std::uint64_t seed) {
  return XXH3_64bits_withSecretandSeed(bytes, size, secret, kXxh3SecretSize, seed);
}

// kSize 0: the size is known at run time only.
template <std::size_t kSize>
__attribute__((noinline)) void kernel_loop(const unsigned char* bytes, std::size_t run_time_size,
                                           std::size_t count, const unsigned char* secret, std::uint64_t seed,
                                           std::uint64_t previous, Xxh3NameLayout layout,
                                           unsigned char* out) {
  const std::size_t size = kSize != 0 ? kSize : run_time_size;
  const unsigned width = layout.fragment_width;
  for (const unsigned char* const end = bytes + count * size; bytes != end; bytes += size) {
    const std::uint64_t local = kernel_local(bytes, size, secret, seed);
    const std::uint64_t chain = kernel_chain(previous, local);
    kernel_store(out, local);
    kernel_store(out + 8, layout.top | chain >> (64 - width));
    kernel_store(out + 16, chain << width | previous << (64 - width) >> (64 - width));
    out += sizeof(Xxh3BlockHashes);
    layout.top += layout.step;
    previous = chain;
  }
}

void kernel_hash_blocks(const void* data, std::size_t size, std::size_t count, const void* derived_secret,
                        std::uint64_t seed, const std::uint64_t* previous, Xxh3NameLayout layout,
                        void* hashes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  const auto* const secret = static_cast<const unsigned char*>(derived_secret);
  auto* out = static_cast<unsigned char*>(hashes);
  std::uint64_t last = 0;
  if (previous != nullptr) {
    last = *previous;
  } else if (count > 0) {
    // The first block of a sequence: its chain hash is its local hash.
    last = kernel_local(bytes, size, secret, seed);
    kernel_store(out, last);
    kernel_store(out + 8, layout.top | last >> (64 - layout.fragment_width));
    kernel_store(out + 16, last << layout.fragment_width);
    bytes += size;
    out += sizeof(Xxh3BlockHashes);
    layout.top += layout.step;
    --count;
  }
  switch (size) {
    case 64:
      return kernel_loop<64>(bytes, size, count, secret, seed, last, layout, out);
    case 128:
      return kernel_loop<128>(bytes, size, count, secret, seed, last, layout, out);
    case 256:
      return kernel_loop<256>(bytes, size, count, secret, seed, last, layout, out);
    default:
      return kernel_loop<0>(bytes, size, count, secret, seed, last, layout, out);
  }
}

}  // namespace
}  // namespace ashlar::tokens
