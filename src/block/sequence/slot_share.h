// SlotShare: an unregistered slot that several tables own together. The last share returns it.
//
// Thread safety: thread-compatible; different shares of one slot may be used by different threads.
#pragma once

#include <atomic>
#include <cstddef>
#include <utility>

#include "ashlar/block/detail/slot_ref.h"

namespace ashlar::block::detail {

class SlotShare {
 public:
  // An empty share.
  SlotShare() = default;
  // The only share of a slot that the caller owns.
  explicit SlotShare(const SlotRef& slot) : shared_(new Shared{slot}) {}
  SlotShare(const SlotShare& other) noexcept : shared_(other.shared_) {
    // relaxed: the other share keeps the count above zero.
    if (shared_ != nullptr) shared_->shares.fetch_add(1, std::memory_order_relaxed);
  }
  SlotShare(SlotShare&& other) noexcept : shared_(std::exchange(other.shared_, nullptr)) {}
  SlotShare& operator=(SlotShare other) noexcept {
    std::swap(shared_, other.shared_);
    return *this;
  }
  ~SlotShare() {
    if (shared_ == nullptr) return;
    // acq_rel: every sharer's accesses to the block happen before the slot is returned.
    if (shared_->shares.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (!shared_->abandoned.load(std::memory_order_relaxed)) drop_owned(shared_->slot);
    delete shared_;
  }

  explicit operator bool() const noexcept { return shared_ != nullptr; }
  const SlotRef& slot() const noexcept { return shared_->slot; }
  // relaxed: a hint under concurrency.
  std::size_t count() const noexcept { return shared_->shares.load(std::memory_order_relaxed); }
  // True when the slot has no other share, so no new one can begin, and no work that never ends may still
  // read it. acquire: pairs with the last other sharer's release; its accesses to the block come first.
  bool sole() const noexcept {
    return shared_->shares.load(std::memory_order_acquire) == 1 &&
           !shared_->abandoned.load(std::memory_order_relaxed);
  }
  // Transfers the slot to the caller. Requires: sole().
  SlotRef take() && noexcept {
    const SlotRef slot = shared_->slot;
    delete std::exchange(shared_, nullptr);
    return slot;
  }

  // Abandons the share to work that never ends: the slot is never returned.
  void abandon() && noexcept {
    // relaxed: the next decrement of the count (acq_rel) publishes it.
    if (shared_ != nullptr) shared_->abandoned.store(true, std::memory_order_relaxed);
    *this = SlotShare();
  }

 private:
  struct Shared {
    SlotRef slot;
    std::atomic<std::size_t> shares{1};
    std::atomic<bool> abandoned{false};
  };
  Shared* shared_ = nullptr;
};

}  // namespace ashlar::block::detail
