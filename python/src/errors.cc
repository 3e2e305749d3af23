#include "errors.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>

#include "ashlar/block/manager_options.h"
#include "ashlar/block/sequence_batch.h"
#include "ashlar/block/sequence_error.h"
#include "module.h"
#include "paths.h"

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
  const std::string full = nb::cast<std::string>(module.attr("__name__")) + "." + name;
  PyObject* type = PyErr_NewExceptionWithDoc(full.c_str(), doc, bases, nullptr);
  if (type == nullptr) throw nb::python_error();
  module.attr(name) = nb::handle(type);
  return type;
}

nb::object exception_of(const Error& error, const std::string& before = {}) {
  const auto code = static_cast<std::size_t>(error.code());
  const std::string text = before + error.message();
  return nb::handle(g_types[code])(text_of(text));
}

void set_object(const nb::object& exception) {
  PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(exception.ptr())), exception.ptr());
}
[[noreturn]] void raise_object(const nb::object& exception) {
  set_object(exception);
  throw nb::python_error();
}

std::string_view name_of(block::AllocationRefusal::Reason reason) {
  using Reason = block::AllocationRefusal::Reason;
  switch (reason) {
    case Reason::kTooMany:
      return "too_many";
    case Reason::kNoRoom:
      return "no_room";
    case Reason::kQueued:
      return "queued";
    case Reason::kTimedOut:
      return "timed_out";
    case Reason::kCancelled:
      return "cancelled";
    case Reason::kOutOfMemory:
      return "out_of_memory";
    case Reason::kOtherManager:
      return "other_manager";
  }
  return "";
}

void add_pools(const nb::object& exception, const block::PoolStatus& status) {
  exception.attr("available") = status.available();
  exception.attr("status") = nb::cast(status);
}

nb::object exception_of(const block::SequenceError& error, const std::string& before) {
  nb::object exception = exception_of(error.to_error(), before);
  exception.attr("reason") = identifier(to_string(error.reason));
  exception.attr("state") = identifier(error.state);
  exception.attr("wanted") = error.asked;
  exception.attr("limit") = error.limit;
  if (error.refusal) add_pools(exception, error.refusal->status);
  return exception;
}

}  // namespace

nb::str identifier(std::string_view name) {
  std::string text(name);
  std::replace(text.begin(), text.end(), ' ', '_');
  return nb::str(text.data(), text.size());
}

void set_error(const Error& error) {
  set_object(exception_of(error));
}

void raise(const Error& error) {
  raise_object(exception_of(error));
}

void refuse(const std::string& why) {
  raise(Error(ErrorCode::kInvalidArgument, why));
}

void raise(const block::AllocationRefusal& refusal) {
  const nb::object exception = exception_of(refusal.to_error());
  exception.attr("reason") = identifier(name_of(refusal.reason));
  exception.attr("wanted") = refusal.requested;
  add_pools(exception, refusal.status);
  raise_object(exception);
}

void raise(const block::SequenceError& error) {
  raise_object(exception_of(error, {}));
}

void raise(const block::BatchError& error) {
  const nb::object exception =
      exception_of(error.error, "request " + std::to_string(error.index) + " of the batch: ");
  exception.attr("index") = error.index;
  raise_object(exception);
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
