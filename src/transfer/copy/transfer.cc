#include "ashlar/transfer/executor.h"

#include "transfer/copy/transfer_state.h"

namespace ashlar::transfer {

bool Transfer::done() const {
  return state_->done();
}
TransferResult Transfer::wait() const {
  return state_->wait({}, true);
}
TransferResult Transfer::wait_until(Clock::TimePoint when) const {
  return state_->wait(when, true);
}
TransferResult Transfer::wait_for_end() const {
  return state_->wait({}, false);
}
void Transfer::cancel() const {
  state_->cancel();
}
void Transfer::on_done(std::function<void(const TransferResult&)> callback) const {
  state_->on_done(std::move(callback));
}
block::Fence Transfer::fence() const {
  return state_->fence();
}
std::uint64_t Transfer::bytes_done() const {
  return state_->bytes_done();
}
std::uint64_t Transfer::bytes_total() const {
  return state_->bytes_total();
}

}  // namespace ashlar::transfer
