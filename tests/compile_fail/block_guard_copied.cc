// A unique guard is the only one of its block.
// expect: deleted
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(const MutableBlock<G1>& owner, const ImmutableBlock<G1>& shared) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)shared;
  const MutableBlock<G1> copy = owner;
#else
  (void)owner;
  const ImmutableBlock<G1> copy = shared;
#endif
}

}  // namespace ashlar::block
