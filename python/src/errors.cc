#include "errors.h"

#include <array>
#include <cstddef>
#include <string>

#include "module.h"

namespace nb = nanobind;

namespace ashlar::python {
namespace {

struct Kind {
  const char* name;
  const char* doc;
  PyObject** also;  // the built-in exception that it is as well
};

// In the order of ErrorCode.
const std::array<Kind, 12> kKinds = {{
    {"InvalidArgument", "The request itself is wrong; repeating it cannot help.", &PyExc_ValueError},
    {"NotFound", "Nothing by that name.", &PyExc_LookupError},
    {"AlreadyExists", "That name is taken by something else.", nullptr},
    {"CapacityError", "No room now; less, or later, may succeed.", nullptr},
    {"NotReady", "A condition that the operation needs does not hold yet.", nullptr},
    {"Timeout", "The deadline passed first.", &PyExc_TimeoutError},
    {"Cancelled", "The caller asked for the work to stop.", nullptr},
    {"CorruptionError", "Bytes do not agree with their checksum or identity.", nullptr},
    {"IoError", "The operating system or a device reported a failure.", &PyExc_OSError},
    {"Unavailable", "A service or peer cannot be reached.", &PyExc_ConnectionError},
    {"Unsupported", "This build or machine cannot do it.", &PyExc_NotImplementedError},
    {"InternalError", "A bug in Ashlar.", nullptr},
}};

// Never destroyed: exceptions may be raised until the interpreter ends.
std::array<PyObject*, kKinds.size()> g_types = {};
PyObject* g_used = nullptr;

PyObject* new_type(nb::module_& module, const char* name, const char* doc, PyObject* bases) {
  const std::string full = "ashlar." + std::string(name);
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases, nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(type);
  return type;
}

}  // namespace

void raise(const Error& error) {
  const auto code = static_cast<std::size_t>(error.code());
  PyErr_SetString(g_types[code], error.message().c_str());
  throw nb::python_error();
}

void raise_used(const char* what) {
  PyErr_Format(g_used, "%s was used up, released or closed before", what);
  throw nb::python_error();
}

void bind_errors(nb::module_& module) {
  PyObject* base = new_type(module, "AshlarError", "The base of every error of this package.", nullptr);
  for (std::size_t code = 0; code < kKinds.size(); ++code) {
    const Kind& kind = kKinds[code];
    const nb::object bases =
        kind.also == nullptr ? nb::borrow(base) : nb::make_tuple(nb::handle(base), nb::handle(*kind.also));
    g_types[code] = new_type(module, kind.name, kind.doc, bases.ptr());
    nb::setattr(g_types[code], "code", nb::str(to_string(static_cast<ErrorCode>(code)).data()));
  }
  g_used = new_type(module, "UsedGuard", "A guard, handle or manager that was used up or closed before.",
                    g_types[0]);
}

}  // namespace ashlar::python
