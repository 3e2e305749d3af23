// BlockList: an owning list of guards. The destructor drops registered guards together, from the last to the
// first, so that the tail of a sequence is evicted before its head.
//
// A list refilled after clear() keeps its memory, so a caller that reuses a list allocates nothing in the
// steady state.
//
// Thread safety: thread-compatible.
// Complexity:    as std::vector; dropping n registered guards visits the store's lock once per 64 of them.
// Invariant:     guards are dropped from the last to the first, by clear(), truncate(), assignment and the
//                destructor alike.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"

namespace ashlar::block {

// Guards that offer release(span) are dropped with it; the others one by one.
template <class Guard>
concept BulkReleasable = requires(std::span<Guard> guards) { Guard::release(guards); };

template <class Guard>
class [[nodiscard]] BlockList {
 public:
  using value_type = Guard;
  using iterator = typename std::vector<Guard>::iterator;
  using const_iterator = typename std::vector<Guard>::const_iterator;

  BlockList() = default;
  // Takes ownership of the guards, in order.
  explicit BlockList(std::vector<Guard> guards) : guards_(std::move(guards)) {}
  BlockList(BlockList&&) noexcept = default;
  BlockList& operator=(BlockList&& other) noexcept {
    if (this != &other) {
      clear();
      guards_ = std::move(other.guards_);
      other.guards_.clear();
    }
    return *this;
  }
  BlockList(const BlockList&) = delete;
  BlockList& operator=(const BlockList&) = delete;
  ~BlockList() { clear(); }

  // Element access is checked where ASHLAR_DCHECKS is on.
  std::size_t size() const noexcept { return guards_.size(); }
  bool empty() const noexcept { return guards_.empty(); }
  Guard& operator[](std::size_t i) {
    ASHLAR_DCHECK(i < guards_.size(), "block %zu of a list of %zu", i, guards_.size());
    return guards_[i];
  }
  const Guard& operator[](std::size_t i) const {
    ASHLAR_DCHECK(i < guards_.size(), "block %zu of a list of %zu", i, guards_.size());
    return guards_[i];
  }
  Guard& front() { return (*this)[0]; }
  Guard& back() { return (*this)[guards_.size() - 1]; }
  iterator begin() noexcept { return guards_.begin(); }
  iterator end() noexcept { return guards_.end(); }
  const_iterator begin() const noexcept { return guards_.begin(); }
  const_iterator end() const noexcept { return guards_.end(); }
  // Valid until the list changes.
  std::span<Guard> span() noexcept { return guards_; }
  std::span<const Guard> span() const noexcept { return guards_; }

  // May throw std::bad_alloc, as do push_back(), emplace_back() and extend(); the list is then unchanged.
  void reserve(std::size_t n) { guards_.reserve(n); }
  void push_back(Guard guard) { guards_.push_back(std::move(guard)); }
  // Removes and returns the last guard.
  Guard take_back() {
    Guard guard = std::move(guards_.back());
    guards_.pop_back();
    return guard;
  }
  // Adds a guard made from `args`.
  template <class... Args>
  void emplace_back(Args&&... args) {
    guards_.emplace_back(std::forward<Args>(args)...);
  }
  // Appends `n` empty guards and returns them; truncate() removes those left unfilled.
  std::span<Guard> extend(std::size_t n) {
    guards_.resize(guards_.size() + n);
    return std::span<Guard>(guards_).last(n);
  }
  // Drops the guards after the first `n`.
  void truncate(std::size_t n) {
    if (n >= guards_.size()) return;
    drop(std::span<Guard>(guards_).subspan(n));
    guards_.resize(n);
  }
  // Drops all guards and keeps the memory.
  void clear() noexcept {
    drop(guards_);
    guards_.clear();
  }

 private:
  static void drop(std::span<Guard> guards) noexcept {
    if constexpr (BulkReleasable<Guard>) Guard::release(guards);
  }
  std::vector<Guard> guards_;
};

}  // namespace ashlar::block
