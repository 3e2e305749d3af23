// WorkerCall: one request to a worker: a connection, the request's bytes, the head of the answer. The caller
// reads the body.
//
// A connection that was idle may end just as it is used. If no byte of an answer came, the request is sent
// once more, on a new one.
//
// Thread safety: confined to the loop's thread.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/service/passage.h"
#include "backend/http/answer_reader.h"
#include "backend/http/held_bytes.h"
#include "backend/http/worker_pool.h"

namespace ashlar::backend::http {

class WorkerCall {
 public:
  struct Request {
    const service::HttpAddress& address;
    std::string_view head;
    std::string_view body;
    Clock::Duration connect_timeout;
    Clock::Duration head_timeout;
    Clock::Duration idle_timeout;
    Clock::TimePoint latest = kNoDeadline;  // for all of it
    bool is_sent_once = false;              // over a new connection
  };
  enum class Status : std::uint8_t {
    kHead,  // answer() has one
    kConnect,
    kExhausted,  // this process has nothing to connect with
    kBroken,
    kLate,
    kInvalid,
    kInterrupted,
  };

  // Those of `interrupts`, and a stop, end every wait.
  WorkerCall(IoLoop& loop, WorkerPool& pool, EventWaiter& waiter, IoEvents interrupts, bool is_head)
      : loop_(loop), pool_(pool), waiter_(waiter), interrupts_(interrupts), answer_(is_head) {}

  // Up to the head of the answer. What `request` views must stay.
  Task<Status> start(const Request request);
  // What went wrong, for people.
  const std::string& detail() const noexcept { return detail_; }
  AnswerReader& answer() noexcept { return answer_; }
  // Bytes behind the head, in the loop's buffer: until the next wait.
  std::string_view early() const noexcept { return early_; }
  IoStream& stream() noexcept {
    ASHLAR_DCHECK(link_ != nullptr, "there is no connection");
    return link_->stream;
  }
  // A worker may begin to answer before it has the whole request: the rest is to be sent meanwhile. What
  // `request` views must stay until then.
  bool is_sending() const noexcept { return can_send_ && !sent_all_; }
  // As much of it as goes without waiting; the socket tells when more does (kWorkerWritable).
  void send_some();
  // The worker wants no more of it.
  void stop_sending() noexcept { can_send_ = false; }
  // The answer was read to its end; `is_exact`: and no byte more. The connection is kept if it can be.
  void finish(bool is_exact);

 private:
  Task<Status> exchange(const Request& request);

  IoLoop& loop_;
  WorkerPool& pool_;
  EventWaiter& waiter_;
  const IoEvents interrupts_;
  AnswerReader answer_;
  std::unique_ptr<WorkerPool::Link> link_;
  std::string_view early_;
  std::string detail_;
  std::array<std::string_view, 2> left_;  // to be sent
  bool sent_all_ = false;
  bool can_send_ = false;
  bool has_waited_ = false;  // to send
};

struct Asked {
  Result<service::Answer> answer;
  bool is_interrupted = false;
};
// Asks, and reads the whole answer. `ask` must stay. `room`: where the bytes of the answer are counted;
// without room for them it is given up with kIo. Null: nowhere.
Task<Asked> ask_worker(IoLoop& loop, WorkerPool& pool, EventWaiter& waiter, IoEvents interrupts,
                       const service::Ask& ask, HeldShare* room = nullptr);

}  // namespace ashlar::backend::http
