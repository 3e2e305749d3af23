// A transition consumes its guard, so it cannot be called on one that stays.
// expect: is an lvalue, but function has rvalue ref-qualifier|discards qualifiers|no matching
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(PartialBlock<G1> partial) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)partial.schedule();
#else
  (void)std::move(partial).schedule();
#endif
}

}  // namespace ashlar::block
