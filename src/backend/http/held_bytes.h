// HeldBytes: how many bytes are held, within a limit that each call names.
//
// Thread safety: thread-safe.
// Complexity:    O(1).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

class HeldBytes {
 public:
  HeldBytes() = default;
  HeldBytes(const HeldBytes&) = delete;
  HeldBytes& operator=(const HeldBytes&) = delete;
  ~HeldBytes() { ASHLAR_DCHECK(held() == 0, "%zu bytes were not given back", held()); }

  // `one_at_least`: whatever comes goes while nothing else is held. False: there is no room, and nothing is
  // taken.
  bool take(std::size_t bytes, std::size_t limit, bool one_at_least) noexcept {
    // relaxed, all: a count alone.
    std::size_t before = held_.load(std::memory_order_relaxed);
    do {
      if ((before != 0 || !one_at_least) && (before > limit || bytes > limit - before)) {
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
  std::atomic<std::size_t> held_{0};
  std::atomic<std::uint64_t> refusals_{0};
};

// What one holder has of them, given back at its end.
//
// Thread safety: thread-compatible.
class HeldShare {
 public:
  HeldShare(HeldBytes& all, std::size_t limit) noexcept : all_(all), limit_(limit) {}
  HeldShare(const HeldShare&) = delete;
  HeldShare& operator=(const HeldShare&) = delete;
  ~HeldShare() { all_.give_back(bytes_); }

  // False: there is no room for so many.
  bool grow_to(std::size_t bytes) noexcept {
    if (bytes <= bytes_) return true;
    if (!all_.take(bytes - bytes_, limit_, /*one_at_least=*/false)) return false;
    bytes_ = bytes;
    return true;
  }

 private:
  HeldBytes& all_;
  const std::size_t limit_;
  std::size_t bytes_ = 0;
};

}  // namespace ashlar::backend::http
