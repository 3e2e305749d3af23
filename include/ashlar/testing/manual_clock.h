// ManualClock under the name tests use: time that stands still until the test moves it (ashlar/base/clock.h).
#pragma once

#include "ashlar/base/clock.h"

namespace ashlar::testing {

using ashlar::ManualClock;

}  // namespace ashlar::testing
