// UsageScanner: reads what an engine reports of a request from the bytes of its answer, as they pass.
//
// A JSON answer has "usage" at its top level; a stream of events has it in one of the last. Nothing is kept
// but the usage itself: memory is O(1), whatever the answer is.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ashlar::service {

struct Usage {
  std::optional<std::uint64_t> prompt_tokens = {};      // also input_tokens
  std::optional<std::uint64_t> completion_tokens = {};  // also output_tokens
  // prompt_tokens_details.cached_tokens, input_tokens_details.cached_tokens, cache_read_input_tokens.
  std::optional<std::uint64_t> cached_tokens = {};
};

class UsageScanner {
 public:
  // `content_type` of the answer: text/event-stream, or JSON; anything else is not read.
  explicit UsageScanner(std::string_view content_type);

  void feed(std::string_view bytes);
  // What was found so far; the last one wins. At the end of the answer call finish() first.
  void finish();
  const Usage& usage() const noexcept { return usage_; }
  // Events of a stream so far, [DONE] not counted.
  std::uint64_t events() const noexcept { return events_; }

 private:
  Usage usage_;
  std::uint64_t events_ = 0;
};

}  // namespace ashlar::service
