#include "ashlar/block/sequence_error.h"

#include <string>

#include "ashlar/base/result.h"

namespace ashlar::block {

using Reason = SequenceError::Reason;

std::string_view to_string(Reason reason) noexcept {
  switch (reason) {
    case Reason::kWrongState:
      return "wrong state";
    case Reason::kNothingToCompute:
      return "nothing to compute";
    case Reason::kPrefillOverrun:
      return "prefill overrun";
    case Reason::kPrefillIncomplete:
      return "prefill incomplete";
    case Reason::kTokenMissing:
      return "token missing";
    case Reason::kTokenNotExpected:
      return "token not expected";
    case Reason::kTooManyAccepted:
      return "too many accepted";
    case Reason::kTooLong:
      return "too long";
    case Reason::kNoRoom:
      return "no room";
    case Reason::kOtherManager:
      return "other manager";
    case Reason::kOutOfMemory:
      return "out of memory";
  }
  return "unknown";
}

Error SequenceError::to_error() const {
  const std::string at(state);
  switch (reason) {
    case Reason::kWrongState:
      return make_error(ErrorCode::kNotReady, "the sequence is %s; this call is for one that is %s",
                        at.c_str(), std::string(needed).c_str());
    case Reason::kNothingToCompute:
      return make_error(ErrorCode::kInvalidArgument, "a step over no tokens; %zu are left to compute", limit);
    case Reason::kPrefillOverrun:
      if (computed_before)
        return make_error(ErrorCode::kInvalidArgument,
                          "%zu tokens reported as computed; expected between the last value (%zu) and %zu",
                          asked, *computed_before, limit);
      return make_error(ErrorCode::kInvalidArgument, "a step over %zu tokens; %zu are left to compute", asked,
                        limit);
    case Reason::kPrefillIncomplete:
      return make_error(ErrorCode::kNotReady,
                        "%zu tokens have no KV, and this call needs exactly one; prefill the rest first",
                        limit);
    case Reason::kTokenMissing:
      return make_error(ErrorCode::kInvalidArgument,
                        "the last chunk of a prefill yields a token; none was given");
    case Reason::kTokenNotExpected:
      return make_error(ErrorCode::kInvalidArgument,
                        "this chunk is not the last of its prefill; a token was given, but it yields none");
    case Reason::kTooManyAccepted:
      return make_error(ErrorCode::kInvalidArgument,
                        "%zu tokens were accepted, where 1 to %zu were scheduled", asked, limit);
    case Reason::kTooLong:
      return make_error(ErrorCode::kCapacity, "the sequence would have %zu tokens, max_tokens is %zu", asked,
                        limit);
    case Reason::kNoRoom:
      if (refusal) return refusal->to_error();
      break;
    case Reason::kOtherManager:
      return make_error(
          ErrorCode::kInvalidArgument,
          "the sequence belongs to another manager than the one asked, or than the rest of its batch");
    case Reason::kOutOfMemory:
      return out_of_memory_error();
  }
  return make_error(ErrorCode::kCapacity, "%zu blocks were asked for, %zu are available", asked, limit);
}

}  // namespace ashlar::block
