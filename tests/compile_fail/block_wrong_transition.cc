// A transition that the state does not have does not exist.
// expect: no member named .init_sequence|has no member named .init_sequence
#include "ashlar/block/block_manager.h"

namespace ashlar::block {

void caller(MutableBlock<G1> empty, CompleteBlock<G1> complete) {
#ifdef ASHLAR_SHOULD_FAIL
  (void)empty;
  (void)std::move(complete).init_sequence(SequenceStart{});
#else
  (void)std::move(empty).init_sequence(SequenceStart{});
  (void)std::move(complete).reset().init_sequence(SequenceStart{});
#endif
}

}  // namespace ashlar::block
