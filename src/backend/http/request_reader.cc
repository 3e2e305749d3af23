#include "backend/http/request_reader.h"

#include <algorithm>
#include <utility>

namespace ashlar::backend::http {

namespace {

constexpr std::size_t kKeptBytes = 4 << 10;       // of memory, between two requests
constexpr std::size_t kReservedBytes = 16 << 10;  // for a body that is only announced

void forget(std::string& text) {
  text.clear();
  if (text.capacity() > kKeptBytes) text.shrink_to_fit();
}

}  // namespace

std::size_t RequestReader::feed(std::string_view bytes) {
  std::size_t taken = 0;
  if (state_ == State::kIdle || state_ == State::kHead) taken = feed_head(bytes);
  if (state_ != State::kBody) return taken;
  taken += scanner_->scan(bytes.substr(taken), [this](std::string_view part) {
    if (state_ != State::kRefused) append(part);
  });
  ASHLAR_DCHECK(taken <= bytes.size(), "more bytes were taken than given");
  if (state_ == State::kRefused) return taken;
  if (scanner_->is_broken()) refuse(400);
  if (scanner_->is_done()) state_ = State::kComplete;
  return taken;
}

// The budget is charged with the memory of the body, which doubles with what has come: whoever sends little
// holds little, whatever was announced.
void RequestReader::append(std::string_view part) {
  std::string& body = request_->body;
  const std::size_t size = body.size() + part.size();
  if (size > rules_.limits.body_bytes) return refuse(413);
  if (rules_.budget != nullptr && size > taken_) {
    const std::uint64_t all = request_->head.content_length.value_or(rules_.limits.body_bytes);
    const auto room = static_cast<std::size_t>(std::clamp<std::uint64_t>(
        std::max<std::size_t>(2 * taken_, kReservedBytes), size, std::max<std::uint64_t>(all, size)));
    if (!rules_.budget->take(room - taken_, all <= BodyBudget::kSmall)) return refuse(503);
    taken_ = room;
    body.reserve(room);
  }
  body.append(part);
}

std::size_t RequestReader::feed_head(std::string_view bytes) {
  std::string& text = request_->head_text;
  std::size_t skipped = 0;
  // RFC 9112 2.2: empty lines before a request are ignored.
  while (text.empty() && bytes.substr(skipped).starts_with("\r\n")) skipped += 2;
  bytes.remove_prefix(skipped);
  if (bytes.empty()) return skipped;
  state_ = State::kHead;
  const std::size_t before = text.size();
  std::size_t end = 0;
  if (before == 0) {
    end = find_head_end(bytes, 0);
    text.append(bytes.substr(0, end == 0 ? rules_.limits.head_bytes + 1 : end));
  } else {
    text.append(bytes.substr(0, rules_.limits.head_bytes + 1));
    end = find_head_end(text, before);
  }
  if (end == 0) {
    if (text.size() > rules_.limits.head_bytes) refuse(431);
    // What is no HTTP at all, or has bare line feeds, would be waited for in vain.
    const std::size_t line = text.find('\n', before);
    if (static_cast<unsigned char>(text[0]) <= 0x20 || (line != std::string::npos && text[line - 1] != '\r'))
      refuse(400);
    return skipped + bytes.size();
  }
  text.resize(end);
  if (end > rules_.limits.head_bytes) {
    refuse(431);
  } else if (const unsigned refusal = parse_request_head(text, request_->head); refusal != 0) {
    refuse(refusal);
  } else {
    begin_body();
  }
  return skipped + end - before;
}

void RequestReader::begin_body() {
  const MessageHead& head = request_->head;
  if (head.content_length && *head.content_length > rules_.limits.body_bytes) return refuse(413);
  if (head.is_chunked) {
    scanner_ = BodyScanner::chunked();
  } else {
    scanner_ = BodyScanner::sized(head.content_length.value_or(0));
  }
  if (rules_.check != nullptr && !scanner_->is_done()) reply_ = (*rules_.check)(head);
  if (reply_) return refuse(reply_->status);
  wants_continue_ = head.expects_continue && head.minor_version == 1 && !scanner_->is_done();
  state_ = scanner_->is_done() ? State::kComplete : State::kBody;
}

void RequestReader::refuse(unsigned status) noexcept {
  if (state_ == State::kRefused) return;
  refusal_ = status;
  state_ = State::kRefused;
  drop_body();
}

void RequestReader::give_back() noexcept {
  if (rules_.budget != nullptr) rules_.budget->give_back(std::exchange(taken_, 0));
}

void RequestReader::drop_body() {
  if (request_ != nullptr) request_->body = {};
  give_back();
}

bool RequestReader::take_continue() noexcept {
  const bool now = wants_continue_ && state_ == State::kBody && request_->body.empty();
  wants_continue_ = false;
  return now;
}

void RequestReader::restart() {
  if (request_ == nullptr) {
    request_ = std::make_unique<WholeRequest>();
  } else {
    forget(request_->head_text);
    forget(request_->body);
    std::vector<service::HeaderView> headers = std::move(request_->head.headers);
    headers.clear();
    request_->head = MessageHead();
    request_->head.headers = std::move(headers);
  }
  give_back();
  scanner_.reset();
  reply_.reset();
  wants_continue_ = false;
  refusal_ = 0;
  state_ = State::kIdle;
}

}  // namespace ashlar::backend::http
