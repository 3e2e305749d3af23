// How a failed allocation leaves a call that can refuse: as an error, with everything as it was before the
// call.
//
// Inside the library a failed allocation is std::bad_alloc, and every step that may meet one comes before the
// steps that cannot be undone. A call that returns a Result turns it into a refusal at its end. A call whose
// signature has no place for a refusal lets std::bad_alloc pass. docs/memory_exhaustion.md lists both kinds.
//
// Thread safety: thread-safe.
#pragma once

#include <new>
#include <type_traits>
#include <utility>

#include "ashlar/base/error.h"

namespace ashlar {

// kCapacity. The sentence is short enough to need no memory of its own.
inline Error out_of_memory_error() {
  return Error(ErrorCode::kCapacity, "out of memory");
}

// f(), or refuse() when an allocation failed inside it. Requires: f() then leaves everything as it was.
template <class F, class Refuse>
std::invoke_result_t<F> unless_out_of_memory(F&& f, Refuse&& refuse) {
  try {
    return std::forward<F>(f)();
  } catch (const std::bad_alloc&) {
    return std::forward<Refuse>(refuse)();
  }
}
template <class F>
std::invoke_result_t<F> unless_out_of_memory(F&& f) {
  return unless_out_of_memory(std::forward<F>(f), out_of_memory_error);
}

}  // namespace ashlar
