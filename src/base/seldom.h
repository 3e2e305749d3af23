// Seldom: lets a line that may come thousands of times be logged now and then, with how many were left out.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "ashlar/base/clock.h"

namespace ashlar {

class Seldom {
 public:
  static constexpr Clock::Duration kPause = std::chrono::seconds(10);

  // Counts an event. Returns: nothing, where it is to be left out; otherwise how many were since the last
  // that was not.
  std::optional<std::uint64_t> next(Clock::TimePoint now) noexcept {
    std::int64_t due = due_.load(std::memory_order_relaxed);  // relaxed, all: they publish nothing
    const std::int64_t at = now.time_since_epoch().count();
    if (at < due || !due_.compare_exchange_strong(due, at + kPause.count(), std::memory_order_relaxed)) {
      left_out_.fetch_add(1, std::memory_order_relaxed);
      return std::nullopt;
    }
    return left_out_.exchange(0, std::memory_order_relaxed);
  }

 private:
  std::atomic<std::int64_t> due_{INT64_MIN};
  std::atomic<std::uint64_t> left_out_{0};
};

}  // namespace ashlar
