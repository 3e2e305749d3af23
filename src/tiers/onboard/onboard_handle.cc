#include "ashlar/tiers/onboard_handle.h"

#include <array>

#include "tiers/onboard/onboard_call.h"

namespace ashlar::tiers {

std::string_view to_string(Miss miss) noexcept {
  constexpr std::array<std::string_view, kMisses> kNames = {
      "none",    "unknown", "behind",        "declined",     "no_room",      "gone",
      "damaged", "failed",  "salt_mismatch", "other_tokens", "other_shards", "cancelled",
      "late",    "refused", "unreachable",   "unwritten"};
  const auto i = static_cast<std::size_t>(miss);
  return i < kMisses ? kNames[i] : "unknown";
}

std::vector<BlockOutcome> OnboardHandle::blocks() const {
  return call_->blocks();
}
bool OnboardHandle::done() const {
  return call_->done();
}
Result<OnboardTable> OnboardHandle::wait() const {
  return call_->wait({});
}
Result<OnboardTable> OnboardHandle::wait_until(Clock::TimePoint when) const {
  return call_->wait(when);
}
Result<std::vector<block::BlockId>> OnboardHandle::wait_layer(std::uint32_t layer,
                                                              std::optional<Clock::TimePoint> until) const {
  return call_->wait_layer(layer, until);
}
void OnboardHandle::cancel() const {
  call_->cancel();
}

}  // namespace ashlar::tiers
