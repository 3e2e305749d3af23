// A block becomes complete only with the proof that its KV exists.
// expect: too few arguments|no matching (member )?function for call to .*stage
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(MutableBlock<G1> block, const tokens::SequenceHash& hash) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)std::move(block).stage(hash);
#else
  (void)std::move(block).stage(hash, KvReady::asserted_by_caller());
#endif
}

}  // namespace ashlar::block
