#include "ashlar/testing/interleaving.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"
#include "base/interleaving.h"

namespace ashlar::testing {
namespace {

constexpr std::chrono::seconds kPatience{60};
std::atomic<bool> g_installed{false};

}  // namespace

class Interleaving::Hook final : public InterleavingHook {
 public:
  Hook();
  ~Hook() override;

  Pause pause_at(std::string_view point, std::size_t nth);
  void wait_until_paused(Pause pause);
  void wait_until_paused(std::string_view point);
  void resume(Pause pause);
  void resume(std::string_view point);
  std::size_t passes(std::string_view point) const;
  void wait_until_passed(std::string_view point, std::size_t passes);

 private:
  struct PauseState {
    std::string point;
    std::size_t left;  // passes until it holds; 0 when it has
    bool held = false;
    bool ended = false;
  };

  void at(const char* point) override;
  bool is_held_locked(std::string_view point) const ASHLAR_REQUIRES(mu_);
  template <class Condition>
  void wait_locked(const char* for_what, std::string_view point, Condition&& met) ASHLAR_REQUIRES(mu_);

  mutable Mutex mu_;
  CondVar changed_;
  std::vector<PauseState> pauses_ ASHLAR_GUARDED_BY(mu_);
  std::map<std::string, std::size_t, std::less<>> passes_ ASHLAR_GUARDED_BY(mu_);
  std::size_t inside_ ASHLAR_GUARDED_BY(mu_) = 0;
};

Interleaving::Hook::Hook() {
  ASHLAR_CHECK(!g_installed.exchange(true), "another Interleaving is installed; a process has one at a time");
  set_interleaving_hook(this);
}

Interleaving::Hook::~Hook() {
  set_interleaving_hook(nullptr);
  {
    const MutexLock lock(mu_);
    for (PauseState& pause : pauses_) pause.ended = true;
    changed_.notify_all();
    wait_locked("every thread to leave", "any point",
                [&]() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return inside_ == 0; });
  }
  g_installed.store(false);
}

// The analysis does not follow lambdas, which run under their caller's lock.
template <class Condition>
void Interleaving::Hook::wait_locked(const char* for_what, std::string_view point, Condition&& met) {
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!met()) {
    const bool woken = changed_.wait_until(mu_, end);
    ASHLAR_CHECK(woken || met() || std::chrono::steady_clock::now() < end,
                 "waited %lld seconds for %s at '%.*s': the test's order of events cannot happen",
                 static_cast<long long>(kPatience.count()), for_what, static_cast<int>(point.size()),
                 point.data());
  }
}

Interleaving::Pause Interleaving::Hook::pause_at(std::string_view point, std::size_t nth) {
  ASHLAR_CHECK(nth > 0, "passes are counted from 1");
  const MutexLock lock(mu_);
  pauses_.push_back({std::string(point), nth});
  return pauses_.size() - 1;
}

void Interleaving::Hook::at(const char* point) {
  const MutexLock lock(mu_);
  ++passes_[point];
  ++inside_;
  changed_.notify_all();
  for (Pause i = 0; i < pauses_.size(); ++i) {
    if (pauses_[i].point != point || pauses_[i].ended || pauses_[i].left == 0) continue;
    if (--pauses_[i].left != 0) continue;
    pauses_[i].held = true;
    wait_locked("a resume()", point, [&]() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return pauses_[i].ended; });
    pauses_[i].held = false;
    break;
  }
  --inside_;
  changed_.notify_all();
}

bool Interleaving::Hook::is_held_locked(std::string_view point) const {
  return std::any_of(pauses_.begin(), pauses_.end(), [&](const PauseState& pause) {
    return pause.point == point && pause.held && !pause.ended;
  });
}

void Interleaving::Hook::wait_until_paused(Pause pause) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(pause < pauses_.size(), "there is no pause %zu", pause);
  wait_locked("a thread to arrive", pauses_[pause].point,
              [&]() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return pauses_[pause].held; });
}

void Interleaving::Hook::wait_until_paused(std::string_view point) {
  const MutexLock lock(mu_);
  wait_locked("a thread to arrive", point,
              [&]() ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return is_held_locked(point); });
}

void Interleaving::Hook::resume(Pause pause) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(pause < pauses_.size(), "there is no pause %zu", pause);
  pauses_[pause].ended = true;
  changed_.notify_all();
}

void Interleaving::Hook::resume(std::string_view point) {
  const MutexLock lock(mu_);
  for (PauseState& pause : pauses_) {
    if (pause.point == point) pause.ended = true;
  }
  changed_.notify_all();
}

std::size_t Interleaving::Hook::passes(std::string_view point) const {
  const MutexLock lock(mu_);
  const auto at = passes_.find(point);
  return at == passes_.end() ? 0 : at->second;
}

void Interleaving::Hook::wait_until_passed(std::string_view point, std::size_t passes) {
  const MutexLock lock(mu_);
  wait_locked("more threads", point, [&]() ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    const auto at = passes_.find(point);
    return at != passes_.end() && at->second >= passes;
  });
}

Interleaving::Interleaving() : hook_(std::make_unique<Hook>()) {}
Interleaving::~Interleaving() = default;

Interleaving::Pause Interleaving::pause_at(std::string_view point, std::size_t nth) {
  return hook_->pause_at(point, nth);
}
void Interleaving::wait_until_paused(Pause pause) {
  hook_->wait_until_paused(pause);
}
void Interleaving::wait_until_paused(std::string_view point) {
  hook_->wait_until_paused(point);
}
void Interleaving::resume(Pause pause) {
  hook_->resume(pause);
}
void Interleaving::resume(std::string_view point) {
  hook_->resume(point);
}
std::size_t Interleaving::passes(std::string_view point) const {
  return hook_->passes(point);
}
void Interleaving::wait_until_passed(std::string_view point, std::size_t passes) {
  hook_->wait_until_passed(point, passes);
}

}  // namespace ashlar::testing
