// A guard comes from its manager or from another guard's transition.
// expect: private|no matching (constructor|function)
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller() {
#ifdef ASHLAR_SHOULD_FAIL
  const CompleteBlock<G1> block{detail::OwnedSlot(detail::SlotRef{})};
#else
  const CompleteBlock<G1> block;
#endif
  (void)block;
}

}  // namespace ashlar::block
