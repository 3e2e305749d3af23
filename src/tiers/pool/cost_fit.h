// CostFit: what a move takes, by what moves took: latency + bytes / bandwidth, fitted to the last few dozen.
//
// Thread safety: thread-compatible.
// Complexity:    O(1).
#pragma once

#include <cstdint>

namespace ashlar::tiers {

class CostFit {
 public:
  // Records that moving `bytes` took `seconds`. Nothing is learned of a move without bytes.
  void observe(std::uint64_t bytes, double seconds);
  // Expected seconds of such a move; 0 while nothing was observed.
  double seconds(std::uint64_t bytes) const;

 private:
  // Sums over past moves, older ones weighted less: weight, x = bytes, y = seconds.
  double n_ = 0, x_ = 0, y_ = 0, xx_ = 0, xy_ = 0;
};

}  // namespace ashlar::tiers
