// A pin ends with its guard, so one that is not kept pins nothing.
// expect: ignoring return(ed)? value
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(const ImmutableBlock<G1>& block) {
#ifdef ASHLAR_SHOULD_FAIL
  block.pin(std::chrono::seconds(1));
#else
  const Result<Pin> pin = block.pin(std::chrono::seconds(1));
#endif
}

}  // namespace ashlar::block
