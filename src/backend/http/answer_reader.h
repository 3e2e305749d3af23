// AnswerReader: the head of a worker's answer, and the scanner of its body.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/base/check.h"
#include "backend/http/body_scanner.h"
#include "backend/http/message_head.h"

namespace ashlar::backend::http {

class AnswerReader {
 public:
  // `to_head`: the answer is to a HEAD request, and has no body.
  explicit AnswerReader(bool to_head) : to_head_(to_head) {}

  // Takes bytes of the head off the front of `bytes`, and returns how many. Answers 1xx are skipped; too many
  // of them are invalid.
  std::size_t feed(std::string_view bytes);
  bool has_head() const noexcept { return body_.has_value(); }
  bool is_invalid() const noexcept { return invalid_; }
  bool has_bytes() const noexcept { return has_bytes_; }
  // Whether a head has begun, and not ended.
  bool is_within_head() const noexcept { return !text_.empty() && !has_head(); }
  const MessageHead& head() const noexcept { return head_; }
  // Requires, here and below: has_head().
  BodyScanner& body() noexcept {
    ASHLAR_DCHECK(body_.has_value(), "there is no head yet");
    return *body_;
  }
  bool has_body() const noexcept;
  // Frees the head's text; its views are invalid then.
  void forget_head();

 private:
  std::string text_;
  MessageHead head_;
  std::optional<BodyScanner> body_;
  std::size_t interim_answers_ = 0;  // 1xx
  std::size_t interim_bytes_ = 0;
  const bool to_head_;
  bool invalid_ = false;
  bool has_bytes_ = false;
};

}  // namespace ashlar::backend::http
