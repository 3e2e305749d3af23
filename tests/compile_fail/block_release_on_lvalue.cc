// release_after() gives the reference up, so it takes the guard with it.
// expect: is an lvalue, but function has rvalue ref-qualifier|discards qualifiers|no matching
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(ImmutableBlock<G1> block, const Fence& fence) {
#ifdef ASHLAR_SHOULD_FAIL
  block.release_after(fence);
#else
  std::move(block).release_after(fence);
#endif
}

}  // namespace ashlar::block
