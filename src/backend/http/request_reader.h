// RequestReader: a client's requests out of the bytes of its connection, one after another, within limits.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/backend/http/http_server.h"
#include "ashlar/base/check.h"
#include "backend/http/body_scanner.h"
#include "backend/http/message_head.h"

namespace ashlar::backend::http {

// The views of `head` are into `head_text`, whose bytes stay where they are.
struct WholeRequest {
  std::string head_text;
  MessageHead head;
  std::string body;
};

class RequestReader {
 public:
  enum class State : std::uint8_t {
    kIdle,  // no byte yet
    kHead,
    kBody,
    kComplete,
    kRefused,
  };

  explicit RequestReader(const HttpLimits& limits) : limits_(limits) {}

  State state() const noexcept { return state_; }
  bool is_over() const noexcept { return state_ == State::kComplete || state_ == State::kRefused; }
  // Takes bytes of the request off the front of `bytes`, and returns how many. Later ones belong to the next.
  std::size_t feed(std::string_view bytes);
  // Whether the client waits for "100 Continue" before it sends the body. True once per request.
  bool take_continue() noexcept;
  // The status to answer with. Requires: kRefused.
  unsigned refusal() const noexcept {
    ASHLAR_DCHECK(state_ == State::kRefused, "the request was not refused");
    return refusal_;
  }
  const WholeRequest& request() const noexcept {
    ASHLAR_DCHECK(request_ != nullptr, "the request was released");
    return *request_;
  }
  // The request itself, for those that outlive the connection. Requires: kComplete.
  std::unique_ptr<WholeRequest> release() noexcept {
    ASHLAR_DCHECK(state_ == State::kComplete, "the request is not complete");
    return std::move(request_);
  }
  // Ready for the next request.
  void restart();

 private:
  std::size_t feed_head(std::string_view bytes);
  void begin_body();
  void refuse(unsigned status) noexcept;

  const HttpLimits& limits_;
  std::unique_ptr<WholeRequest> request_ = std::make_unique<WholeRequest>();
  std::optional<BodyScanner> scanner_;
  unsigned refusal_ = 0;
  bool wants_continue_ = false;
  State state_ = State::kIdle;
};

}  // namespace ashlar::backend::http
