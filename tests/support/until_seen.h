// UntilSeen: how long a loop runs whose course depends on threads or chance: its TimeBox, and beyond it, for
// two minutes at most, until it has seen what it is there to see. A slow or busy machine takes longer, and
// fails nothing.
//
// Thread safety: immutable value.
#pragma once

#include <chrono>

#include "ashlar/testing/time_box.h"

namespace ashlar::testing {

class UntilSeen {
 public:
  explicit UntilSeen(double default_seconds) : box_(default_seconds) {}

  // `seen` is asked when the time box is over.
  template <class Seen>
  bool over(const Seen& seen) const {
    return box_.over() && (seen() || std::chrono::steady_clock::now() >= last_);
  }

 private:
  TimeBox box_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now() + std::chrono::minutes(2);
};

}  // namespace ashlar::testing
