// A transition's guard cannot be dropped by forgetting it.
// expect: ignoring return(ed)? value
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(ScheduledBlock<G1> block) {
#ifdef ASHLAR_SHOULD_FAIL
  std::move(block).cancel();
#else
  const PartialBlock<G1> partial = std::move(block).cancel();
#endif
}

}  // namespace ashlar::block
