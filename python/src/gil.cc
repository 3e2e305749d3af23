#include "gil.h"

#include <unistd.h>

#include <atomic>

namespace nb = nanobind;

namespace ashlar::python {
namespace {

std::atomic<bool> g_python_ended{false};
thread_local bool t_calls_python = false;

// Around calls that may end the thread. Their unwinding comes here first, and no further. What such a thread
// held stays as it is: the process is about to end.
class NoUnwinding {
 public:
  NoUnwinding() = default;
  NoUnwinding(const NoUnwinding&) = delete;
  NoUnwinding& operator=(const NoUnwinding&) = delete;
  ~NoUnwinding() {
    while (!returned_) pause();
  }
  void returned() { returned_ = true; }

 private:
  bool returned_ = false;
};

}  // namespace

bool python_ended() noexcept {
  return g_python_ended.load(std::memory_order_acquire);  // acquire: pairs with end_python()
}

void end_python() noexcept {
  g_python_ended.store(true, std::memory_order_release);  // release: pairs with python_ended()
}

bool on_library_thread() noexcept {
  return t_calls_python;
}

void restore_thread(PyThreadState* state) {
  NoUnwinding here;
  PyEval_RestoreThread(state);
  here.returned();
}

nb::object call_python(nb::handle function, const nb::tuple& arguments) {
  NoUnwinding here;
  PyObject* answer = PyObject_CallObject(function.ptr(), arguments.ptr());
  here.returned();
  if (answer == nullptr) throw nb::python_error();
  return nb::steal(answer);
}

void call_python_alone(nb::handle function, nb::tuple arguments) {
  NoUnwinding here;
  PyObject* given = arguments.release().ptr();
  PyObject* answer = PyObject_CallObject(function.ptr(), given);
  if (answer == nullptr) PyErr_WriteUnraisable(function.ptr());
  Py_XDECREF(answer);
  Py_DECREF(given);
  here.returned();
}

void drop_with_gil(void (*drop)(void*), void* object) {
  const WithGil gil;
  if (!gil) return;
  NoUnwinding here;
  drop(object);
  here.returned();
}

WithGil::WithGil() {
  if (python_ended()) return;
  NoUnwinding here;
  first_ = PyGILState_GetThisThreadState() == nullptr;
  state_ = PyGILState_Ensure();
  taken_ = true;
  if (first_) t_calls_python = true;
  here.returned();
}

WithGil::~WithGil() {
  if (!taken_) return;
  NoUnwinding here;
  PyGILState_Release(state_);
  if (first_) t_calls_python = false;
  here.returned();
}

}  // namespace ashlar::python
