// Xxh3Kernel: the inner loops of the xxh3 chain and of the prefix digests, built once per instruction set and
// selected at process start.
//
// Every kernel gives the same results; they differ in speed. Files compiled for a wider instruction set
// include only this header and xxHash, so that none of their inline functions ends up in portable code.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ashlar::tokens {

inline constexpr std::size_t kXxh3SecretSize = 192;
inline constexpr std::uint64_t kXxh3ChainSeed = 1337;

inline constexpr std::size_t kPrefixStripe = 64;
inline constexpr std::size_t kPrefixChunk = 1024;
// The kind of a chunk's content, distinguished in the digest; the low bits have its size.
inline constexpr std::uint64_t kPrefixText = 0;
inline constexpr std::uint64_t kPrefixFrames = std::uint64_t{1} << 32;

// The expanded form of a PrefixKey (prefix_kernel_body.h).
struct PrefixSecret {
  alignas(64) unsigned char keys[kPrefixChunk + kPrefixStripe];
  std::uint64_t factors[2];  // each below 2^58, times 8
};

// A kernel's output for one block: the bytes of a BlockHashes.
struct Xxh3BlockHashes {
  std::uint64_t local;
  std::uint64_t name_hi;
  std::uint64_t name_lo;
  std::uint64_t prefix_hi;
  std::uint64_t prefix_lo;
};

struct Xxh3Kernel {
  const char* name;
  // XXH3-64 with `seed`; `secret` is the one derived from it.
  std::uint64_t (*hash)(const void* bytes, std::size_t size, const void* secret, std::uint64_t seed);
  // Hashes `count` consecutive blocks of `size` bytes into `out`, which has room for as many Xxh3BlockHashes.
  // `previous` is the chain hash of the block before them; null when they start a sequence. `top` is the high
  // word of the first block's name without its chain hash, `fragment_width` the bits of the parent fragment
  // (sequence_hash.h): 54, 46 or 38, the same for all blocks of a call. `prefix` points to the two words of
  // the digest before the blocks; null: unknown, and then theirs are too.
  void (*hash_blocks)(const void* bytes, std::size_t size, std::size_t count, const void* secret,
                      std::uint64_t seed, const std::uint64_t* previous, std::uint64_t top,
                      unsigned fragment_width, const PrefixSecret& prefix_secret, const std::uint64_t* prefix,
                      void* out);
  // Advances the two words of a digest by `size` bytes of content. Piecewise calls give the same result when
  // every piece but the last is a multiple of kPrefixChunk bytes.
  void (*absorb)(const void* bytes, std::size_t size, std::uint64_t kind, const PrefixSecret& prefix_secret,
                 std::uint64_t* prefix);
};

// XXH3-64 of the previous chain hash and the local hash.
std::uint64_t xxh3_chain_step(std::uint64_t previous, std::uint64_t local) noexcept;
void xxh3_derive_secret(std::uint64_t seed, void* secret) noexcept;

extern const Xxh3Kernel kXxh3Portable;
#if defined(__x86_64__)
extern const Xxh3Kernel kXxh3Avx2;    // needs AVX2 and BMI2
extern const Xxh3Kernel kXxh3Avx512;  // needs AVX-512F and BMI2
#endif

// The fastest kernel for this machine.
const Xxh3Kernel& xxh3_kernel() noexcept;

}  // namespace ashlar::tokens
