// LargeArray: a fixed array for randomly accessed tables. Large ones request huge pages, which saves most of
// the address translations of such accesses.
//
// Elements are value-initialised, or left as the system provides them (zero bytes) with kUntouched: then only
// written pages use memory.
//
// Thread safety: as the elements. Without memory the constructors throw std::bad_alloc, as `new` does.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar {

namespace detail {
// Zeroed memory, aligned for any T up to a cache line. Never null.
void* allocate_large(std::size_t bytes);
void free_large(void* memory, std::size_t bytes) noexcept;
}  // namespace detail

template <class T>
class LargeArray {
 public:
  static_assert(alignof(T) <= 64 && std::is_trivially_destructible_v<T>);
  enum class Untouched { kUntouched };
  static constexpr Untouched kUntouched = Untouched::kUntouched;

  LargeArray() = default;
  explicit LargeArray(std::size_t size) : LargeArray(size, kUntouched) {
    std::uninitialized_value_construct_n(data_, size);
  }
  // All bytes are zero and count as an initialised T.
  LargeArray(std::size_t size, Untouched)
      : data_(size == 0 ? nullptr : static_cast<T*>(detail::allocate_large(size * sizeof(T)))), size_(size) {}
  LargeArray(LargeArray&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  LargeArray& operator=(LargeArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  LargeArray(const LargeArray&) = delete;
  LargeArray& operator=(const LargeArray&) = delete;
  ~LargeArray() {
    if (data_ != nullptr) detail::free_large(data_, size_ * sizeof(T));
  }

  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }
  T& operator[](std::size_t i) noexcept {
    ASHLAR_DCHECK(i < size_, "index %zu of %zu", i, size_);
    return data_[i];
  }
  const T& operator[](std::size_t i) const noexcept {
    ASHLAR_DCHECK(i < size_, "index %zu of %zu", i, size_);
    return data_[i];
  }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace ashlar
