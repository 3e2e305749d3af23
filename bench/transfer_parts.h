// The parts of transfer_bench that need a library of their own. A build without it has a part that says so.
#pragma once

#include <string>

namespace ashlar::bench {

// Files through io_uring, beside io_uring without us. True when every target was met.
bool run_uring_transfers(const std::string& folder);

}  // namespace ashlar::bench
