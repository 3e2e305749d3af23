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
  std::vector<std::function<void(bool)>> callbacks ASHLAR_GUARDED_BY(mu);
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

void Fence::on_settled(std::function<void(bool)> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_settled() was given an empty function");
  bool has_passed = false;
  {
    const MutexLock lock(state_->mu);
    has_passed = state_->passed.load(std::memory_order_relaxed);  // relaxed: it changes under the lock
    if (!has_passed && !state_->abandoned.load(std::memory_order_relaxed)) {
      state_->callbacks.push_back(std::move(callback));
      return;
    }
  }
  callback(has_passed);
}

void Fence::on_passed(std::function<void()> callback) const {
  ASHLAR_CHECK(callback != nullptr, "on_passed() was given an empty function");
  on_settled([run = std::move(callback)](bool has_passed) {
    if (has_passed) run();
  });
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
  if (state_) settle(false);
}

void FenceSignal::signal() && noexcept {
  ASHLAR_CHECK(state_ != nullptr, "this signal was used or moved from");
  settle(true);
}

void FenceSignal::settle(bool passed) noexcept {
  const std::shared_ptr<Fence::State> state = std::move(state_);
  std::vector<std::function<void(bool)>> callbacks;
  {
    const MutexLock lock(state->mu);
    // release: pairs with the acquire in passed() and abandoned().
    (passed ? state->passed : state->abandoned).store(true, std::memory_order_release);
    callbacks.swap(state->callbacks);
  }
  for (const auto& callback : callbacks) callback(passed);
}

}  // namespace ashlar::block
