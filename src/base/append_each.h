// append_each(): appends fn(0), fn(1), ... to a vector, each written once where it stays. resize() would
// write blanks first, push_back() compare with the capacity each time.
//
// Thread safety: a free function.
#pragma once

#include <cstddef>
#include <iterator>
#include <type_traits>
#include <utility>
#include <vector>

namespace ashlar {
namespace detail {

// To the vector it is a random-access iterator, whose distance tells the room that is needed.
template <class T, class F>
class EachIterator {
 public:
  using iterator_category = std::random_access_iterator_tag;
  using value_type = T;
  using difference_type = std::ptrdiff_t;
  using pointer = const T*;
  using reference = T;

  EachIterator(F& fn, std::size_t at) noexcept : fn_(&fn), at_(at) {}
  T operator*() const { return (*fn_)(at_); }
  EachIterator& operator++() noexcept {
    ++at_;
    return *this;
  }
  EachIterator operator++(int) noexcept { return {*fn_, at_++}; }
  EachIterator& operator--() noexcept {
    --at_;
    return *this;
  }
  EachIterator& operator+=(difference_type n) noexcept {
    at_ += static_cast<std::size_t>(n);
    return *this;
  }
  friend difference_type operator-(const EachIterator& a, const EachIterator& b) noexcept {
    return static_cast<difference_type>(a.at_) - static_cast<difference_type>(b.at_);
  }
  friend bool operator==(const EachIterator& a, const EachIterator& b) noexcept { return a.at_ == b.at_; }
  friend bool operator!=(const EachIterator& a, const EachIterator& b) noexcept { return a.at_ != b.at_; }

 private:
  F* fn_;
  std::size_t at_;
};

}  // namespace detail

template <class T, class F>
void append_each(std::vector<T>& out, std::size_t count, F&& fn) {
  using Iterator = detail::EachIterator<T, std::remove_reference_t<F>>;
  out.insert(out.end(), Iterator(fn, 0), Iterator(fn, count));
}

}  // namespace ashlar
