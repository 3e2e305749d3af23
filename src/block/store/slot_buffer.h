// SlotBuffer<N>: uninitialised stack space for N slots; operations fill it before they read it.
#pragma once

#include <cstddef>
#include <span>

#include "ashlar/block/detail/slot_ref.h"

namespace ashlar::block::detail {

template <std::size_t N>
class SlotBuffer {
 public:
  SlotBuffer() noexcept {}  // NOLINT(modernize-use-equals-default): the members stay as they are
  SlotRef& operator[](std::size_t i) noexcept { return slots_[i]; }
  SlotRef* data() noexcept { return slots_; }
  std::span<SlotRef> first(std::size_t n) noexcept { return {slots_, n}; }

 private:
  union {
    SlotRef slots_[N];
  };
};

}  // namespace ashlar::block::detail
