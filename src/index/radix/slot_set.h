// SlotSet: a set of worker slots as words of 64 bits, from the word of its lowest slot to the word of its
// highest.
//
// Two words lie inside the object, so that nodes with few workers, or in an index with few slots, own no
// memory. A slot whose word cannot be allocated is left out.
//
// Thread safety: thread-compatible.
// Complexity:    O(1); insert() is O(words) when the slot lies outside the allocated words. Only clear()
//                frees words.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

namespace ashlar::index {

class SlotSet {
 public:
  SlotSet() = default;
  SlotSet(const SlotSet&) = delete;
  SlotSet& operator=(const SlotSet&) = delete;
  ~SlotSet() { clear(); }

  // Bits of the slots 64 * index and following.
  std::uint64_t word(std::size_t index) const noexcept {
    const std::size_t at = index - first_;
    return at < words_ ? data()[at] : 0;
  }
  bool contains(std::uint32_t slot) const noexcept { return (word(slot / 64) >> (slot % 64) & 1) != 0; }

  void insert(std::uint32_t slot) noexcept {
    const std::uint32_t index = slot / 64;
    if (index - first_ >= words_) [[unlikely]]
      if (!widen(index)) return;
    data()[index - first_] |= std::uint64_t{1} << (slot % 64);
  }
  void erase(std::uint32_t slot) noexcept {
    const std::uint32_t at = slot / 64 - first_;
    if (at < words_) data()[at] &= ~(std::uint64_t{1} << (slot % 64));
  }
  void clear() noexcept {
    if (words_ > kInside) delete[] outside_;
    words_ = 0;
    first_ = 0;
  }

  std::size_t bytes() const noexcept { return words_ > kInside ? words_ * sizeof(std::uint64_t) : 0; }

 private:
  static constexpr std::uint32_t kInside = 2;

  const std::uint64_t* data() const noexcept { return words_ > kInside ? outside_ : inside_; }
  std::uint64_t* data() noexcept { return words_ > kInside ? outside_ : inside_; }

  bool widen(std::uint32_t index) noexcept {
    const std::uint32_t first = words_ == 0 ? index : std::min(first_, index);
    const std::uint32_t words = std::max(first_ + words_, index + 1) - first;
    std::uint64_t kept[kInside] = {};
    std::uint64_t* target = words > kInside ? new (std::nothrow) std::uint64_t[words]() : kept;
    if (target == nullptr) return false;
    std::copy_n(data(), words_, target + (words_ == 0 ? 0 : first_ - first));
    if (words_ > kInside) delete[] outside_;
    if (words > kInside)
      outside_ = target;
    else
      std::copy_n(kept, kInside, inside_);
    first_ = first;
    words_ = words;
    return true;
  }

  std::uint32_t first_ = 0;  // index of the first word
  std::uint32_t words_ = 0;
  union {
    std::uint64_t inside_[kInside] = {};
    std::uint64_t* outside_;
  };
};

}  // namespace ashlar::index
