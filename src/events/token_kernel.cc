#include "events/token_kernel.h"

namespace ashlar::events {
namespace {

TokenKernels fastest() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2")) return kTokensAvx2;
#endif
  return {};
}

}  // namespace

const TokenKernels kTokenKernels = fastest();

}  // namespace ashlar::events
