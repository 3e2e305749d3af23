// Compiled with -mavx2 -mbmi2.
#if defined(__x86_64__)
#include "tokens/xxh3_kernel_body.h"

static_assert(XXH_VECTOR == XXH_AVX2, "this file is compiled for AVX2");

namespace ashlar::tokens {

const Xxh3Kernel kXxh3Avx2 = {"avx2", &kernel_hash, &kernel_hash_blocks, &prefix_absorb};

}  // namespace ashlar::tokens
#endif
