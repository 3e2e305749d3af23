// OffloadHandle: what became of the blocks of one offload call.
//
// Thread safety: thread-safe; copies speak of the same call.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::tiers {

// Every block ends in exactly one of these.
struct OffloadProgress {
  std::size_t total = 0;
  std::size_t arrived = 0;   // registered below
  std::size_t there = 0;     // was there already
  std::size_t filtered = 0;  // the policy said no
  std::size_t gone = 0;      // evicted before its turn
  std::size_t failed = 0;    // the copy failed, or its bytes were damaged
  std::size_t refused = 0;   // the queue was full
  std::size_t cancelled = 0;
  std::size_t late = 0;  // the deadline came first

  std::size_t ended() const noexcept {
    return arrived + there + filtered + gone + failed + refused + cancelled + late;
  }
  friend bool operator==(const OffloadProgress&, const OffloadProgress&) = default;
};

class OffloadCall;

class OffloadHandle {
 public:
  explicit OffloadHandle(std::shared_ptr<OffloadCall> call) noexcept : call_(std::move(call)) {}

  OffloadProgress progress() const;
  bool done() const;
  // Waits until every block has ended. Errors: the first failure of a copy; kTimeout: the deadline came
  // first.
  Result<OffloadProgress> wait() const;
  // The same, no longer than until `when`. Errors: also kTimeout; the blocks go on while the call's deadline
  // has not come.
  Result<OffloadProgress> wait_until(Clock::TimePoint when) const;
  // Ends the call now: what has not arrived is cancelled. It is taken out of the queue, or its copy stopped,
  // unless somebody else wants it, or a block that is copied with it.
  void cancel() const;

 private:
  void wait_for_end(std::optional<Clock::TimePoint> when) const;
  void see_to_deadline() const;

  std::shared_ptr<OffloadCall> call_;
};

}  // namespace ashlar::tiers
