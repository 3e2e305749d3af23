#include "index/radix/radix_owners.h"

#include <algorithm>
#include <new>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::index {

namespace {

bool any(const RadixOwners::Lower& lower) {
  return std::ranges::any_of(lower, [](std::uint64_t mask) { return mask != 0; });
}

}  // namespace

RadixOwners::Owner& RadixOwners::make_room(std::uint32_t at) {
  if (size_ == capacity_) set_capacity(capacity_ == 1 ? 4 : capacity_ + capacity_ / 2);
  Owner* owners = data();
  std::move_backward(owners + at, owners + size_, owners + size_ + 1);
  owners[at] = {};
  if (lower_ != nullptr) {
    std::move_backward(lower_.get() + at, lower_.get() + size_, lower_.get() + size_ + 1);
    lower_[at] = {};
  }
  ++size_;
  return owners[at];
}

void RadixOwners::erase(std::uint32_t at) noexcept {
  Owner* owners = data();
  std::move(owners + at + 1, owners + size_, owners + at);
  if (lower_ != nullptr) {
    ASHLAR_DCHECK(lower_owners_ != 0, "masks of lower tiers are kept although no owner has any");
    lower_owners_ -= any(lower_[at]) ? 1 : 0;
    std::move(lower_.get() + at + 1, lower_.get() + size_, lower_.get() + at);
    if (lower_owners_ == 0) lower_.reset();
  }
  --size_;
  if (capacity_ > 1 && size_ * 4 <= capacity_) shrink(std::max(1u, capacity_ / 2));
}

void RadixOwners::set_mask(std::uint32_t at, events::StorageTier tier, std::uint64_t mask) {
  if (tier == events::StorageTier::kDevice) {
    data()[at].device = mask;
    return;
  }
  if (lower_ == nullptr) {
    if (mask == 0) return;
    lower_ = std::make_unique<Lower[]>(capacity_);
  }
  Lower& lower = lower_[at];
  const bool before = any(lower);
  lower[static_cast<std::size_t>(tier) - 1] = mask;
  const bool after = any(lower);
  lower_owners_ = lower_owners_ + (after ? 1 : 0) - (before ? 1 : 0);
  ASHLAR_DCHECK(lower_owners_ <= size_, "%u of %u owners have masks of lower tiers", lower_owners_, size_);
  if (lower_owners_ == 0) lower_.reset();
}

void RadixOwners::set_capacity(std::uint32_t capacity) {
  auto owners = capacity > 1 ? std::make_unique<Owner[]>(capacity) : nullptr;
  auto lower = lower_ != nullptr ? std::make_unique<Lower[]>(capacity) : nullptr;
  if (owners != nullptr)
    std::copy_n(data(), size_, owners.get());
  else
    one_ = size_ == 0 ? Owner{} : many_[0];
  if (lower != nullptr) std::copy_n(lower_.get(), size_, lower.get());
  many_ = std::move(owners);
  lower_ = std::move(lower);
  capacity_ = capacity;
}

void RadixOwners::shrink(std::uint32_t capacity) noexcept {
  try {
    set_capacity(capacity);
  } catch (const std::bad_alloc&) {  // it stays as large as it is
  }
}

}  // namespace ashlar::index
