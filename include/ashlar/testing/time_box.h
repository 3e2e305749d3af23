// TimeBox: how long a stress or property loop may run.
//
// ASHLAR_TEST_SECONDS sets the time of every loop; otherwise each loop has half of its own default.
//
// Thread safety: immutable value.
#pragma once

#include <chrono>

namespace ashlar::testing {

class TimeBox {
 public:
  // Begins now.
  explicit TimeBox(double default_seconds);

  // The whole time, for loops that divide it.
  double seconds() const noexcept { return seconds_; }
  // Reads the clock: call it once per round, not per operation.
  bool over() const noexcept { return std::chrono::steady_clock::now() >= end_; }

 private:
  double seconds_;
  std::chrono::steady_clock::time_point end_;
};

}  // namespace ashlar::testing
