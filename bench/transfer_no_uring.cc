#include <cstdio>

#include "transfer_parts.h"

namespace ashlar::bench {

bool run_uring_transfers(const std::string& /*folder*/) {
  std::printf("disk through io_uring: this build has no liburing\n");
  return true;
}

}  // namespace ashlar::bench
