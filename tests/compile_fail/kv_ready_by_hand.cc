// The proof is made by who has it, not by braces.
// expect: private|no matching (constructor|function)|could not convert|cannot convert
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(PartialBlock<G1> block) {
#ifdef ASHLAR_SHOULD_FAIL
  const KvReady ready{};
#else
  const KvReady ready = KvReady::asserted_by_caller();
#endif
  (void)std::move(block).commit(ready);
}

}  // namespace ashlar::block
