// PythonCallback: a Python function that native threads call and may destroy.
//
// Thread safety: thread-safe after its construction, which needs the GIL. A call takes the GIL; an exception
//                in it goes to sys.unraisablehook. Once atexit has run, a call does nothing, and one that is
//                under way then may never return: what waits for its thread must do so before (see share_kv).
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <utility>

#include "gil.h"

namespace ashlar::python {

class PythonCallback {
 public:
  explicit PythonCallback(nanobind::callable function)
      : function_(function.release().ptr(), [](PyObject* object) {
          drop_with_gil([](void* dropped) { Py_DECREF(static_cast<PyObject*>(dropped)); }, object);
        }) {}

  // Throws nothing.
  template <class... Args>
  void operator()(Args&&... args) const {
    const WithGil gil;
    if (!gil) return;
    try {
      call_python_alone(function_.get(), nanobind::make_tuple(std::forward<Args>(args)...));
    } catch (nanobind::python_error& error) {
      error.discard_as_unraisable(nanobind::handle(function_.get()));
    } catch (const std::exception& error) {
      PyErr_SetString(PyExc_RuntimeError, error.what());
      PyErr_WriteUnraisable(function_.get());
    }
  }
  // The one reference that all copies share.
  PyObject* function() const { return function_.get(); }

 private:
  std::shared_ptr<PyObject> function_;
};

}  // namespace ashlar::python
