#include "ashlar/block/block_retention.h"

#include <algorithm>

namespace ashlar::block {
namespace {

Result<void> check_priority(std::uint8_t priority) {
  if (priority <= BlockRetention::kMaxPriority) return {};
  return make_error(ErrorCode::kInvalidArgument, "priority %u; priorities go from 0 to %u", priority,
                    BlockRetention::kMaxPriority);
}

Result<void> check_duration(const std::optional<Clock::Duration>& duration) {
  if (!duration || *duration > Clock::Duration::zero()) return {};
  return make_error(ErrorCode::kInvalidArgument, "a retention of %lld ns; its duration must be positive",
                    static_cast<long long>(duration->count()));
}

Clock::TimePoint end_of(const std::optional<Clock::Duration>& duration, Clock::TimePoint now) {
  if (!duration || *duration > BlockRetention::kForever - now) return BlockRetention::kForever;
  return now + *duration;
}

}  // namespace

Result<void> BlockRetention::validate() const {
  return check_priority(priority);
}

Result<void> RetentionPlan::validate() const {
  for (const TokenRange& range : prompt) {
    if (range.end && *range.end <= range.begin) {
      return make_error(ErrorCode::kInvalidArgument, "the retention range of tokens %zu to %zu is empty",
                        range.begin, *range.end);
    }
    if (auto valid = check_priority(range.priority); !valid) return valid;
    if (auto valid = check_duration(range.duration); !valid) return valid;
  }
  if (auto valid = check_priority(decode_priority); !valid) return valid;
  return check_duration(decode_duration);
}

std::optional<BlockRetention> RetentionPlan::of_block(std::size_t begin, std::size_t end,
                                                      std::size_t prompt_tokens, Clock::TimePoint now) const {
  std::optional<BlockRetention> best;
  for (const TokenRange& range : prompt) {
    const std::size_t range_end = std::min(range.end.value_or(prompt_tokens), prompt_tokens);
    if (std::max(begin, range.begin) >= std::min(end, range_end)) continue;
    const BlockRetention asked{range.priority, end_of(range.duration, now)};
    if (!best || asked.priority > best->priority ||
        (asked.priority == best->priority && asked.until > best->until)) {
      best = asked;
    }
  }
  if (best) return best;
  const bool speaks = decode_priority != BlockRetention::kDefaultPriority || decode_duration;
  if (end <= prompt_tokens || !speaks) return std::nullopt;
  return BlockRetention{decode_priority, end_of(decode_duration, now)};
}

}  // namespace ashlar::block
