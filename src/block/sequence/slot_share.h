// SlotShare: an unregistered slot that several tables own together. The last share gives it back.
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
  // No share of anything.
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
    // acq_rel: what every sharer did with the block comes before it is given back.
    if (shared_->shares.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    if (!shared_->abandoned.load(std::memory_order_relaxed)) drop_owned(shared_->slot);
    delete shared_;
  }

  explicit operator bool() const noexcept { return shared_ != nullptr; }
  const SlotRef& slot() const noexcept { return shared_->slot; }
  // True when the slot is not shared, so that no new share can begin, and no work that never ends may still
  // read it. acquire: pairs with the last other sharer's release; what it did with the block comes first.
  bool sole() const noexcept {
    return shared_->shares.load(std::memory_order_acquire) == 1 &&
           !shared_->abandoned.load(std::memory_order_relaxed);
  }
  // Gives the slot up to the caller. Requires: sole().
  SlotRef take() && noexcept {
    const SlotRef slot = shared_->slot;
    delete std::exchange(shared_, nullptr);
    return slot;
  }

  // Gives the share up for work that never ends: the slot is never given back.
  void abandon() && noexcept {
    // relaxed: the count that goes down next (acq_rel) hands it on.
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
