// Neither can the answer of a registration, which may hold the block that was refused.
// expect: ignoring return(ed)? value
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(BlockManager<G1>& manager, CompleteBlock<G1> block) {
#ifdef ASHLAR_SHOULD_FAIL
  manager.register_block(std::move(block));
#else
  if (const auto registered = manager.register_block(std::move(block)); !registered) return;
#endif
}

}  // namespace ashlar::block
