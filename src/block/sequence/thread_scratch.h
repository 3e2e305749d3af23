// ThreadScratch<T>: a vector whose memory the thread reuses. A nested use, as in a callback, gets its own
// vector.
//
// Thread safety: confined.
#pragma once

#include <utility>
#include <vector>

namespace ashlar::block::detail {

template <class T>
class ThreadScratch {
 public:
  ThreadScratch() noexcept : values_(std::exchange(kept(), {})) {}
  ~ThreadScratch() {
    values_.clear();
    if (values_.capacity() > kept().capacity()) kept().swap(values_);
  }
  ThreadScratch(const ThreadScratch&) = delete;
  ThreadScratch& operator=(const ThreadScratch&) = delete;

  std::vector<T>& operator*() noexcept { return values_; }
  std::vector<T>* operator->() noexcept { return &values_; }

 private:
  static std::vector<T>& kept() noexcept {
    static thread_local std::vector<T> vector;
    return vector;
  }
  std::vector<T> values_;
};

}  // namespace ashlar::block::detail
