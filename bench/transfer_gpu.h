// Transfers between a GPU and page-locked memory, beside plain copies of the same pieces.
//
// Thread safety: thread-compatible.
#pragma once

namespace ashlar::bench {

// Prints the tables. Arguments: --runs=N (9), --gib=N (1 GiB per run), --blocks=N and --device-blocks=N
// (thread blocks of the kernel), --only=NAME of a table (pieces, both, beside, host, orders). Returns what
// main() returns: 0, also where there is no GPU; 1 when a transfer failed.
int run_gpu_transfers(int argc, char** argv);

}  // namespace ashlar::bench
