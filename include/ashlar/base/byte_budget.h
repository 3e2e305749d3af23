// ByteBudget: counts the bytes of several holders against one limit. ByteShare: one holder's bytes.
//
// Incoming bytes that must wait are counted before memory is allocated for them. A component without room
// refuses them and says so; its header says what becomes of refused bytes.
//
// Thread safety: ByteBudget: thread-safe; ByteShare: thread-compatible. A budget outlives its shares.
// Complexity:    O(1), no allocation.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

namespace ashlar {

// The limit, and the bytes of all holders together.
class ByteBudget {
 public:
  explicit ByteBudget(std::size_t limit) noexcept : limit_(limit) {}
  ByteBudget(const ByteBudget&) = delete;
  ByteBudget& operator=(const ByteBudget&) = delete;

  // The most that try_take() admits.
  std::size_t limit() const noexcept { return limit_; }
  // relaxed, all: an independent number; it publishes nothing.
  std::size_t used() const noexcept { return used_.load(std::memory_order_relaxed); }

  // False: no room, and nothing changed.
  bool try_take(std::size_t bytes) noexcept {
    std::size_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > limit_ || used > limit_ - bytes) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  // May exceed the limit.
  void take(std::size_t bytes) noexcept { used_.fetch_add(bytes, std::memory_order_relaxed); }
  // Requires: they were taken.
  void give_back(std::size_t bytes) noexcept { used_.fetch_sub(bytes, std::memory_order_relaxed); }

 private:
  const std::size_t limit_;
  std::atomic<std::size_t> used_{0};
};

// One holder's bytes; returned on destruction. Invariant: a share without a budget has 0 bytes.
class ByteShare {
 public:
  ByteShare() noexcept = default;
  ByteShare(ByteShare&& other) noexcept
      : budget_(std::exchange(other.budget_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  ByteShare& operator=(ByteShare&& other) noexcept {
    if (this != &other) {
      reset();
      budget_ = std::exchange(other.budget_, nullptr);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  ~ByteShare() { reset(); }

  // An empty share if there is no room.
  static ByteShare try_take(ByteBudget& budget, std::size_t bytes) noexcept {
    ByteShare share;
    if (!budget.try_take(bytes)) return share;
    share.budget_ = &budget;
    share.bytes_ = bytes;
    return share;
  }
  // False for a share that found no room, was reset or moved from.
  bool has_bytes() const noexcept { return budget_ != nullptr; }
  std::size_t bytes() const noexcept { return bytes_; }
  // Returns the bytes.
  void reset() noexcept {
    if (budget_ != nullptr) budget_->give_back(bytes_);
    budget_ = nullptr;
    bytes_ = 0;
  }

 private:
  ByteBudget* budget_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ashlar
