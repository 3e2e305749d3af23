// OffloadHandle: follows one offload call until each of its blocks has ended.
//
// Copies of a handle refer to the same call. Dropping all of them does not cancel it. A handle may outlive
// its manager; by then every block has ended.
//
// Thread safety: thread-safe.
// Invariant:     progress().ended() only grows, up to progress().total.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/fence.h"

namespace ashlar::tiers {

// How one offload call treats its blocks.
struct OffloadOptions {
  // Its place in the queue: the highest goes first. Empty: each block's by its retention in the tier above.
  std::optional<std::uint8_t> priority = {};
  // Preconditions: a block is copied only after its fence has passed, for example the event of the kernel
  // that writes it. Must have 0, 1 (for all blocks) or as many entries as there are blocks. A block whose
  // fence fails or is abandoned fails.
  std::vector<block::Fence> after = {};
  // Blocks that have not arrived by then count as late, whether they wait for a precondition, are queued or
  // are in flight. A copy that another call wants goes on without this one. By the manager's clock.
  std::optional<Clock::TimePoint> deadline = {};
};

// How many blocks of a call ended how. Every block ends in exactly one way.
struct OffloadProgress {
  std::size_t total = 0;
  std::size_t arrived = 0;   // copied and registered below
  std::size_t present = 0;   // the tier below already had it
  std::size_t filtered = 0;  // refused by the policy
  std::size_t gone = 0;      // evicted, or without its name, before its turn
  std::size_t failed = 0;    // the copy failed, or its bytes were damaged
  std::size_t refused = 0;   // the queue was full
  std::size_t cancelled = 0;
  std::size_t late = 0;  // the deadline passed first

  std::size_t ended() const noexcept {
    return arrived + present + filtered + gone + failed + refused + cancelled + late;
  }
  friend bool operator==(const OffloadProgress&, const OffloadProgress&) = default;
};

struct OffloadCall;

class OffloadHandle {
 public:
  // Made by the library.
  explicit OffloadHandle(std::shared_ptr<OffloadCall> call) noexcept : call_(std::move(call)) {}

  OffloadProgress progress() const;
  bool done() const;
  // Waits until every block has ended. Errors: the first failure of a copy; kTimeout: the deadline of the
  // call passed first.
  Result<OffloadProgress> wait() const;
  // The same, but no longer than until `when`. Errors: also kTimeout; the blocks stay queued or in flight.
  Result<OffloadProgress> wait_until(Clock::TimePoint when) const;
  // Cancels every block that has not arrived. A queued block leaves the queue unless another call wants it. A
  // copy in flight stops if no call wants any block of its batch.
  void cancel() const;

 private:
  void wait_for_end(std::optional<Clock::TimePoint> when) const;
  void see_to_deadline() const;

  std::shared_ptr<OffloadCall> call_;
};

}  // namespace ashlar::tiers
