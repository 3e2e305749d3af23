// SequenceError: why a step of a sequence was refused.
//
// A refused step has changed nothing: the sequence has the tokens, blocks and state it had before. With
// kNoRoom the caller may preempt another sequence and retry; kOutOfMemory is the same for the process. The
// other reasons mean that the call does not fit the sequence, and a retry cannot help.
//
// to_error() gives the sentence for people; to_string() the same as one line, which Result::value() prints.
//
// Thread safety: immutable value.
// Complexity:    to_error() allocates its text; making a SequenceError does not.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/block/manager_options.h"

namespace ashlar::block {

struct [[nodiscard]] SequenceError {
  enum class Reason : std::uint8_t {
    kWrongState,         // the call does not fit the state of the sequence
    kNothingToCompute,   // no tokens, or a step over none
    kPrefillOverrun,     // more tokens than there are left to compute
    kPrefillIncomplete,  // decode needs exactly one token without KV
    kTokenMissing,       // the last chunk of a prefill yields a token
    kTokenNotExpected,   // a chunk that is not the last yields none
    kTooManyAccepted,    // more tokens than were scheduled, or none
    kTooLong,            // the limit of the sequence, max_tokens, would be passed
    kNoRoom,             // the manager has not enough blocks; `refusal` says why
    kOtherManager,       // the sequence belongs to another manager
    kOutOfMemory,        // the process has no memory for the step
  };
  Reason reason;
  std::string_view state;                    // of the sequence, when it refused
  std::size_t asked = 0;                     // what the call asked for
  std::size_t limit = 0;                     // what was possible
  std::optional<AllocationRefusal> refusal;  // with kNoRoom
  std::string_view needed = {};              // with kWrongState: the state that the call is for
  // With kPrefillOverrun of SequenceManager::computed(): what the last call reported.
  std::optional<std::size_t> computed_before = {};

  Error to_error() const;
  std::string to_string() const { return to_error().to_string(); }
};

std::string_view to_string(SequenceError::Reason reason) noexcept;

}  // namespace ashlar::block
