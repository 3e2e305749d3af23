// RequestReader: a client's requests out of the bytes of its connection, one after another, within limits.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes).
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ashlar/backend/http/http_server.h"
#include "ashlar/base/check.h"
#include "backend/http/body_budget.h"
#include "backend/http/body_scanner.h"
#include "backend/http/message_head.h"

namespace ashlar::backend::http {

// The views of `head` are into `head_text`, whose bytes stay where they are.
struct WholeRequest {
  std::string head_text;
  MessageHead head;
  std::string body;
};

// Refuses a request by its head, before any byte of its body is kept; none: it may go on. Asked of requests
// that have a body only.
using HeadCheck = std::function<std::optional<service::Reply>(const MessageHead&)>;

// What a reader keeps to. Everything must outlive it.
struct RequestRules {
  const HttpLimits& limits;
  BodyBudget* budget = nullptr;      // null: none
  const HeadCheck* check = nullptr;  // null: none
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

  explicit RequestReader(const RequestRules& rules) : rules_(rules) {}
  RequestReader(const RequestReader&) = delete;
  RequestReader& operator=(const RequestReader&) = delete;
  ~RequestReader() { give_back(); }

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
  // The whole answer to a request that was refused by its head; null: none but the status.
  const service::Reply* refusal_reply() const noexcept { return reply_ ? &*reply_ : nullptr; }
  const WholeRequest& request() const noexcept {
    ASHLAR_DCHECK(request_ != nullptr, "the request was released");
    return *request_;
  }
  // The request itself, for those that outlive the connection. Requires: kComplete.
  std::unique_ptr<WholeRequest> release() noexcept {
    ASHLAR_DCHECK(state_ == State::kComplete, "the request is not complete");
    return std::move(request_);
  }
  // Frees the body of a request that is over.
  void drop_body();
  // Ready for the next request.
  void restart();

 private:
  std::size_t feed_head(std::string_view bytes);
  void begin_body();
  void append(std::string_view part);
  void refuse(unsigned status) noexcept;
  void give_back() noexcept;

  const RequestRules rules_;
  std::unique_ptr<WholeRequest> request_ = std::make_unique<WholeRequest>();
  std::optional<BodyScanner> scanner_;
  std::optional<service::Reply> reply_;
  std::size_t taken_ = 0;  // of the budget
  unsigned refusal_ = 0;
  bool wants_continue_ = false;
  State state_ = State::kIdle;
};

}  // namespace ashlar::backend::http
