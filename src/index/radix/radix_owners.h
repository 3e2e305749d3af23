// RadixOwners: the workers that hold blocks of one node, by ascending slot, with a mask of held blocks per
// tier.
//
// Most nodes use only the device tier, and many have one owner: masks of lower tiers lie in a separate array,
// which exists while an owner has blocks there, and one owner lies inside the object.
//
// insert() and set_mask() throw std::bad_alloc with nothing changed. Shrinking needs no memory: without any
// for smaller arrays it keeps the current ones.
//
// Thread safety: thread-compatible.
// Complexity:    find() is O(log owners), insert() and erase() O(owners).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ashlar/base/check.h"
#include "ashlar/events/tier.h"

namespace ashlar::index {

class RadixOwners {
 public:
  struct Owner {
    std::uint64_t device = 0;  // bit i: the block at offset i
    std::uint32_t slot = 0;
  };
  // Masks of the tiers below the device.
  using Lower = std::array<std::uint64_t, events::kStorageTiers - 1>;

  RadixOwners() = default;
  RadixOwners(const RadixOwners&) = delete;
  RadixOwners& operator=(const RadixOwners&) = delete;

  std::uint32_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  std::span<const Owner> all() const noexcept { return {data(), size_}; }

  // Index of the slot's owner; size() without one.
  std::uint32_t find(std::uint32_t slot) const noexcept {
    const std::uint32_t at = lower_bound(slot);
    return at < size_ && data()[at].slot == slot ? at : size_;
  }
  // Index of the slot's owner, made with empty masks when missing.
  std::uint32_t insert(std::uint32_t slot) {
    const std::uint32_t at = lower_bound(slot);
    if (at == size_ || data()[at].slot != slot) make_room(at).slot = slot;
    return at;
  }
  void erase(std::uint32_t at) noexcept;

  std::uint64_t device(std::uint32_t at) const noexcept { return data()[at].device; }
  std::uint64_t mask(std::uint32_t at, events::StorageTier tier) const noexcept {
    if (tier == events::StorageTier::kDevice) return data()[at].device;
    return lower_ == nullptr ? 0 : lower_[at][static_cast<std::size_t>(tier) - 1];
  }
  // No owner has a block below the device.
  bool device_only() const noexcept { return lower_ == nullptr; }
  // Requires: !device_only().
  const Lower& lower(std::uint32_t at) const noexcept { return lower_[at]; }
  // Blocks in any tier.
  std::uint64_t held(std::uint32_t at) const noexcept {
    std::uint64_t held = data()[at].device;
    if (lower_ != nullptr)
      for (const std::uint64_t mask : lower_[at]) held |= mask;
    return held;
  }
  void set_mask(std::uint32_t at, events::StorageTier tier, std::uint64_t mask);

  std::size_t bytes() const noexcept {
    return (capacity_ > 1 ? capacity_ * sizeof(Owner) : 0) +
           (lower_ != nullptr ? capacity_ * sizeof(Lower) : 0);
  }

 private:
  const Owner* data() const noexcept { return capacity_ > 1 ? many_.get() : &one_; }
  Owner* data() noexcept { return capacity_ > 1 ? many_.get() : &one_; }

  std::uint32_t lower_bound(std::uint32_t slot) const noexcept {
    const Owner* owners = data();
    // Lookups often want the last owner, and always a single one.
    if (size_ == 0 || owners[size_ - 1].slot < slot) return size_;
    std::uint32_t at = 0;
    for (std::uint32_t left = size_; left > 1;) {
      const std::uint32_t half = left / 2;
      at += owners[at + half - 1].slot < slot ? half : 0;
      left -= half;
    }
    return at;
  }
  // Inserts an empty owner at the index; later ones move up.
  Owner& make_room(std::uint32_t at);
  void set_capacity(std::uint32_t capacity);
  void shrink(std::uint32_t capacity) noexcept;

  std::uint32_t size_ = 0;
  std::uint32_t capacity_ = 1;
  std::uint32_t lower_owners_ = 0;  // owners with a non-zero lower mask
  Owner one_;                       // the only one, while capacity_ is 1
  std::unique_ptr<Owner[]> many_;
  std::unique_ptr<Lower[]> lower_;  // parallel to the owners
};

}  // namespace ashlar::index
