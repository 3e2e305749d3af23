// The body of a kernel (xxh3_kernel.h): each kernel's file includes it once, under its own compiler flags.
//
// Local hashes are independent; the chain step hashes 16 bytes and depends on the step before. One loop does
// both, so that the core works ahead on local hashes while a chain step is in flight, and computes the prefix
// digests (prefix_kernel_body.h) from the same bytes. Both are kept short:
//   - The secret that XXH3 derives from a seed holds, word for word, the sums of seed and default secret that
//     its rule for 17 to 128 bytes computes. With the derived secret that rule needs no seed
//     (kernel_hash_short). Above 240 bytes XXH3 takes the derived secret itself.
//   - The chain step is written out for its one size and seed (KernelChain).
//   - Block sizes in common use get a loop with the size as a constant.
#pragma once

#include "tokens/prefix_kernel_body.h"
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

constexpr std::uint64_t kXxh3AvalancheFactor = 0x165667919e3779f9u;

inline std::uint64_t kernel_avalanche(std::uint64_t hash) {
  hash = (hash ^ hash >> 37) * kXxh3AvalancheFactor;
  return hash ^ hash >> 32;
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

// Keeps the compiler from regrouping the sums and differences around `word`.
inline std::uint64_t kernel_fixed(std::uint64_t word) {
  __asm__("" : "+r"(word));
  return word;
}

// The chain: each hash is XXH3-64 of 16 bytes, the hash before it then a local hash, with kXxh3ChainSeed.
//
// Nothing else in a prompt is serial, so the latency from one hash to the next decides. The step keeps
// everything else off that path: it carries the last hash already combined with its part of the secret.
class KernelChain {
 public:
  explicit KernelChain(std::uint64_t previous) : hash_(previous), low_(previous ^ kFlipPrevious) {}

  std::uint64_t hash() const { return hash_; }

  void advance(std::uint64_t local) {
    const std::uint64_t high = local ^ kFlipLocal;
    const std::uint64_t beside = kernel_fixed(16 + high + __builtin_bswap64(low_));
    std::uint64_t mixed = kernel_fold(low_, high) + beside;
    mixed = (mixed ^ mixed >> 37) * kXxh3AvalancheFactor;
    hash_ = mixed ^ mixed >> 32;
    low_ = kernel_fixed(mixed ^ kFlipPrevious) ^ mixed >> 32;
  }

 private:
  // Bytes 24..39 and 40..55 of the default secret, folded; the seed is added to one and subtracted from the
  // other.
  static constexpr std::uint64_t kFlipPrevious = 0x6782737bea4239b9u + kXxh3ChainSeed;
  static constexpr std::uint64_t kFlipLocal = 0xaf56bc3b0996523au - kXxh3ChainSeed;

  std::uint64_t hash_;
  std::uint64_t low_;
};

inline std::uint64_t kernel_local(const unsigned char* bytes, std::size_t size, const unsigned char* secret,
                                  std::uint64_t seed) {
  if (size > 16 && size <= 128) return kernel_hash_short(bytes, size, secret);
  return XXH3_64bits_withSecretandSeed(bytes, size, secret, kXxh3SecretSize, seed);
}

std::uint64_t kernel_hash(const void* bytes, std::size_t size, const void* secret, std::uint64_t seed) {
  return kernel_local(static_cast<const unsigned char*>(bytes), size,
                      static_cast<const unsigned char*>(secret), seed);
}

// The bytes of a BlockHashes: the local hash, then the name with `chain` and the fragment of `previous`.
inline void kernel_emit(unsigned char* out, std::uint64_t local, std::uint64_t top, std::uint64_t chain,
                        std::uint64_t previous, unsigned fragment_width) {
  const std::uint64_t fragment_mask = (std::uint64_t{1} << fragment_width) - 1;
  kernel_store(out, local);
  kernel_store(out + 8, top | chain >> (64 - fragment_width));
  kernel_store(out + 16, chain << fragment_width | (previous & fragment_mask));
}

// The loop's inputs and outputs.
struct KernelBlocks {
  const unsigned char* bytes;
  std::size_t size;
  std::size_t count;
  const unsigned char* secret;
  std::uint64_t seed;
  std::uint64_t previous;
  std::uint64_t top;
  const PrefixSecret& prefix_secret;
  const std::uint64_t* prefix;
  unsigned char* out;
};

// What the loop writes behind each name: the digest of all bytes so far.
class KernelPrefix {
 public:
  explicit KernelPrefix(const KernelBlocks& blocks) : chain_(blocks.prefix), secret_(blocks.prefix_secret) {}
  void emit(unsigned char* out, const unsigned char* bytes, std::size_t size) {
    chain_.absorb(bytes, size, kPrefixText, secret_);
    chain_.store(out);
  }

 private:
  PrefixChain chain_;
  const PrefixSecret& secret_;
};

// Nothing, where the digest before is unknown. A loop of its own: digests take the registers of both hashes.
class KernelNoPrefix {
 public:
  explicit KernelNoPrefix(const KernelBlocks&) {}
  void emit(unsigned char* out, const unsigned char*, std::size_t) {
    kernel_store(out, 0);
    kernel_store(out + 8, 0);
  }
};

// Blocks that follow another one. kSize 0: the size is known only at run time.
template <std::size_t kSize, unsigned kFragmentWidth, class Prefix>
__attribute__((noinline)) void kernel_loop(KernelBlocks blocks) {
  const std::size_t size = kSize != 0 ? kSize : blocks.size;
  const unsigned char* const end = blocks.bytes + blocks.count * size;
  unsigned char* out = blocks.out;
  KernelChain chain(blocks.previous);
  Prefix prefix(blocks);
  std::uint64_t top = blocks.top;
  for (const unsigned char* bytes = blocks.bytes; bytes != end; bytes += size) {
    const std::uint64_t local = kernel_local(bytes, size, blocks.secret, blocks.seed);
    const std::uint64_t previous = chain.hash();
    chain.advance(local);
    kernel_emit(out, local, top, chain.hash(), previous, kFragmentWidth);
    prefix.emit(out + 24, bytes, size);
    out += sizeof(Xxh3BlockHashes);
    top += std::uint64_t{1} << kFragmentWidth;
  }
}

template <unsigned kFragmentWidth, class Prefix>
void kernel_loop_of_size(const KernelBlocks& blocks) {
  switch (blocks.size) {
    case 64:
      return kernel_loop<64, kFragmentWidth, Prefix>(blocks);
    case 128:
      return kernel_loop<128, kFragmentWidth, Prefix>(blocks);
    case 256:
      return kernel_loop<256, kFragmentWidth, Prefix>(blocks);
    case 1024:
      return kernel_loop<1024, kFragmentWidth, Prefix>(blocks);
    default:
      return kernel_loop<0, kFragmentWidth, Prefix>(blocks);
  }
}

template <unsigned kFragmentWidth>
void kernel_loop_of(const KernelBlocks& blocks) {
  if (blocks.prefix == nullptr) return kernel_loop_of_size<kFragmentWidth, KernelNoPrefix>(blocks);
  return kernel_loop_of_size<kFragmentWidth, KernelPrefix>(blocks);
}

void kernel_hash_blocks(const void* data, std::size_t size, std::size_t count, const void* derived_secret,
                        std::uint64_t seed, const std::uint64_t* previous, std::uint64_t top,
                        unsigned fragment_width, const PrefixSecret& prefix_secret,
                        const std::uint64_t* prefix, void* hashes) {
  KernelBlocks blocks = {
      .bytes = static_cast<const unsigned char*>(data),
      .size = size,
      .count = count,
      .secret = static_cast<const unsigned char*>(derived_secret),
      .seed = seed,
      .previous = 0,
      .top = top,
      .prefix_secret = prefix_secret,
      .prefix = prefix,
      .out = static_cast<unsigned char*>(hashes),
  };
  std::uint64_t first_prefix[2] = {0, 0};
  if (previous != nullptr) {
    blocks.previous = *previous;
  } else if (count > 0) {
    // The first block of a sequence: its chain hash is its local hash.
    const std::uint64_t local = kernel_local(blocks.bytes, size, blocks.secret, seed);
    kernel_emit(blocks.out, local, top, local, 0, fragment_width);
    if (prefix != nullptr) {
      first_prefix[0] = prefix[0];
      first_prefix[1] = prefix[1];
      prefix_absorb(blocks.bytes, size, kPrefixText, prefix_secret, first_prefix);
      blocks.prefix = first_prefix;
    }
    kernel_store(blocks.out + 24, first_prefix[0]);
    kernel_store(blocks.out + 32, first_prefix[1]);
    blocks.bytes += size;
    blocks.count -= 1;
    blocks.previous = local;
    blocks.top += std::uint64_t{1} << fragment_width;
    blocks.out += sizeof(Xxh3BlockHashes);
  }
  switch (fragment_width) {
    case 54:
      return kernel_loop_of<54>(blocks);
    case 46:
      return kernel_loop_of<46>(blocks);
    default:
      return kernel_loop_of<38>(blocks);
  }
}

}  // namespace
}  // namespace ashlar::tokens
