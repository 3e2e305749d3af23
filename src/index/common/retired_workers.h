// RetiredWorkers<T>: content of workers without a slot, until it is swept. An intrusive list, so that
// removing a worker needs no memory: T has a member `std::unique_ptr<T> next_retired`.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) per worker.
#pragma once

#include <memory>
#include <utility>

namespace ashlar::index::detail {

template <class T>
class RetiredWorkers {
 public:
  RetiredWorkers() = default;
  RetiredWorkers(const RetiredWorkers&) = delete;
  RetiredWorkers& operator=(const RetiredWorkers&) = delete;
  // Iterative: a chain of owners would be freed by recursion.
  ~RetiredWorkers() {
    while (first_ != nullptr) first_ = std::move(first_->next_retired);
  }

  void add(std::unique_ptr<T> worker) noexcept {
    worker->next_retired = std::move(first_);
    first_ = std::move(worker);
  }
  // Null when there is none.
  T* first() const noexcept { return first_.get(); }
  static T* next(const T& worker) noexcept { return worker.next_retired.get(); }

 private:
  std::unique_ptr<T> first_;
};

}  // namespace ashlar::index::detail
