// TokenWorkers: which workers are asked for tokens, and which are left alone for a while because they have
// no such endpoint or did not answer.
//
// An endpoint that is not there (404, 405, 501, or 403 of a render endpoint) is asked for again after
// kAbsentPause, a worker that failed after kFailedPause; each time in a row the pause doubles, up to a limit.
// A worker failed if it could not be reached, or did badly by kDistinctPrompts prompts with no good answer
// between: one prompt that no tokenizer takes says nothing about the worker.
// A good answer, a restart of the worker and a reload of the workers make it forgotten.
//
// Thread safety: thread-safe.
// Complexity:    O(log endpoints); none where every worker answers.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/events/kv_event.h"

namespace ashlar::service {

// What became of a question for tokens.
// kRefused: it was asked, and did badly by this prompt: 5xx, 408, 429, nothing in time.
enum class TokenAnswer : std::uint8_t { kGood, kAbsent, kFailed, kRefused };
// By the status of the answer. Whatever else a worker says is about the request, and good.
constexpr TokenAnswer token_answer(unsigned status, bool is_render) noexcept {
  if (status == 404 || status == 405 || status == 501 || (is_render && status == 403))
    return TokenAnswer::kAbsent;
  return status >= 500 || status == 408 || status == 429 ? TokenAnswer::kRefused : TokenAnswer::kGood;
}

class TokenWorkers {
 public:
  static constexpr Clock::Duration kAbsentPause = std::chrono::seconds(30);
  static constexpr Clock::Duration kFailedPause = std::chrono::seconds(1);
  static constexpr std::size_t kDistinctPrompts = 3;
  static constexpr Clock::Duration kLongestPause = std::chrono::minutes(10);

  bool may_ask(events::WorkerId worker, std::string_view target, Clock::TimePoint now) const {
    // relaxed: a worker that just failed is asked once more.
    if (count_.load(std::memory_order_relaxed) == 0) return true;
    MutexLock lock(mu_);
    const auto rests = [&](std::string_view what) ASHLAR_REQUIRES(mu_) {
      const auto found = rests_.find(std::pair(worker, what));
      return found != rests_.end() && now < found->second.until;
    };
    return !rests(target) && !rests(kWhole);
  }
  // `prompt`: a hash of what was asked.
  void note(events::WorkerId worker, std::string_view target, TokenAnswer answer, std::uint64_t prompt,
            Clock::TimePoint now) {
    if (answer == TokenAnswer::kGood && count_.load(std::memory_order_relaxed) == 0) return;
    MutexLock lock(mu_);
    if (answer == TokenAnswer::kGood) {
      rests_.erase(std::pair(worker, target));
      rests_.erase(std::pair(worker, kWhole));
      refused_.erase(worker);
    } else if (answer != TokenAnswer::kRefused || !is_one_of_few(worker, prompt)) {
      const bool is_absent = answer == TokenAnswer::kAbsent;
      Rest& rest = rests_[std::pair(worker, is_absent ? target : kWhole)];
      const Clock::Duration least = is_absent ? kAbsentPause : kFailedPause;
      // Questions that were asked together fail together: they count once.
      if (now >= rest.until || rest.pause < least) {
        rest.pause = std::clamp(rest.pause * 2, least, kLongestPause);
        rest.until = now + rest.pause;
      }
    }
    store_count();
  }
  // It may be another engine now.
  void forget(events::WorkerId worker) {
    MutexLock lock(mu_);
    std::erase_if(rests_, [&](const auto& entry) { return entry.first.first == worker; });
    refused_.erase(worker);
    store_count();
  }
  void forget_all() {
    MutexLock lock(mu_);
    rests_.clear();
    refused_.clear();
    store_count();
  }
  // Endpoints and workers that are not asked now.
  std::size_t resting(Clock::TimePoint now) const {
    MutexLock lock(mu_);
    return static_cast<std::size_t>(
        std::ranges::count_if(rests_, [&](const auto& entry) { return now < entry.second.until; }));
  }

 private:
  static constexpr std::string_view kWhole = {};  // a target: all of the worker

  struct Rest {
    Clock::TimePoint until{};
    Clock::Duration pause{};
  };

  // Remembers the prompt. False: the worker did badly by too many others too; they are forgotten.
  bool is_one_of_few(events::WorkerId worker, std::uint64_t prompt) ASHLAR_REQUIRES(mu_) {
    std::vector<std::uint64_t>& prompts = refused_[worker];
    if (std::ranges::find(prompts, prompt) != prompts.end()) return true;
    prompts.push_back(prompt);
    if (prompts.size() < kDistinctPrompts) return true;
    refused_.erase(worker);
    return false;
  }
  void store_count() ASHLAR_REQUIRES(mu_) {
    count_.store(rests_.size() + refused_.size(), std::memory_order_relaxed);
  }

  mutable Mutex mu_;
  // Targets are constants.
  std::map<std::pair<events::WorkerId, std::string_view>, Rest> rests_ ASHLAR_GUARDED_BY(mu_);
  // Prompts by which a worker did badly since its last good answer, fewer than kDistinctPrompts.
  std::map<events::WorkerId, std::vector<std::uint64_t>> refused_ ASHLAR_GUARDED_BY(mu_);
  std::atomic<std::size_t> count_{0};  // of both
};

}  // namespace ashlar::service
