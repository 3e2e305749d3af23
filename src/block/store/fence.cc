#include "ashlar/block/fence.h"

#include <atomic>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::block {

struct Fence::State {
  std::atomic<bool> passed{false};
  std::atomic<bool> abandoned{false};
  Mutex mu;
  std::vector<std::function<void()>> callbacks ASHLAR_GUARDED_BY(mu);
};

std::pair<Fence, FenceSignal> Fence::create() {
  auto state = std::make_shared<State>();
  return {Fence(state), FenceSignal(state)};
}

Fence Fence::passed_already() {
  auto state = std::make_shared<State>();
  state->passed.store(true, std::memory_order_relaxed);  // relaxed: no other thread has seen it yet
  return Fence(std::move(state));
}

// acquire: pairs with the release in signal(); the writes of the device's reporter come before the code after
// the fence.
bool Fence::passed() const noexcept {
  return state_->passed.load(std::memory_order_acquire);
}

bool Fence::abandoned() const noexcept {
  return state_->abandoned.load(std::memory_order_acquire);
}

void Fence::on_passed(std::function<void()> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_passed() was given an empty function");
  {
    const MutexLock lock(state_->mu);
    if (!state_->passed.load(std::memory_order_relaxed)) {  // relaxed: it changes under the lock
      if (!state_->abandoned.load(std::memory_order_relaxed))
        state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback();
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
  if (!state_) return;
  std::vector<std::function<void()>> unheard;  // destroyed after the lock
  const MutexLock lock(state_->mu);
  state_->abandoned.store(true, std::memory_order_release);
  unheard.swap(state_->callbacks);
}

void FenceSignal::signal() && noexcept {
  ASHLAR_CHECK(state_ != nullptr, "this signal was used or moved from");
  const std::shared_ptr<Fence::State> state = std::move(state_);
  std::vector<std::function<void()>> callbacks;
  {
    const MutexLock lock(state->mu);
    // release: pairs with the acquire in passed().
    state->passed.store(true, std::memory_order_release);
    callbacks.swap(state->callbacks);
  }
  for (const auto& callback : callbacks) callback();
}

}  // namespace ashlar::block
