#include "backend/http/worker_call.h"

#include <algorithm>
#include <array>
#include <span>

namespace ashlar::backend::http {

Task<WorkerCall::Status> WorkerCall::start(const Request request) {
  for (bool is_second = false;; is_second = true) {
    if (!is_second && !request.is_sent_once) link_ = pool_.take(request.address);
    if (link_ == nullptr) {
      WorkerPool::Connected made =
          co_await pool_.connect(request.address, waiter_, interrupts_,
                                 std::min(request.latest, IoLoop::after(request.connect_timeout)));
      if (made.is_interrupted) co_return Status::kInterrupted;
      detail_ = std::move(made.failure);
      if (made.link == nullptr) co_return made.is_exhausted ? Status::kExhausted : Status::kConnect;
      link_ = std::move(made.link);
    }
    waiter_.clear(kWorkerReadable | kWorkerWritable);
    link_->stream.attach(&waiter_, kWorkerReadable, kWorkerWritable);
    const Status status = co_await exchange(request);
    if (status == Status::kHead) co_return status;
    const bool is_stale = status == Status::kBroken && link_->is_reused() && !answer_.has_bytes();
    link_.reset();
    if (!is_stale) co_return status;
  }
}

Task<WorkerCall::Status> WorkerCall::exchange(const Request& request) {
  left_ = {request.head, request.body};
  sent_all_ = false;
  can_send_ = true;
  has_waited_ = false;
  // Nothing that comes before the head is complete moves the first; a head that has begun also keeps to the
  // second.
  const Clock::TimePoint head_deadline = std::min(request.latest, IoLoop::after(request.head_timeout));
  Clock::TimePoint deadline = head_deadline;
  bool is_within_head = false;
  for (;;) {
    send_some();
    if (link_->stream.is_drained()) {
      link_->stream.arm_read();
      const IoEvents sending = is_sending() ? kWorkerWritable : 0;
      const IoEvents events = co_await waiter_.wait(kWorkerReadable | sending | interrupts_, deadline);
      if ((events & (interrupts_ | kStopped)) != 0) co_return Status::kInterrupted;
      if ((events & kWorkerReadable) == 0) {
        if ((events & kWorkerWritable) != 0) continue;
        detail_ = answer_.has_bytes() ? "the head of its answer did not come in time" : "no answer in time";
        co_return Status::kLate;
      }
    }
    const IoResult result = link_->stream.read(loop_.buffer());
    if (result.status == IoStatus::kBlocked) continue;
    if (result.status != IoStatus::kDone) {
      detail_ = answer_.has_bytes() ? "the connection ended within the head of its answer"
                                    : "the connection ended without an answer";
      co_return Status::kBroken;
    }
    const std::string_view bytes(loop_.buffer().data(), result.bytes);
    early_ = bytes.substr(answer_.feed(bytes));
    if (answer_.is_invalid()) {
      detail_ = "its answer is not HTTP/1";
      co_return Status::kInvalid;
    }
    if (answer_.has_head()) co_return Status::kHead;
    if (!answer_.is_within_head()) {
      deadline = head_deadline;
    } else if (!is_within_head) {
      deadline = std::min(head_deadline, IoLoop::after(request.idle_timeout));
    }
    is_within_head = answer_.is_within_head();
  }
}

void WorkerCall::send_some() {
  for (int writes = 0; is_sending(); ++writes) {
    const IoResult result = writes < kTurn ? link_->stream.write(left_) : IoResult{IoStatus::kBlocked, 0};
    if (result.status == IoStatus::kBlocked) {
      link_->stream.arm_write();
      has_waited_ = true;
      return;
    }
    // The worker may have answered before it closed.
    if (result.status != IoStatus::kDone) can_send_ = false;
    std::size_t sent = result.bytes;
    for (std::string_view& part : left_) {
      const std::size_t of_part = std::min(sent, part.size());
      part.remove_prefix(of_part);
      sent -= of_part;
    }
    sent_all_ = left_[0].empty() && left_[1].empty();
    if (sent_all_ && has_waited_) link_->stream.forget_writing();
  }
}

void WorkerCall::finish(bool is_exact) {
  ASHLAR_DCHECK(link_ != nullptr, "an answer is finished once");
  if (is_exact && sent_all_ && answer_.body().is_done() && answer_.head().keeps_alive()) {
    pool_.put(std::move(link_));
  } else {
    link_.reset();
  }
}

namespace {

// `status`: kConnect, if it has heard nothing of the question.
Error call_error(const service::Ask& ask, Clock::TimePoint latest, WorkerCall::Status status,
                 const std::string& detail) {
  const ErrorCode code = status == WorkerCall::Status::kConnect ? ErrorCode::kUnavailable
                         : IoLoop::now() >= latest              ? ErrorCode::kTimeout
                                                                : ErrorCode::kCorruption;
  return make_error(code, "%s at %s got no answer: %s", ask.target.c_str(), ask.address.authority().c_str(),
                    detail.c_str());
}

}  // namespace

Task<Asked> ask_worker(IoLoop& loop, WorkerPool& pool, EventWaiter& waiter, IoEvents interrupts,
                       const service::Ask& ask, HeldShare* room) {
  std::string head;
  head.append(ask.method).append(" ").append(ask.target).append(" HTTP/1.1\r\n");
  append_header(head, "Host", ask.address.authority());
  for (const auto& [name, value] : ask.headers) append_header(head, name, value);
  if (!ask.body.empty() || ask.method != "GET")
    append_header(head, "Content-Length", std::to_string(ask.body.size()));
  head += "\r\n";

  const Clock::TimePoint latest = IoLoop::after(ask.timeout);
  WorkerCall call(loop, pool, waiter, interrupts, ask.method == "HEAD");
  const WorkerCall::Request request{ask.address, head,        ask.body, ask.timeout,
                                    ask.timeout, ask.timeout, latest};
  const WorkerCall::Status status = co_await call.start(request);
  if (status == WorkerCall::Status::kInterrupted)
    co_return Asked{make_error(ErrorCode::kCancelled, "the question was given up"), true};
  if (status == WorkerCall::Status::kExhausted)
    co_return Asked{make_error(ErrorCode::kIo, "%s at %s cannot be asked: %s", ask.target.c_str(),
                               ask.address.authority().c_str(), call.detail().c_str())};
  if (status != WorkerCall::Status::kHead) co_return Asked{call_error(ask, latest, status, call.detail())};

  service::Answer answer;
  answer.status = call.answer().head().status;
  BodyScanner& body = call.answer().body();
  std::string_view bytes = call.early();
  int reads = 0;
  for (;;) {
    const std::size_t taken = body.scan(bytes, [&](std::string_view part) { answer.body.append(part); });
    if (answer.body.size() > ask.max_bytes)
      co_return Asked{make_error(ErrorCode::kCapacity, "%s at %s answered more than %zu bytes",
                                 ask.target.c_str(), ask.address.authority().c_str(), ask.max_bytes)};
    if (room != nullptr && !room->grow_to(answer.body.capacity()))
      co_return Asked{make_error(ErrorCode::kIo, "%s at %s: there is no room for its answer here",
                                 ask.target.c_str(), ask.address.authority().c_str())};
    if (body.is_broken())
      co_return Asked{call_error(ask, latest, WorkerCall::Status::kBroken, "broken chunks")};
    if (body.is_done()) {
      call.finish(taken == bytes.size());
      co_return Asked{std::move(answer)};
    }
    if (call.stream().is_drained() || (reads >= kTurn && !call.stream().holds_bytes())) {
      reads = 0;
      call.stream().arm_read();
      const IoEvents events = co_await waiter.wait(kWorkerReadable | interrupts, latest);
      if ((events & (interrupts | kStopped)) != 0)
        co_return Asked{make_error(ErrorCode::kCancelled, "the question was given up"), true};
      if ((events & kWorkerReadable) == 0)
        co_return Asked{call_error(ask, latest, WorkerCall::Status::kBroken, "its end did not come in time")};
    }
    const IoResult result = call.stream().read(loop.buffer());
    ++reads;
    bytes = {loop.buffer().data(), result.bytes};
    if (result.status == IoStatus::kDone || result.status == IoStatus::kBlocked) continue;
    if (result.status == IoStatus::kEnd && body.may_end()) co_return Asked{std::move(answer)};
    co_return Asked{call_error(ask, latest, WorkerCall::Status::kBroken, "it ended too early")};
  }
}

}  // namespace ashlar::backend::http
