// WaitLine: requests that wait for a worker with room, first come, first served.
//
// Whoever leaves the line, for whatever reason, wakes the next: so no wake is lost with a request that left
// before it could use it.
//
// Thread safety: thread-safe. Wakes are called without the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::service {

class WaitLine {
 public:
  explicit WaitLine(std::size_t capacity) : capacity_(capacity) {}
  ~WaitLine() { ASHLAR_DCHECK(waiting_.empty(), "%zu requests still wait", waiting_.size()); }
  WaitLine(const WaitLine&) = delete;
  WaitLine& operator=(const WaitLine&) = delete;

  // A place at the end; 0: the line is full.
  std::uint64_t enter(std::function<void()> wake) {
    MutexLock lock(mu_);
    if (waiting_.size() >= capacity_) return 0;
    waiting_.emplace(next_, std::move(wake));
    return next_++;
  }
  void leave(std::uint64_t place) {
    leave_quietly(place);
    wake_first();
  }
  // The same where there are no turns.
  void leave_quietly(std::uint64_t place) {
    MutexLock lock(mu_);
    waiting_.erase(place);
  }
  // Someone gave room. Wakes the first of the line, which stays in it.
  void wake_first() {
    std::function<void()> wake;
    {
      MutexLock lock(mu_);
      if (waiting_.empty()) return;
      wake = waiting_.begin()->second;
    }
    wake();
  }
  void wake_all() {
    std::map<std::uint64_t, std::function<void()>> all;
    {
      // Who enters later sees what the caller has changed.
      MutexLock lock(mu_);
      all = waiting_;
    }
    for (const auto& [place, wake] : all) wake();
  }
  // Whether it is this one's turn, or nobody waits.
  bool is_first(std::uint64_t place) const {
    MutexLock lock(mu_);
    return waiting_.empty() || waiting_.begin()->first == place;
  }
  bool empty() const {
    MutexLock lock(mu_);
    return waiting_.empty();
  }
  std::size_t size() const {
    MutexLock lock(mu_);
    return waiting_.size();
  }

 private:
  const std::size_t capacity_;
  mutable Mutex mu_;
  std::map<std::uint64_t, std::function<void()>> waiting_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t next_ ASHLAR_GUARDED_BY(mu_) = 1;
};

// A line for each group of workers: those of one model do not wait for room at another.
//
// Thread safety: thread-safe. A line lives as long as this object.
class WaitLines {
 public:
  explicit WaitLines(std::size_t capacity) : capacity_(capacity) {}

  WaitLine& of(std::string_view group) {
    MutexLock lock(mu_);
    auto found = lines_.find(group);
    if (found == lines_.end())
      found = lines_.emplace(std::string(group), std::make_unique<WaitLine>(capacity_)).first;
    return *found->second;
  }
  std::size_t size() const {
    MutexLock lock(mu_);
    std::size_t sum = 0;
    for (const auto& [group, line] : lines_) sum += line->size();
    return sum;
  }
  template <class F>
  void for_each(F&& fn) {
    std::vector<WaitLine*> all;
    {
      MutexLock lock(mu_);
      for (const auto& [group, line] : lines_) all.push_back(line.get());
    }
    for (WaitLine* line : all) fn(*line);
  }

 private:
  const std::size_t capacity_;
  mutable Mutex mu_;
  std::map<std::string, std::unique_ptr<WaitLine>, std::less<>> lines_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::service
