// The steps of a Passage, done on sockets.
//
// Bytes of an answer go from the worker's socket into the loop's buffer and from there to the client's. What
// the client's socket does not take is kept, at most one buffer of it, and the worker is not read until it is
// gone: so a slow client slows its worker down, and nothing else.
#include "backend/http/proxy_session.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "ashlar/base/check.h"
#include "ashlar/base/mutex.h"

namespace ashlar::backend::http {

using service::ForwardFailure;
using service::PassageEnd;
using service::Step;

namespace {

// How threads wake a session that may be gone.
class WakeSlot : public std::enable_shared_from_this<WakeSlot> {
 public:
  WakeSlot(IoLoop& loop, EventWaiter& waiter) : loop_(loop), waiter_(&waiter) {}

  void wake() {
    MutexLock lock(mu_);
    if (waiter_ == nullptr || posted_) return;
    posted_ = true;
    loop_.post([self = shared_from_this()] { self->arrive(); });
  }
  // On the loop's thread, as is arrive(): so the waiter cannot go while it is told.
  void detach() {
    MutexLock lock(mu_);
    waiter_ = nullptr;
  }

 private:
  void arrive() {
    EventWaiter* waiter = nullptr;
    {
      MutexLock lock(mu_);
      posted_ = false;
      waiter = waiter_;
    }
    if (waiter != nullptr) waiter->fire(kWoken);
  }

  IoLoop& loop_;  // gone when there is no waiter
  Mutex mu_;
  EventWaiter* waiter_ ASHLAR_GUARDED_BY(mu_);
  bool posted_ ASHLAR_GUARDED_BY(mu_) = false;
};

// Room for most heads of answers, with what is added to them.
constexpr std::size_t kAnswerHeadBytes = 480;

constexpr std::string_view kOwnHeaders = "x-ashlar-";

bool is_own_header(std::string_view name) {
  return equal_ignoring_case(name.substr(0, kOwnHeaders.size()), kOwnHeaders);
}

bool sends_length(std::string_view method, std::string_view body) {
  return !body.empty() || method == "POST" || method == "PUT" || method == "PATCH";
}

bool contains_name(const std::vector<std::string_view>& names, std::string_view name) {
  return std::any_of(names.begin(), names.end(),
                     [&](std::string_view one) { return equal_ignoring_case(one, name); });
}

ForwardFailure failure_of(WorkerCall::Status status) {
  switch (status) {
    case WorkerCall::Status::kConnect:
      return ForwardFailure::kConnect;
    case WorkerCall::Status::kExhausted:
      return ForwardFailure::kExhausted;
    case WorkerCall::Status::kLate:
      return ForwardFailure::kLate;
    case WorkerCall::Status::kInvalid:
      return ForwardFailure::kInvalid;
    case WorkerCall::Status::kBroken:
    case WorkerCall::Status::kHead:
    case WorkerCall::Status::kInterrupted:
      break;
  }
  return ForwardFailure::kBroken;
}

}  // namespace

// A passage and what is open as long as it is.
class ProxySession::OpenPassage {
 public:
  explicit OpenPassage(ProxySession& session)
      : session_(session),
        slot_(std::make_shared<WakeSlot>(session.shared_.loop, session.waiter_)),
        passage_(session.gateway_.open()) {
    ASHLAR_CHECK(passage_ != nullptr, "Gateway::open() returns a passage");
    session_.loops_.answer_began();
  }
  OpenPassage(const OpenPassage&) = delete;
  OpenPassage& operator=(const OpenPassage&) = delete;
  ~OpenPassage() {
    passage_.reset();
    slot_->detach();
    session_.loops_.answer_ended();
  }

  service::Passage* operator->() noexcept { return passage_.get(); }
  service::Passage::Wake wake() {
    return [slot = slot_] { slot->wake(); };
  }
  void end(PassageEnd end) {
    ASHLAR_DCHECK(!ended_, "a passage ends once");
    ended_ = true;
    passage_->ended(end);
  }

 private:
  ProxySession& session_;
  const std::shared_ptr<WakeSlot> slot_;
  std::unique_ptr<service::Passage> passage_;
  bool ended_ = false;
};

Task<void> ProxySession::run() {
  if (!co_await client_.handshake()) co_return;
  for (;;) {
    const ClientConnection::Next next = co_await client_.read_request();
    if (next == ClientConnection::Next::kRefused) {
      (client_.has_refusal_reply() ? shared_.requests : shared_.bad_requests)
          .fetch_add(1, std::memory_order_relaxed);
      co_await client_.refuse();
    }
    if (next != ClientConnection::Next::kRequest) co_return;
    shared_.requests.fetch_add(1, std::memory_order_relaxed);
    co_await pass();
    if (!keeps_alive_ || client_.is_gone()) break;
  }
  if (client_.is_open() && !client_.is_gone()) co_await client_.close_gently();
}

Task<void> ProxySession::pass() {
  const WholeRequest& request = client_.request();
  keeps_alive_ = request.head.keeps_alive() && !shared_.loop.is_draining();
  OpenPassage passage(*this);
  waiter_.clear(kWoken);
  target_.clear();
  if (request.head.target.starts_with('?')) target_.append("/").append(request.head.target);
  Step step = passage->begin({request.head.method, target_.empty() ? request.head.target : target_,
                              request.head.headers, request.body},
                             passage.wake());
  for (;;) {
    std::optional<Step> next;
    if (auto* answer = std::get_if<service::Reply>(&step)) {
      co_await reply(passage, std::move(*answer));
    } else if (const auto* question = std::get_if<service::Ask>(&step)) {
      next = co_await ask(passage, *question);
    } else if (const auto* pause = std::get_if<service::Wait>(&step)) {
      next = co_await wait(passage, pause->until);
    } else {
      next = co_await forward(passage, std::get<service::Forward>(step));
    }
    if (!next) co_return;
    step = std::move(*next);
  }
}

void ProxySession::end_interrupted(OpenPassage& passage) {
  keeps_alive_ = false;
  if (shared_.loop.is_stopping()) {
    passage.end(PassageEnd::kStopped);
  } else {
    shared_.client_aborts.fetch_add(1, std::memory_order_relaxed);
    passage.end(PassageEnd::kClientGone);
  }
  client_.close();
}

Task<void> ProxySession::reply(OpenPassage& passage, service::Reply reply) {
  const ReplyBudget::Room room(shared_.replies, reply.body.size());
  if (!room.is_taken())
    reply = {.status = 503,
             .headers = {{"Content-Type", "application/json"}, {"Retry-After", "1"}},
             .body = R"({"error":"too many large answers wait for clients that have not read them"})"};
  const MessageHead& asked = client_.request().head;
  std::string text;
  append_status_line(text, reply.status, reason_of(reply.status));
  for (const auto& [name, value] : reply.headers) append_header(text, name, value);
  const bool may_have_body = reply.status != 204 && reply.status != 304;
  if (may_have_body) append_header(text, "Content-Length", std::to_string(reply.body.size()));
  keeps_alive_ = keeps_alive_ && !shared_.loop.is_draining();
  if (!keeps_alive_) {
    append_header(text, "Connection", "close");
  } else if (asked.minor_version == 0) {
    append_header(text, "Connection", "keep-alive");
  }
  text += "\r\n";
  const bool has_body = may_have_body && asked.method != "HEAD";
  const std::string_view body = has_body ? std::string_view(reply.body) : std::string_view();
  // What the socket does not take of the first part is copied; the rest is not.
  const std::string_view rest = body.substr(std::min(body.size(), ReplyBudget::kSmall));
  if (!client_.send({text, body.substr(0, body.size() - rest.size())})) co_return end_interrupted(passage);
  if ((client_.has_unsent() || !rest.empty()) && !co_await client_.flush(rest))
    co_return end_interrupted(passage);
  passage.end(PassageEnd::kComplete);
}

Task<std::optional<Step>> ProxySession::ask(OpenPassage& passage, const service::Ask& ask) {
  HeldShare room(shared_.answers, shared_.answer_limit);
  Task<Asked> task = ask_worker(shared_.loop, shared_.pool, waiter_, kClientGone, ask, &room);
  if (!task.await_ready()) client_.watch();
  Asked asked = co_await task;
  if (asked.is_interrupted) {
    end_interrupted(passage);
    co_return std::nullopt;
  }
  waiter_.clear(kWoken);
  co_return passage->answered(std::move(asked.answer));
}

Task<std::optional<Step>> ProxySession::wait(OpenPassage& passage, Clock::TimePoint until) {
  client_.watch();
  const IoEvents events = co_await waiter_.wait(kWoken | kClientGone, until);
  if ((events & (kClientGone | kStopped)) != 0) {
    end_interrupted(passage);
    co_return std::nullopt;
  }
  waiter_.clear(kWoken);
  co_return passage->resumed();
}

std::string ProxySession::request_head(const service::Forward& forward) const {
  const WholeRequest& request = client_.request();
  std::string out;
  out.reserve(request.head_text.size() + 256);
  out.append(request.head.method).append(" ").append(target_.empty() ? request.head.target : target_);
  out.append(" HTTP/1.1\r\n");
  append_header(out, "Host", forward.address.authority());
  for (const service::HeaderView& header : request.head.headers) {
    if (equal_ignoring_case(header.name, "host") || equal_ignoring_case(header.name, "content-length") ||
        equal_ignoring_case(header.name, "expect") || is_own_header(header.name) ||
        is_hop_by_hop(request.head, header.name) || contains_name(forward.dropped, header.name))
      continue;
    append_header(out, header.name, header.value);
  }
  for (const auto& [name, value] : forward.added) append_header(out, name, value);
  if (sends_length(request.head.method, request.body))
    append_header(out, "Content-Length", std::to_string(request.body.size()));
  return out += "\r\n";
}

Task<std::optional<Step>> ProxySession::forward(OpenPassage& passage, const service::Forward& forward) {
  const WholeRequest& request = client_.request();
  std::string head = request_head(forward);
  WorkerCall call(shared_.loop, shared_.pool, waiter_, kClientGone, request.head.method == "HEAD");
  const WorkerCall::Request what{
      forward.address,      head,        request.body,        forward.connect_timeout, forward.head_timeout,
      forward.idle_timeout, kNoDeadline, forward.is_sent_once};
  Task<WorkerCall::Status> task = call.start(what);
  // The request is on its way: a watch set earlier would delay it.
  if (!task.await_ready()) client_.watch();
  const WorkerCall::Status status = co_await task;
  if (!call.is_sending()) head = {};
  waiter_.clear(kWoken);
  if (status == WorkerCall::Status::kInterrupted) {
    end_interrupted(passage);
    co_return std::nullopt;
  }
  if (status != WorkerCall::Status::kHead) co_return passage->failed(failure_of(status), call.detail());
  service::HeadVerdict verdict = passage->head(call.answer().head().status, call.answer().head().headers);
  if (verdict.instead) co_return std::move(verdict.instead);
  co_await relay(passage, call, verdict.added, forward.idle_timeout);
  co_return std::nullopt;
}

std::string ProxySession::answer_head(AnswerReader& answer, const HeaderPairs& added, bool& removes_chunks) {
  const MessageHead& head = answer.head();
  const bool is_old_client = client_.request().head.minor_version == 0;
  std::string out;
  out.reserve(kAnswerHeadBytes);
  append_status_line(out, head.status, head.reason.empty() ? reason_of(head.status) : head.reason);
  for (const service::HeaderView& header : head.headers) {
    if (equal_ignoring_case(header.name, "content-length") || is_hop_by_hop(head, header.name)) continue;
    // A worker says nothing in our name.
    if (is_own_header(header.name) || std::ranges::any_of(added, [&](const auto& own) {
          return equal_ignoring_case(own.first, header.name);
        }))
      continue;
    append_header(out, header.name, header.value);
  }
  for (const auto& [name, value] : added) append_header(out, name, value);
  if (head.content_length && head.status != 204)
    append_header(out, "Content-Length", std::to_string(*head.content_length));
  removes_chunks = answer.has_body() && head.is_chunked && is_old_client;
  if (answer.has_body() && head.is_chunked && !is_old_client)
    append_header(out, "Transfer-Encoding", "chunked");
  // Where nothing else tells the end of the answer, that of the connection does.
  keeps_alive_ =
      keeps_alive_ && !removes_chunks && !answer.body().is_until_end() && !shared_.loop.is_draining();
  if (!keeps_alive_) {
    append_header(out, "Connection", "close");
  } else if (is_old_client) {
    append_header(out, "Connection", "keep-alive");
  }
  return out += "\r\n";
}

Task<void> ProxySession::relay(OpenPassage& passage, WorkerCall& call, const HeaderPairs& added,
                               Clock::Duration idle_timeout) {
  bool removes_chunks = false;
  std::string head = answer_head(call.answer(), added, removes_chunks);
  BodyScanner& body = call.answer().body();
  if (call.answer().head().status >= 400 && !call.answer().head().keeps_alive()) call.stop_sending();
  const bool ends_by_close = removes_chunks || body.is_until_end();
  std::string_view bytes = call.early();
  std::string payload;
  int reads = 0;
  for (;;) {
    // Finds the parts of the body and its end, sends, and then tells the passage: the client comes first.
    std::vector<std::string_view>& parts = shared_.parts;
    parts.clear();
    payload.clear();
    const std::size_t taken = body.scan(bytes, [&](std::string_view part) {
      parts.push_back(part);
      if (removes_chunks) payload.append(part);
    });
    const bool is_exact = taken == bytes.size();
    bytes = bytes.substr(0, taken);
    if (!client_.send({head, removes_chunks ? std::string_view(payload) : bytes}))
      co_return end_interrupted(passage);
    for (const std::string_view part : parts) passage->bytes(part);
    if (!head.empty()) {
      head = {};
      call.answer().forget_head();
    }
    if (client_.has_unsent() && !co_await client_.flush()) co_return end_interrupted(passage);
    if (body.is_done()) {
      passage.end(PassageEnd::kComplete);
      co_return call.finish(is_exact);
    }
    if (body.is_broken()) break;

    if (call.is_sending()) call.send_some();
    IoResult result{IoStatus::kBlocked, 0};
    while (result.status == IoStatus::kBlocked) {
      if (call.stream().is_drained() || (reads >= kTurn && !call.stream().holds_bytes())) {
        reads = 0;
        call.stream().arm_read();
        const IoEvents sending = call.is_sending() ? kWorkerWritable : 0;
        const IoEvents events =
            co_await waiter_.wait(kWorkerReadable | sending | kClientGone, IoLoop::after(idle_timeout));
        if ((events & (kClientGone | kStopped)) != 0) co_return end_interrupted(passage);
        if ((events & sending) != 0) call.send_some();
        if ((events & (kWorkerReadable | sending)) == 0) break;
        if ((events & kWorkerReadable) == 0) continue;
      }
      result = call.stream().read(shared_.loop.buffer());
      ++reads;
    }
    if (result.status == IoStatus::kEnd && body.may_end()) co_return passage.end(PassageEnd::kComplete);
    if (result.status != IoStatus::kDone) break;
    bytes = {shared_.loop.buffer().data(), result.bytes};
  }
  // The client must be able to tell this from an end.
  passage.end(PassageEnd::kWorkerBroke);
  keeps_alive_ = false;
  if (ends_by_close) {
    client_.reset();
  } else {
    client_.close();
  }
}

}  // namespace ashlar::backend::http
