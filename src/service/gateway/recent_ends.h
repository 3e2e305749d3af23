// RecentEnds: replies that were just answered, whose last blocks the worker's events may not have told yet.
//
// A follow-up turn continues a prompt and its reply. Its client has the reply before the events of the blocks
// that the reply filled are here; a choice in between would claim too little. So it asks whether such events
// are owed, and waits for them a moment.
//
// A turn whose prompt does not repeat the reply as it was (a template that leaves reasoning out, a client
// that changes it) would wait in vain: those blocks never come. So waits are judged: after kVain of a model
// in a row that brought nothing, only one in kProbe still waits.
//
// Thread safety: thread-safe.
// Complexity:    expected(): O(blocks) lookups, none where nothing ended lately.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

class RecentEnds {
 public:
  struct End {
    events::Worker worker;
    std::uint64_t blocks = 0;   // full ones of the prompt with its reply
    std::uint64_t cleared = 0;  // times that the worker was cleared before
    Clock::TimePoint until{};   // nothing is owed from then on
  };
  static constexpr std::uint32_t kVain = 4;
  static constexpr std::uint32_t kProbe = 16;

  explicit RecentEnds(Clock::Duration lifetime) : lifetime_(lifetime) {}

  // The prompt with these blocks was answered by a worker, which now has `end.blocks` of it and its reply.
  void add(std::span<const tokens::LocalHash> prompt, const End& end, Clock::TimePoint now) {
    if (prompt.empty()) return;
    std::uint64_t name = kStart;
    for (const tokens::LocalHash local : prompt) name = next(name, local);
    MutexLock lock(mu_);
    expire_locked(now);
    if (order_.size() >= kMost) return;
    ends_[name] = end;
    ends_[name].until = now + lifetime_;
    order_.push_back({name, now + lifetime_});
    count_.store(order_.size(), std::memory_order_relaxed);
  }
  // The longest of those that these blocks continue; none: nothing is owed.
  std::optional<End> expected(std::span<const tokens::LocalHash> locals, Clock::TimePoint now) {
    // relaxed: an end that is not seen here has just come to pass on another thread.
    if (count_.load(std::memory_order_relaxed) == 0) return std::nullopt;
    MutexLock lock(mu_);
    expire_locked(now);
    std::optional<End> found;
    std::uint64_t name = kStart;
    for (const tokens::LocalHash local : locals) {
      if (ends_.empty()) break;
      name = next(name, local);
      if (const auto end = ends_.find(name); end != ends_.end()) found = end->second;
    }
    return found;
  }

  // Whether a request of this model should wait for what is owed.
  bool is_worth_waiting(std::string_view model) {
    MutexLock lock(mu_);
    const auto found = waits_.find(model);
    return found == waits_.end() || found->second.vain < kVain || ++found->second.skipped % kProbe == 0;
  }
  // A request has waited. `has_come`: for something.
  void judge(std::string_view model, bool has_come) {
    MutexLock lock(mu_);
    const auto found = waits_.find(model);
    if (has_come) {
      if (found != waits_.end()) waits_.erase(found);
    } else if (found != waits_.end()) {
      found->second.vain += found->second.vain < kVain ? 1 : 0;
    } else {
      waits_.emplace(std::string(model), Waits{.vain = 1});
    }
  }

 private:
  struct Waits {
    std::uint32_t vain = 0;  // in a row, up to kVain
    std::uint32_t skipped = 0;
  };
  static constexpr std::uint64_t kStart = 0x9E37'79B9'7F4A'7C15u;
  static constexpr std::size_t kMost = 4096;

  // A collision makes a request wait for nothing, as long as events may take.
  static std::uint64_t next(std::uint64_t name, tokens::LocalHash local) noexcept {
    name = (name ^ local.value()) * 0xFF51'AFD7'ED55'8CCDu;
    return name ^ (name >> 32);
  }
  void expire_locked(Clock::TimePoint now) ASHLAR_REQUIRES(mu_) {
    while (!order_.empty() && order_.front().second <= now) {
      const auto found = ends_.find(order_.front().first);
      if (found != ends_.end() && found->second.until <= now) ends_.erase(found);
      order_.pop_front();
    }
    count_.store(order_.size(), std::memory_order_relaxed);
  }

  const Clock::Duration lifetime_;
  Mutex mu_;
  std::unordered_map<std::uint64_t, End> ends_ ASHLAR_GUARDED_BY(mu_);
  std::map<std::string, Waits, std::less<>> waits_ ASHLAR_GUARDED_BY(mu_);  // by model: of groups that exist
  std::deque<std::pair<std::uint64_t, Clock::TimePoint>> order_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<std::size_t> count_{0};
};

}  // namespace ashlar::service
