// Calls that wait, so that Ctrl-C ends them.
//
// Python runs the handlers of signals on its main thread only, and native code there must ask for them. Two
// ways to wait and ask: wait_in_slices() repeats a wait that may be cut short, and run_interruptibly() has
// another thread make a call that must be made once. The exception of a handler, KeyboardInterrupt as a rule,
// is raised within a slice, and at most kStopPatience later.
//
// Thread safety: thread-safe. Every function is called with the GIL held.
#pragma once

#include <nanobind/nanobind.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <system_error>
#include <thread>
#include <type_traits>
#include <utility>

#include "ashlar/base/clock.h"
#include "errors.h"
#include "gil.h"

namespace ashlar::python {

inline constexpr auto kInterruptSlice = std::chrono::milliseconds(50);
// How long a call that was told to stop may take before it is left behind.
inline constexpr auto kStopPatience = std::chrono::seconds(1);

// The thread on which Python runs handlers.
inline bool on_main_thread() {
  return gettid() == getpid();
}

inline void raise_interrupts() {
  if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
}

// Waits in slices until is_done() or the deadline. wait(until) runs without the GIL. Returns whether it is
// done.
template <class Done, class Wait>
bool wait_in_slices(std::optional<Clock::TimePoint> deadline, Done&& is_done, Wait&& wait) {
  for (;;) {
    {
      const WithoutGil released;
      Clock::TimePoint until = Clock::real().now() + kInterruptSlice;
      if (deadline && *deadline < until) until = *deadline;
      wait(until);
    }
    if (is_done()) return true;
    if (deadline && Clock::real().now() >= *deadline) return false;
    raise_interrupts();
  }
}

// What wait(until) returns once that is no timeout. It gives the GIL up itself. Raises its error.
template <class Wait>
auto wait_for_layer(Wait&& wait) {
  for (;;) {
    auto layer = wait(Clock::real().now() + kInterruptSlice);
    if (layer || layer.error().code() != ErrorCode::kTimeout) return value_or_raise(std::move(layer));
    raise_interrupts();
  }
}

// Counts the calls that other threads make, those that were left behind included. A call is over when all
// that it owned is gone.
class ElsewhereTurn {
 public:
  ElsewhereTurn();
  ElsewhereTurn(const ElsewhereTurn&) = delete;
  ElsewhereTurn& operator=(const ElsewhereTurn&) = delete;
  ~ElsewhereTurn();
};
// For atexit: waits until none is left, `patience` at most. False: some are. Call without the GIL.
bool wait_for_calls_elsewhere(Clock::Duration patience);

// A call that another thread makes. Shared by that thread and the one that waits.
template <class Result>
struct CallElsewhere {
  std::mutex mutex;
  std::condition_variable ended;
  bool done = false;
  std::optional<Result> result;
  std::exception_ptr exception;
  std::stop_source stop;

  bool wait_for(std::chrono::nanoseconds patience) {
    std::unique_lock lock(mutex);
    return ended.wait_for(lock, patience, [&] { return done; });
  }
  template <class F>
  void make(F& call) noexcept {
    std::optional<Result> made;
    std::exception_ptr thrown;
    try {
      made.emplace(call(stop.get_token()));
    } catch (...) {
      thrown = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    result = std::move(made);
    exception = thrown;
    done = true;
    ended.notify_all();
  }
};

// Returns call(stop_token) or call(), which runs without the GIL; on the main thread's behalf, on another
// one. When it is interrupted, a call that takes a token is told to stop, and what it still returns is
// dropped; one that takes none goes on to its end. So it owns all that it uses, and uses nothing of Python.
// It must not return void.
template <class F>
auto run_interruptibly(F call) {
  constexpr bool kStops = std::is_invocable_v<F&, std::stop_token>;
  const auto with_token = [](F& its, std::stop_token stop) {
    if constexpr (kStops) {
      return its(std::move(stop));
    } else {
      return its();
    }
  };
  using Answer = decltype(with_token(call, std::stop_token()));
  if (!on_main_thread()) {
    return without_gil([&]() -> Answer {
      F owned = std::move(call);  // gone before the GIL is taken again
      return with_token(owned, {});
    });
  }

  const auto elsewhere = std::make_shared<CallElsewhere<Answer>>();
  const auto work = std::make_shared<std::optional<F>>(std::move(call));
  auto turn = std::make_unique<ElsewhereTurn>();
  try {
    std::thread([turn = std::move(turn), shared = elsewhere, work, with_token]() mutable {
      const std::unique_ptr<ElsewhereTurn> last = std::move(turn);  // after the result, if nobody takes that
      const std::shared_ptr<CallElsewhere<Answer>> its = std::move(shared);
      // What the call owns is gone before its end is seen.
      auto once = [&](std::stop_token stop) -> Answer {
        F owned = *std::exchange(*work, std::nullopt);
        return with_token(owned, std::move(stop));
      };
      its->make(once);
    }).detach();
  } catch (const std::system_error&) {  // no thread: then it cannot be interrupted
    return without_gil([&]() -> Answer { return with_token(**work, {}); });
  }
  bool done = false;
  try {
    wait_in_slices(
        std::nullopt, [&] { return done; },
        [&](Clock::TimePoint) { done = elsewhere->wait_for(kInterruptSlice); });
  } catch (...) {
    if constexpr (kStops) {
      without_gil([&] {
        elsewhere->stop.request_stop();
        elsewhere->wait_for(kStopPatience);
        // Blocks that it returned are back before the exception is seen.
        const std::lock_guard lock(elsewhere->mutex);
        elsewhere->result.reset();
      });
    }
    throw;
  }
  if (elsewhere->exception) std::rethrow_exception(elsewhere->exception);
  return *std::move(elsewhere->result);
}

}  // namespace ashlar::python
