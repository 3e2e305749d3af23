// BodyBudget: how many bytes of request bodies a server holds in memory, over all connections.
//
// An eighth is for bodies that say that they are small: a few large ones that come slowly do not shut out
// everyone.
//
// Thread safety: thread-safe.
// Complexity:    O(1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

class BodyBudget {
 public:
  static constexpr std::size_t kSmall = 64 << 10;

  explicit BodyBudget(std::size_t limit) noexcept : limit_(limit) {}
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  ~BodyBudget() { ASHLAR_DCHECK(held() == 0, "%zu bytes were not given back", held()); }

  // What one body can have at most.
  static std::size_t largest_body(std::size_t limit) noexcept { return limit - limit / 8; }

  // `is_small`: the whole body has at most kSmall bytes. False: there is no room, and nothing is taken.
  bool take(std::size_t bytes, bool is_small) noexcept {
    const std::size_t limit = is_small ? limit_ : largest_body(limit_);
    // relaxed, all: a count alone.
    std::size_t before = held_.load(std::memory_order_relaxed);
    do {
      if (before > limit || bytes > limit - before) {
        refusals_.fetch_add(1, std::memory_order_relaxed);
        return false;
      }
    } while (!held_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    return true;
  }
  void give_back(std::size_t bytes) noexcept {
    [[maybe_unused]] const std::size_t before = held_.fetch_sub(bytes, std::memory_order_relaxed);
    ASHLAR_DCHECK(before >= bytes, "%zu bytes given back of %zu", bytes, before);
  }
  std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }
  std::uint64_t refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> held_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

}  // namespace ashlar::backend::http
