// The Python object of a TokenSequence. It is busy while a call changes it without the GIL: a call from
// another thread is refused instead of racing.
//
// Thread safety: every call needs the GIL.
#pragma once

#include <utility>

#include "ashlar/tokens/token_sequence.h"
#include "errors.h"
#include "gil.h"

namespace ashlar::python {

// The Python class TokenSequence.
class TokenSequenceObject {
 public:
  explicit TokenSequenceObject(tokens::TokenSequence sequence) : sequence_(std::move(sequence)) {}

  // Raises InvalidArgument while another thread is in run().
  tokens::TokenSequence& get() { return check_free(), sequence_; }
  const tokens::TokenSequence& get() const { return check_free(), sequence_; }
  // f(sequence), without the GIL if that is worth it.
  template <class F>
  auto run(bool large, F&& f) {
    check_free();
    if (!large) return std::forward<F>(f)(sequence_);
    const Busy busy(busy_);
    return without_gil([&] { return std::forward<F>(f)(sequence_); });
  }

 private:
  void check_free() const {
    if (!busy_) [[likely]]
      return;
    raise(Error(ErrorCode::kInvalidArgument,
                "another thread is extending this sequence; use it from one at a time"));
  }

  tokens::TokenSequence sequence_;
  bool busy_ = false;
};

}  // namespace ashlar::python
