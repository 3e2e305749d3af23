// A block of one tier cannot enter the manager of another.
// expect: no viable conversion|could not convert|cannot convert|no known conversion|no matching
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(BlockManager<G1>& device, BlockManager<G2>& host, CompleteBlock<G2> block) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)host;
  (void)device.register_block(std::move(block));
#else
  (void)device;
  (void)host.register_block(std::move(block));
#endif
}

}  // namespace ashlar::block
