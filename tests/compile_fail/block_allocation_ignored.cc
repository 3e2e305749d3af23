// An allocation that is not looked at would be returned at once.
// expect: ignoring return(ed)? value
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(BlockManager<G1>& manager) {
#ifdef ASHLAR_SHOULD_FAIL
  manager.allocate_blocks(4);
#else
  const auto blocks = manager.allocate_blocks(4);
#endif
}

}  // namespace ashlar::block
