// A block becomes complete only with the proof that its KV exists.
// expect: too few arguments|no matching (member )?function for call to .*complete
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(MutableBlock<G1> block, const tokens::TokenBlock& tokens) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)std::move(block).complete(tokens);
#else
  (void)std::move(block).complete(tokens, KvReady::asserted_by_caller());
#endif
}

}  // namespace ashlar::block
