// Task<T>: a coroutine that runs at once up to its first wait, and is awaited by one other. Detached: one
// that runs by itself to its end.
//
// Coroutines of a loop are never destroyed half-way: a stop makes every wait return, so they end by
// themselves.
//
// Thread safety: confined to the thread of a loop.
#pragma once

#include <coroutine>
#include <exception>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

namespace detail {

struct TaskPromiseBase {
  struct Final {
    bool await_ready() noexcept { return false; }
    template <class Promise>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<Promise> self) noexcept {
      const std::coroutine_handle<> next = self.promise().awaiting;
      return next ? next : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  std::suspend_never initial_suspend() noexcept { return {}; }
  Final final_suspend() noexcept { return {}; }
  void unhandled_exception() noexcept { error = std::current_exception(); }

  std::coroutine_handle<> awaiting;
  std::exception_ptr error;
};

template <class T>
struct TaskPromise : TaskPromiseBase {
  template <class U>
  void return_value(U&& result) {
    value.emplace(std::forward<U>(result));
  }
  T take() { return std::move(*value); }
  std::optional<T> value;
};
template <>
struct TaskPromise<void> : TaskPromiseBase {
  void return_void() noexcept {}
  void take() noexcept {}
};

}  // namespace detail

template <class T>
class [[nodiscard]] Task {
 public:
  struct promise_type : detail::TaskPromise<T> {
    Task get_return_object() noexcept {
      return Task(std::coroutine_handle<promise_type>::from_promise(*this));
    }
  };

  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Task& operator=(Task&&) = delete;
  ~Task() {
    ASHLAR_DCHECK(!handle_ || handle_.done(), "coroutines run to their end");
    if (handle_) handle_.destroy();
  }

  bool await_ready() const noexcept { return handle_.done(); }
  void await_suspend(std::coroutine_handle<> next) noexcept {
    ASHLAR_DCHECK(!handle_.promise().awaiting, "a task is awaited once");
    handle_.promise().awaiting = next;
  }
  T await_resume() {
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return handle_.promise().take();
  }

 private:
  explicit Task(std::coroutine_handle<promise_type> handle) noexcept : handle_(handle) {}
  std::coroutine_handle<promise_type> handle_;
};

// Its body catches what it throws.
struct Detached {
  struct promise_type {
    Detached get_return_object() noexcept { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() noexcept {}
    void unhandled_exception() noexcept { std::terminate(); }
  };
};

}  // namespace ashlar::backend::http
