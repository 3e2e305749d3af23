#include "ashlar/block/fence.h"

#include <atomic>
#include <cstdint>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::block {

namespace {

constexpr std::uint8_t kPending = 0xFF;

template <class Callback>
class WaitingCallback final : public Fence::Waiting {
 public:
  explicit WaitingCallback(Callback callback) : callback_(std::move(callback)) {}
  void settled(FenceEnd end) noexcept override { callback_(end); }

 private:
  Callback callback_;
};

template <class Callback>
std::unique_ptr<Fence::Waiting> waiting_callback(Callback callback) {
  return std::make_unique<WaitingCallback<Callback>>(std::move(callback));
}

}  // namespace

struct Fence::State {
  bool is(FenceEnd wanted) const noexcept {
    // acquire: pairs with the release in settle(); the writes of the device's reporter come before the code
    // after the fence.
    return end.load(std::memory_order_acquire) == static_cast<std::uint8_t>(wanted);
  }
  std::atomic<std::uint8_t> end{kPending};  // a FenceEnd
  Mutex mu;
  std::unique_ptr<Waiting> first ASHLAR_GUARDED_BY(mu);
  Waiting* last ASHLAR_GUARDED_BY(mu) = nullptr;
};

std::pair<Fence, FenceSignal> Fence::create() {
  auto state = std::make_shared<State>();
  return {Fence(state), FenceSignal(state)};
}

Fence Fence::passed_already() {
  auto state = std::make_shared<State>();
  // relaxed: no other thread has seen it yet.
  state->end.store(static_cast<std::uint8_t>(FenceEnd::kPassed), std::memory_order_relaxed);
  return Fence(std::move(state));
}

bool Fence::passed() const noexcept {
  return state_->is(FenceEnd::kPassed);
}
bool Fence::failed() const noexcept {
  return state_->is(FenceEnd::kFailed);
}
bool Fence::abandoned() const noexcept {
  return state_->is(FenceEnd::kAbandoned);
}
bool Fence::ended() const noexcept {
  return passed() || failed();
}
bool Fence::never_passes() const noexcept {
  return failed() || abandoned();
}

void Fence::keep(std::unique_ptr<Waiting> waiting) const noexcept {
  std::uint8_t end = kPending;
  {
    const MutexLock lock(state_->mu);
    end = state_->end.load(std::memory_order_relaxed);  // relaxed: it changes under the lock
    if (end == kPending) {
      Waiting* const last = waiting.get();
      (state_->first == nullptr ? state_->first : state_->last->next_) = std::move(waiting);
      state_->last = last;
      return;
    }
  }
  waiting->settled(static_cast<FenceEnd>(end));
}

void Fence::on_settled(std::function<void(bool)> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_settled() was given an empty function");
  keep(waiting_callback([run = std::move(callback)](FenceEnd end) { run(end == FenceEnd::kPassed); }));
}

void Fence::on_ended(std::function<void()> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_ended() was given an empty function");
  keep(waiting_callback([run = std::move(callback)](FenceEnd end) {
    if (end != FenceEnd::kAbandoned) run();
  }));
}

void Fence::on_passed(std::function<void()> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_passed() was given an empty function");
  keep(waiting_callback([run = std::move(callback)](FenceEnd end) {
    if (end == FenceEnd::kPassed) run();
  }));
}

FenceSignal& FenceSignal::operator=(FenceSignal&& other) noexcept {
  if (this != &other) {
    abandon();
    state_ = std::move(other.state_);
  }
  return *this;
}

FenceSignal::~FenceSignal() {
  abandon();
}

void FenceSignal::abandon() noexcept {
  if (state_) settle(FenceEnd::kAbandoned);
}

void FenceSignal::signal() && noexcept {
  ASHLAR_CHECK(state_ != nullptr, "this signal was used or moved from");
  settle(FenceEnd::kPassed);
}

void FenceSignal::fail() && noexcept {
  ASHLAR_CHECK(state_ != nullptr, "this signal was used or moved from");
  settle(FenceEnd::kFailed);
}

void FenceSignal::settle(FenceEnd end) noexcept {
  const std::shared_ptr<Fence::State> state = std::move(state_);
  std::unique_ptr<Fence::Waiting> waiting;
  {
    const MutexLock lock(state->mu);
    // release: pairs with the acquire in State::is().
    state->end.store(static_cast<std::uint8_t>(end), std::memory_order_release);
    waiting = std::move(state->first);
    state->last = nullptr;
  }
  for (Fence::Waiting* one = waiting.get(); one != nullptr; one = one->next_.get()) one->settled(end);
  while (waiting != nullptr) waiting = std::move(waiting->next_);
}

}  // namespace ashlar::block
