#include "ashlar/block/manager_options.h"

#include "ashlar/block/block_identity.h"
#include "ashlar/tokens/token.h"

namespace ashlar::block {

std::string_view to_string(BlockState state) noexcept {
  switch (state) {
    case BlockState::kReset:
      return "reset";
    case BlockState::kMutable:
      return "mutable";
    case BlockState::kPartial:
      return "partial";
    case BlockState::kScheduled:
      return "scheduled";
    case BlockState::kInflight:
      return "inflight";
    case BlockState::kQuarantined:
      return "quarantined";
    case BlockState::kComplete:
      return "complete";
    case BlockState::kPrimary:
      return "primary";
    case BlockState::kDuplicate:
      return "duplicate";
  }
  return "unknown";
}

namespace {
constexpr std::size_t kMaxPins = std::size_t{1} << 24;
}

Result<void> ManagerOptions::validate() const {
  if (block_count == 0 || block_count >= UINT32_MAX) {
    return make_error(ErrorCode::kInvalidArgument,
                      "block_count is %u; a manager needs 1 to 4294967294 blocks", block_count);
  }
  if (block_size < tokens::kMinBlockSize || block_size > tokens::kMaxBlockSize) {
    return make_error(ErrorCode::kInvalidArgument, "block_size is %u tokens; it must be %u to %u", block_size,
                      tokens::kMinBlockSize, tokens::kMaxBlockSize);
  }
  if (!registry) {
    return make_error(ErrorCode::kInvalidArgument,
                      "no registry was given; make one with BlockRegistry::create()");
  }
  if (!registry->valid()) {
    return make_error(ErrorCode::kInvalidArgument, "the registry was moved from");
  }
  if (max_pins > kMaxPins) {
    return make_error(ErrorCode::kInvalidArgument, "max_pins is %zu; at most %zu are possible", max_pins,
                      kMaxPins);
  }
  if (clock == nullptr) return make_error(ErrorCode::kInvalidArgument, "clock is null");
  if (watermarks.low > watermarks.high) {
    return make_error(ErrorCode::kInvalidArgument, "low watermark %zu is above the high watermark %zu",
                      watermarks.low, watermarks.high);
  }
  if (watermarks.high > block_count) {
    return make_error(ErrorCode::kInvalidArgument, "high watermark %zu is above the %u blocks of the pool",
                      watermarks.high, block_count);
  }
  return {};
}

std::string PoolStatus::to_string() const {
  return make_error(ErrorCode::kInternal,
                    "%zu blocks: %zu reset, %zu inactive, %zu pinned, %zu held, %zu active, %zu owned, %zu "
                    "quarantined, "
                    "%zu allocations waiting",
                    total, reset, inactive, pinned_inactive, held_inactive, active, owned, quarantined,
                    waiters)
      .message();
}

Error AllocationRefusal::to_error() const {
  const std::string pools = status.to_string();
  switch (reason) {
    case Reason::kTooMany:
      return make_error(ErrorCode::kInvalidArgument, "%zu blocks were asked for, the manager has %zu in all",
                        requested, status.total);
    case Reason::kNoRoom:
      return make_error(ErrorCode::kCapacity, "%zu blocks were asked for, %zu are available (%s)", requested,
                        status.available(), pools.c_str());
    case Reason::kQueued:
      return make_error(ErrorCode::kCapacity, "%zu blocks were asked for, but earlier allocations wait (%s)",
                        requested, pools.c_str());
    case Reason::kTimedOut:
      return make_error(ErrorCode::kTimeout, "the deadline passed before %zu blocks were available (%s)",
                        requested, pools.c_str());
    case Reason::kCancelled:
      return make_error(ErrorCode::kCancelled, "the wait for %zu blocks was stopped (%s)", requested,
                        pools.c_str());
    case Reason::kOutOfMemory:
      return make_error(ErrorCode::kCapacity, "out of memory for %zu blocks (%s)", requested, pools.c_str());
    case Reason::kOtherManager:
      return make_error(ErrorCode::kInvalidArgument,
                        "the sequence belongs to another manager than the one that was asked");
  }
  return make_error(ErrorCode::kInternal, "unknown refusal");
}

}  // namespace ashlar::block
