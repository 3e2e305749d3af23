#include "tokens/xxh3_kernel.h"

#include "tokens/xxh3_kernel_body.h"

namespace ashlar::tokens {
namespace {

const Xxh3Kernel& fastest() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("bmi2")) {
    if (__builtin_cpu_supports("avx512f")) return kXxh3Avx512;
    if (__builtin_cpu_supports("avx2")) return kXxh3Avx2;
  }
#endif
  return kXxh3Portable;
}

}  // namespace

const Xxh3Kernel kXxh3Portable = {"portable", &kernel_hash, &kernel_hash_blocks, &prefix_absorb};

std::uint64_t xxh3_chain_step(std::uint64_t previous, std::uint64_t local) noexcept {
  KernelChain chain(previous);
  chain.advance(local);
  return chain.hash();
}

void xxh3_derive_secret(std::uint64_t seed, void* secret) noexcept {
  static_assert(kXxh3SecretSize == XXH_SECRET_DEFAULT_SIZE);
  XXH3_generateSecret_fromSeed(secret, seed);
}

const Xxh3Kernel& xxh3_kernel() noexcept {
  static const Xxh3Kernel& chosen = fastest();
  return chosen;
}

}  // namespace ashlar::tokens
