// How failures of the library reach Python: every Error becomes an exception of a small tree.
//
//   ashlar.AshlarError(Exception)             .code: the name of the code
//     InvalidArgument(ValueError), NotFound(LookupError), AlreadyExists, CapacityError, NotReady,
//     Timeout(TimeoutError), Cancelled, CorruptionError, IoError(OSError), Unavailable(ConnectionError),
//     Unsupported(NotImplementedError), InternalError
//
// A guard that was used up by its transition raises UsedGuard, an InvalidArgument. Refused allocations and
// steps carry data: `reason`, `wanted`, `available` and `status` of an allocation; `reason`, `state`,
// `wanted` and `limit` of a step, those of the allocation too if it was the reason, and `index` in a batch.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "ashlar/base/result.h"

namespace ashlar::block {
struct AllocationRefusal;
struct SequenceError;
struct BatchError;
}  // namespace ashlar::block

namespace ashlar::python {

// Sets the exception of the error's code without throwing. Call with the GIL held.
void set_error(const Error& error);
// Raises the exception of the error's code. Call with the GIL held.
[[noreturn]] void raise(const Error& error);
[[noreturn]] void refuse(const std::string& why);  // an InvalidArgument
[[noreturn]] void raise(const block::AllocationRefusal& refusal);
[[noreturn]] void raise(const block::SequenceError& error);
[[noreturn]] void raise(const block::BatchError& error);
// A guard, handle or manager that was used up or closed; `what` names it.
[[noreturn]] void raise_used(const char* what);

// A name of the library as an identifier: spaces become underscores.
nanobind::str identifier(std::string_view name);

// The value, or the exception.
template <class T, class E>
T value_or_raise(Result<T, E>&& result) {
  if (!result) [[unlikely]]
    raise(result.error());
  if constexpr (!std::is_void_v<T>) return std::move(result).value();
}

}  // namespace ashlar::python
