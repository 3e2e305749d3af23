// ReplyBudget: how many bytes of a proxy's own large replies are held for clients that have not read them.
//
// One reply goes whatever its size is, if no other is held.
//
// Thread safety: thread-safe.
// Complexity:    O(1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

class ReplyBudget {
 public:
  // Replies up to here are not counted: sockets take them.
  static constexpr std::size_t kSmall = 64 << 10;

  explicit ReplyBudget(std::size_t limit) noexcept : limit_(limit) {}
  ReplyBudget(const ReplyBudget&) = delete;
  ReplyBudget& operator=(const ReplyBudget&) = delete;
  ~ReplyBudget() { ASHLAR_DCHECK(held() == 0, "%zu bytes were not given back", held()); }

  // Room for a reply, as long as it lives.
  class Room {
   public:
    Room(ReplyBudget& budget, std::size_t bytes) noexcept
        : budget_(budget), bytes_(bytes > kSmall ? bytes : 0), is_taken_(budget.take(bytes_)) {}
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
      if (is_taken_) budget_.held_.fetch_sub(bytes_, std::memory_order_relaxed);
    }
    bool is_taken() const noexcept { return is_taken_; }

   private:
    ReplyBudget& budget_;
    const std::size_t bytes_;
    const bool is_taken_;
  };

  std::size_t held() const noexcept { return held_.load(std::memory_order_relaxed); }
  std::uint64_t refusals() const noexcept { return refusals_.load(std::memory_order_relaxed); }

 private:
  bool take(std::size_t bytes) noexcept {
    if (bytes == 0) return true;
    // relaxed, all: a count alone.
    std::size_t before = held_.load(std::memory_order_relaxed);
    do {
      if (before != 0 && (before > limit_ || bytes > limit_ - before)) {
        refusals_.fetch_add(1, std::memory_order_relaxed);
        return false;
      }
    } while (!held_.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed));
    return true;
  }

  const std::size_t limit_;
  std::atomic<std::size_t> held_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

}  // namespace ashlar::backend::http
