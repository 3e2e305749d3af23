// G1 in the memory of a GPU, G2 in page-locked memory, beside contiguous copies of the same bytes.
#pragma once

namespace ashlar::bench {

// Returns what main() returns: 0, also where there is no GPU; 1 when a target was missed.
int run_gpu_tiers();

}  // namespace ashlar::bench
