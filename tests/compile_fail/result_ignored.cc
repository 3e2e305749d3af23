// A Result cannot be dropped.
// expect: ignoring return(ed)? value
#include "ashlar/base/result.h"

namespace ashlar {

Result<int> answer();
Result<void> perform();

void caller() {
#ifdef ASHLAR_SHOULD_FAIL
  answer();
#else
  if (const Result<int> result = answer(); !result) return;
  (void)perform();
#endif
}

}  // namespace ashlar
