// What is registered is shared, and nobody changes it.
// expect: no member named .add_token|has no member named .add_token
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(PartialBlock<G1>& partial, ImmutableBlock<G1>& shared) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)partial;
  (void)shared.add_token(tokens::Token(1));
#else
  (void)shared;
  (void)partial.add_token(tokens::Token(1));
#endif
}

}  // namespace ashlar::block
