// ManualClock under the name tests use: time that stands still until the test moves it (ashlar/base/clock.h).
//
//   ManualClock clock;
//   options.clock = &clock;
//   clock.advance(10s);    // pins end, deadlines pass; waiting threads wake
//
// Thread safety: thread-safe.
#pragma once

#include "ashlar/base/clock.h"

namespace ashlar::testing {

using ashlar::ManualClock;

}  // namespace ashlar::testing
