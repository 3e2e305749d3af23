// A client of /v1/completions that measures, for `ashlar run`: streams one answer, says when it began.
//
// Thread safety: functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>

#include "ashlar/base/result.h"

namespace ashlar::apps {

struct CompletionRequest {
  std::string prompt;  // letters, digits and spaces
  std::uint64_t new_tokens = 16;
};

struct CompletionAnswer {
  std::string text;  // of all pieces
  std::chrono::duration<double, std::milli> first_token{0};
  std::uint64_t prompt_tokens = 0;
  std::uint64_t cached_tokens = 0;  // of these, as the engine says
};

// Errors: kUnavailable: no connection, another status than 200, or a stream that ended early.
Result<CompletionAnswer> complete(std::uint16_t port, const CompletionRequest& request);

}  // namespace ashlar::apps
