// Compiled with -mavx512f -mbmi2.
#if defined(__x86_64__)
#include "tokens/xxh3_kernel_body.h"

static_assert(XXH_VECTOR == XXH_AVX512, "this file is compiled for AVX-512");

namespace ashlar::tokens {

const Xxh3Kernel kXxh3Avx512 = {"avx512", &kernel_hash, &kernel_hash_blocks, &prefix_absorb};

}  // namespace ashlar::tokens
#endif
