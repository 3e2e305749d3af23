// ThreadScratch<T>: a vector whose memory the thread reuses, up to some megabytes. A nested use, as in a
// callback, gets its own vector.
//
// Thread safety: confined.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace ashlar::block::detail {

template <class T>
class ThreadScratch {
 public:
  ThreadScratch() noexcept : values_(std::exchange(kept(), {})) {}
  ~ThreadScratch() {
    values_.clear();
    if (values_.capacity() > kept().capacity() && values_.capacity() <= kMostBytes / sizeof(T))
      kept().swap(values_);
  }
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;

  std::vector<T>& operator*() noexcept { return values_; }
  std::vector<T>* operator->() noexcept { return &values_; }

 private:
  static constexpr std::size_t kMostBytes = std::size_t{4} << 20;

  static std::vector<T>& kept() noexcept {
    static thread_local std::vector<T> vector;
    return vector;
  }
  std::vector<T> values_;
};

}  // namespace ashlar::block::detail
