#include "backend/http/answer_reader.h"

namespace ashlar::backend::http {

namespace {

constexpr std::size_t kMaxAnswerHead = 256 << 10;
constexpr std::size_t kMaxInterimAnswers = 32;
constexpr std::size_t kMaxInterimBytes = kMaxAnswerHead;  // of all

}  // namespace

std::size_t AnswerReader::feed(std::string_view bytes) {
  std::size_t taken = 0;
  has_bytes_ |= !bytes.empty();
  while (taken < bytes.size() && !has_head() && !invalid_) {
    const std::string_view rest = bytes.substr(taken);
    const std::size_t before = text_.size();
    std::size_t end = before == 0 ? find_head_end(rest, 0) : 0;
    text_.append(rest.substr(0, end == 0 ? rest.size() : end));
    if (end == 0) end = find_head_end(text_, before);
    if (end == 0) {
      invalid_ =
          text_.size() > kMaxAnswerHead || !std::string_view("HTTP/1.").starts_with(text_.substr(0, 7));
      return bytes.size();
    }
    text_.resize(end);
    taken += end - before;
    head_ = MessageHead();
    invalid_ = end > kMaxAnswerHead || parse_answer_head(text_, head_) != 0 || head_.status == 101;
    if (invalid_) break;
    if (head_.status < 200) {
      interim_bytes_ += end;
      text_.clear();
      invalid_ = ++interim_answers_ > kMaxInterimAnswers || interim_bytes_ > kMaxInterimBytes;
      continue;
    }
    if (!has_body()) {
      body_ = BodyScanner::sized(0);
    } else if (head_.is_chunked) {
      body_ = BodyScanner::chunked();
    } else if (head_.content_length) {
      body_ = BodyScanner::sized(*head_.content_length);
    } else {
      body_ = BodyScanner::until_end();
    }
  }
  return taken;
}

bool AnswerReader::has_body() const noexcept {
  return !to_head_ && head_.status != 204 && head_.status != 304;
}

void AnswerReader::forget_head() {
  text_ = {};
  head_.headers = {};
  head_.reason = {};
}

}  // namespace ashlar::backend::http
