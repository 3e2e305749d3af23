// The GIL: giving it up, taking it, and calling Python, so that no thread is torn down at the interpreter's
// end.
//
// Before Python 3.14 a thread that wants the GIL while the interpreter ends is ended by pthread_exit(). Its
// unwinding would meet destructors, which must not throw, and so stop the process. Here such a thread sleeps
// for ever instead, as from 3.14 on. Every binding uses these guards, never nanobind's.
//
// Thread safety: thread-safe.
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <utility>

namespace ashlar::python {

// After end_python(), which runs at the end of atexit, nothing here calls Python any more.
bool python_ended() noexcept;
void end_python() noexcept;

// Whether this is a thread of the library that is calling Python now. What waits for such threads must not
// run on one.
bool on_library_thread() noexcept;

// May sleep for ever.
void restore_thread(PyThreadState* state);
// function(*arguments) with the GIL held; the exception is raised. May sleep for ever.
nanobind::object call_python(nanobind::handle function, const nanobind::tuple& arguments);
// The same, but an exception goes to sys.unraisablehook.
void call_python_alone(nanobind::handle function, nanobind::tuple arguments);
// drop(object) with the GIL, on any thread; once Python has ended, nothing. For destructors.
void drop_with_gil(void (*drop)(void*), void* object);

// Gives the GIL up until the end of the scope. Nothing there may touch Python objects, not even to count a
// reference.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() { restore_thread(state_); }

 private:
  PyThreadState* const state_;
};

// Takes the GIL, on any thread. False once Python has ended: then nothing of Python may be used.
class WithGil {
 public:
  WithGil();
  WithGil(const WithGil&) = delete;
  WithGil& operator=(const WithGil&) = delete;
  ~WithGil();
  explicit operator bool() const { return taken_; }

 private:
  bool taken_ = false;
  bool first_ = false;  // of a thread that Python did not know
  PyGILState_STATE state_ = {};
};

// Marks an object as used until the end of the scope, so that other threads are refused while this one runs
// without the GIL. The mark itself is read and written with it.
class Busy {
 public:
  explicit Busy(bool& mark) : mark_(mark) { mark_ = true; }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;
  ~Busy() { mark_ = false; }

 private:
  bool& mark_;
};

template <class F>
decltype(auto) without_gil(F&& f) {
  const WithoutGil released;
  return std::forward<F>(f)();
}
// Blocks whose look-up or registration is worth giving up the GIL.
inline constexpr std::size_t kManyBlocks = 256;
// Tokens whose hashing is, and those of a request whose blocks are.
inline constexpr std::size_t kManyTokens = 4096;

// The same only if `work` is large: giving the GIL up costs about as much as 1 µs of work when other threads
// wait for it.
template <class F>
decltype(auto) without_gil_if(bool large, F&& f) {
  if (!large) return std::forward<F>(f)();
  return without_gil(std::forward<F>(f));
}
// For destructors, which may run with or without it. Once Python has ended nothing waits for the GIL, and
// PyGILState_Check() may say anything.
template <class F>
void without_gil_in_destructor(F&& f) {
  if (!python_ended() && PyGILState_Check() != 0) {
    const WithoutGil released;
    std::forward<F>(f)();
  } else {
    std::forward<F>(f)();
  }
}

}  // namespace ashlar::python
