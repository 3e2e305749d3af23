// What a RouteCore keeps of a group, and its clock.
//
// Thread safety: thread-compatible.
#pragma once

#include <algorithm>
#include <cstdint>
#include <unordered_map>

#include "ashlar/base/check.h"
#include "ashlar/index/approximate_index.h"
#include "ashlar/index/flash_index.h"
#include "service/route/route_core.h"
#include "service/route/seen_blocks.h"

namespace ashlar::service {

class RouteCore::CallClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void wait_until(CondVar&, Mutex&, TimePoint) override ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    ASHLAR_CHECK(false, "a clock of calls has nothing to wait for");
  }
  void set(TimePoint now) noexcept { now_ = std::max(now_, now); }

 private:
  TimePoint now_{};
};

struct RouteCore::Group {
  Group(const RouterOptions& options, Clock& clock)
      : soon(make_predictions(options.prediction_ttl, options.max_predictions, clock)),
        lasting(make_predictions(options.fallback_ttl, options.max_predictions, clock)) {}

  static index::ApproximateIndex<index::FlashIndex> make_predictions(Clock::Duration ttl, std::size_t most,
                                                                     Clock& clock) {
    return index::ApproximateIndex<index::FlashIndex>::create(
               {.ttl = ttl, .clock = &clock, .salt = 1, .most = most})
        .value();
  }

  index::FlashIndex reported;
  index::ApproximateIndex<index::FlashIndex> soon;     // predictions for workers with events
  index::ApproximateIndex<index::FlashIndex> lasting;  // for those without
  SeenBlocks seen;                                     // that requests have named
  std::uint64_t turn = 0;                              // of round robin
  std::uint64_t cut = 0;                               // blocks of requests that were too many to predict
  // When a prompt was last expected at a worker, by a hash of both.
  std::unordered_map<std::uint64_t, Clock::TimePoint> expected;
};

}  // namespace ashlar::service
