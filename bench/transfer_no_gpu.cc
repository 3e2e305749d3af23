#include <cstdio>

#include "transfer_gpu.h"

namespace ashlar::bench {

int run_gpu_transfers(int /*argc*/, char** /*argv*/) {
  std::fprintf(stderr, "this build has no CUDA\n");
  return 2;
}

}  // namespace ashlar::bench
