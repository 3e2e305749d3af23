#include "ashlar/tiers/onboard_handle.h"

#include "tiers/onboard/onboard_call.h"

namespace ashlar::tiers {

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
Result<std::vector<block::BlockId>> OnboardHandle::wait_layer(std::uint32_t layer) const {
  return call_->wait_layer(layer);
}
void OnboardHandle::cancel() const {
  call_->cancel();
}

}  // namespace ashlar::tiers
