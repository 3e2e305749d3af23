// An id of one kind is not an id of another.
// expect: could not convert|no known conversion
#include <cstdint>

#include "ashlar/base/strong_id.h"

namespace ashlar {

using AppleId = StrongId<struct AppleTag, std::uint32_t>;
using PearId = StrongId<struct PearTag, std::uint32_t>;

AppleId apple();
void eat(PearId id);

void caller() {
#ifdef ASHLAR_SHOULD_FAIL
  eat(apple());
#else
  eat(PearId(apple().value()));
#endif
}

}  // namespace ashlar
