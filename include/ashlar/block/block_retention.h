// BlockRetention: how strongly a block should be kept, and until when. RetentionPlan: the same for the token
// ranges of a request.
//
// Priorities go from 0 (evicted first) to 100 (evicted last). A block without a retention has, and keeps, the
// default priority of its backend, kDefaultPriority unless configured. Retention is a preference of the
// eviction order; only a pin prevents eviction.
//
// Thread safety: immutable values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::block {

struct BlockRetention {
  static constexpr std::uint8_t kDefaultPriority = 35;
  static constexpr std::uint8_t kMaxPriority = 100;
  static constexpr Clock::TimePoint kForever = Clock::TimePoint::max();

  std::uint8_t priority = kDefaultPriority;
  // From here on the priority decays towards the default. Kept to the microsecond.
  Clock::TimePoint until = kForever;

  // Errors: kInvalidArgument for a priority above kMaxPriority.
  Result<void> validate() const;

  friend bool operator==(const BlockRetention&, const BlockRetention&) = default;
};

// A request's retention: priorities for ranges of its prompt, and one for generated tokens.
struct RetentionPlan {
  struct TokenRange {
    std::size_t begin = 0;
    std::optional<std::size_t> end{};  // nullopt: to the end of the prompt
    std::uint8_t priority = BlockRetention::kDefaultPriority;
    std::optional<Clock::Duration> duration{};  // from registration of the block; nullopt: forever
  };
  std::vector<TokenRange> prompt{};
  std::uint8_t decode_priority = BlockRetention::kDefaultPriority;
  std::optional<Clock::Duration> decode_duration{};

  // Errors: kInvalidArgument for a priority above kMaxPriority, an empty range, or a duration that is not
  // positive.
  Result<void> validate() const;
  bool empty() const noexcept {
    return prompt.empty() && decode_priority == BlockRetention::kDefaultPriority && !decode_duration;
  }

  // The retention of the block of tokens [begin, end) in a request with `prompt_tokens` of prompt, registered
  // at `now`. Of the ranges that touch the block the highest priority wins, and of equal ones the longest
  // duration. A block with a generated token is a decode block if no range of the prompt touches it. nullopt
  // when the plan does not cover the block.
  std::optional<BlockRetention> of_block(std::size_t begin, std::size_t end, std::size_t prompt_tokens,
                                         Clock::TimePoint now) const;
};

}  // namespace ashlar::block
