// Gateway and Passage: a proxy without its sockets.
//
// A Passage takes one request of a client from its first byte to its last. It says what to do next (a Step);
// whoever has the sockets (backend/http) does it and tells it what happened. So every way in which a request
// can end is a sequence of calls that a test can make.
//
//   begin() ──► Reply                         answered here: the API, an error, a full queue
//           ├─► Ask ──► answered() ──► Step   a question to a worker first, such as /tokenize
//           ├─► Wait ─► resumed() ──► Step    no worker has room: queued
//           └─► Forward ──► failed() ──► Step another worker, or an error, if no byte was passed on
//                    │
//                    └─► head(), bytes() …, ended()
//
// Load is reserved when a Forward is returned and released exactly once: by failed(), by ended(), or by the
// destructor.
//
// Thread safety: Gateway is thread-safe; a Passage is thread-compatible, and Wake may be called by any
// thread.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/service/http_address.h"

namespace ashlar::service {

struct HeaderView {
  std::string_view name;
  std::string_view value;
};

// A whole request of a client. The views are valid as long as the Passage lives, except `headers` itself,
// which is read by begin() only.
struct ClientRequest {
  std::string_view method;
  std::string_view target;  // path and query
  std::span<const HeaderView> headers;
  std::string_view body;
};

// Answered here. The leaf adds Content-Length and Connection.
struct Reply {
  unsigned status = 200;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
};

// A question to a worker, whose whole answer is told by answered().
struct Ask {
  HttpAddress address;
  std::string method = "POST";
  std::string target;
  std::vector<std::pair<std::string, std::string>> headers = {};
  std::string body = {};
  Clock::Duration timeout = std::chrono::seconds(5);
  std::size_t max_bytes = std::size_t{64} << 20;  // of the answer's body; a longer one is an error
};

// Errors of questions: kIo: it was not asked, for want of something of this program; kUnavailable: it could
// not be reached; kTimeout, kCorruption, kCapacity: it answered late, not well, or too much.
struct Answer {
  unsigned status = 0;
  std::string body;
};

// The client's request, unchanged in method, target and body. The leaf writes Host and its own connection
// headers, leaves out those that belong to one hop and those named in `dropped`, and adds `added`.
struct Forward {
  HttpAddress address;
  std::vector<std::pair<std::string, std::string>> added = {};
  std::vector<std::string_view> dropped = {};  // names, in lower case; constants
  // It goes over a new connection, so that no idle one can end just as it is sent and leave open whether the
  // worker has it.
  bool is_sent_once = false;
  Clock::Duration connect_timeout = std::chrono::seconds(5);
  Clock::Duration head_timeout = std::chrono::minutes(30);  // until the first byte of the answer
  Clock::Duration idle_timeout = std::chrono::minutes(10);  // between two bytes of the answer
};

// No room now. The leaf calls resumed() after Wake was called, or at `until`, and ended() if the client
// leaves meanwhile.
struct Wait {
  Clock::TimePoint until;
};

using Step = std::variant<Reply, Ask, Wait, Forward>;

// Why a Forward failed.
enum class ForwardFailure : std::uint8_t {
  kConnect,    // not connected in time, or refused
  kBroken,     // the connection ended before the head of an answer came
  kLate,       // no head in time
  kInvalid,    // the answer is not HTTP
  kExhausted,  // not sent: this program has no descriptor, port or memory for a connection
};

// How a passage ended.
enum class PassageEnd : std::uint8_t {
  kComplete,     // the client has the whole answer
  kClientGone,   // the client left
  kWorkerBroke,  // the worker's answer ended too early, or came too late
  kStopped,      // this program stops
};

// What to do with the head of an answer: pass it on with these headers added, or drop the answer and go on
// with `instead`.
struct HeadVerdict {
  std::vector<std::pair<std::string, std::string>> added = {};
  std::optional<Step> instead = {};
};

class Passage {
 public:
  using Wake = std::function<void()>;

  virtual ~Passage() = default;
  // Called once, first. `wake` may be called by any thread until the passage is destroyed.
  virtual Step begin(const ClientRequest& request, Wake wake) = 0;
  virtual Step answered(Result<Answer> answer) = 0;
  virtual Step resumed() = 0;
  // Requires: no byte of an answer was passed on to the client.
  virtual Step failed(ForwardFailure failure, std::string_view detail) = 0;
  // The head of the worker's answer. After `instead` the leaf closes that connection.
  virtual HeadVerdict head(unsigned status, std::span<const HeaderView> headers) = 0;
  // Bytes of the answer's body, without chunk framing, as they pass.
  virtual void bytes(std::string_view part) = 0;
  // Called at most once, last.
  virtual void ended(PassageEnd end) = 0;
};

// A question that the gateway has for itself: health, models. Told back under its number.
struct Errand {
  std::uint64_t number = 0;
  Ask ask;
};

class Gateway {
 public:
  virtual ~Gateway() = default;
  virtual std::unique_ptr<Passage> open() = 0;
  // Called with the head of a request (`body` is empty) before its body is read: an answer ends it there.
  // Requests without a body go to open() at once.
  virtual std::optional<Reply> refuse_head(const ClientRequest&) { return std::nullopt; }
  // Errands that are due now. The leaf asks them and tells the answers, in any order; it calls again after
  // `pause`.
  struct Due {
    std::vector<Errand> errands;
    Clock::Duration pause = std::chrono::milliseconds(100);
  };
  virtual Due due() = 0;
  virtual void told(std::uint64_t number, Result<Answer> answer) = 0;
  // No new requests from now on: begin() answers 503, /ready too.
  virtual void drain() = 0;
};

}  // namespace ashlar::service
