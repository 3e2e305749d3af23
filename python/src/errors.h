// How failures of the library reach Python: every Error becomes an exception of a small tree.
//
//   ashlar.AshlarError(Exception)             .code: the name of the code
//     InvalidArgument(ValueError), NotFound(LookupError), AlreadyExists, CapacityError, NotReady,
//     Timeout(TimeoutError), Cancelled, CorruptionError, IoError(OSError), Unavailable(ConnectionError),
//     Unsupported(NotImplementedError), InternalError
//
// A guard that was used up by its transition raises UsedGuard, an InvalidArgument.
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "ashlar/base/result.h"

namespace ashlar::python {

// Raises the exception of the error's code. Call with the GIL held.
[[noreturn]] void raise(const Error& error);
// A guard, handle or manager that was used up or closed; `what` names it.
[[noreturn]] void raise_used(const char* what);

// The value, or the exception.
template <class T>
T value_or_raise(Result<T>&& result) {
  if (!result) raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

}  // namespace ashlar::python
