// ResponseHomes: which worker has an answer of /v1/responses, by the answer's id. Engines keep such answers
// in their own memory. The oldest are forgotten.
//
// Thread safety: thread-safe.
// Complexity:    O(1) expected.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string_view>
#include <unordered_map>

#include "ashlar/base/mutex.h"
#include "ashlar/events/kv_event.h"

namespace ashlar::service {

class ResponseHomes {
 public:
  static constexpr std::size_t kMost = 65'536;

  void add(std::string_view id, events::WorkerId worker) {
    const std::uint64_t key = std::hash<std::string_view>()(id);
    MutexLock lock(mu_);
    const auto [found, is_new] = homes_.insert_or_assign(key, worker);
    if (!is_new) return;
    order_.push_back(key);
    if (order_.size() <= kMost) return;
    homes_.erase(order_.front());
    order_.pop_front();
  }
  std::optional<events::WorkerId> find(std::string_view id) const {
    if (id.empty()) return std::nullopt;
    MutexLock lock(mu_);
    const auto found = homes_.find(std::hash<std::string_view>()(id));
    if (found == homes_.end()) return std::nullopt;
    return found->second;
  }

 private:
  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, events::WorkerId> homes_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::uint64_t> order_ ASHLAR_GUARDED_BY(mu_);  // the oldest first
};

}  // namespace ashlar::service
