// PythonCallback: a Python function that native threads call and may destroy. GIL helpers.
//
// Thread safety: thread-safe after its construction, which needs the GIL. A call takes the GIL; an exception
//                in it goes to sys.unraisablehook. After the interpreter's end a call does nothing.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <utility>

namespace ashlar::python {

class PythonCallback {
 public:
  explicit PythonCallback(nanobind::callable function)
      : function_(function.release().ptr(), [](PyObject* object) {
          if (nanobind::detail::cleanup_guard guard{}) Py_DECREF(object);
        }) {}

  template <class... Args>
  void operator()(Args&&... args) const noexcept {
    const nanobind::gil_scoped_acquire gil;
    if (!gil.is_valid()) return;
    try {
      nanobind::handle(function_.get())(std::forward<Args>(args)...);
    } catch (nanobind::python_error& error) {
      error.discard_as_unraisable(nanobind::handle(function_.get()));
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      PyErr_WriteUnraisable(function_.get());
    }
  }

 private:
  std::shared_ptr<PyObject> function_;
};

// f() without the GIL. Nothing in f may touch Python objects, not even to count a reference.
template <class F>
decltype(auto) without_gil(F&& f) {
  const nanobind::gil_scoped_release released;
  return std::forward<F>(f)();
}
// The same only if `work` is large: giving the GIL up costs about as much as 1 µs of work when other threads
// wait for it.
template <class F>
decltype(auto) without_gil_if(bool large, F&& f) {
  if (!large) return std::forward<F>(f)();
  return without_gil(std::forward<F>(f));
}
// For destructors, which may run with or without it.
template <class F>
void without_gil_in_destructor(F&& f) {
  if (PyGILState_Check() != 0) {
    const nanobind::gil_scoped_release released;
    std::forward<F>(f)();
  } else {
    std::forward<F>(f)();
  }
}

}  // namespace ashlar::python
