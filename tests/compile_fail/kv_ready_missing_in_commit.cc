// A block becomes complete only with the proof that its KV exists.
// expect: too few arguments|no matching (member )?function for call to .*commit
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(PartialBlock<G1> block) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)std::move(block).commit();
#else
  (void)std::move(block).commit(KvReady::asserted_by_caller());
#endif
}

}  // namespace ashlar::block
