#include "backend/http/client_connection.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <span>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

namespace {

constexpr std::size_t kAheadBytes = 64 << 10;
constexpr std::size_t kKeptAhead = 4 << 10;  // of memory, when there is nothing ahead
constexpr auto kLingerTime = std::chrono::seconds(2);
constexpr std::size_t kMaxParts = 4;

}  // namespace

ClientConnection::ClientConnection(IoLoop& loop, EventWaiter& waiter, int fd, const RequestRules& rules,
                                   const TlsContext* tls)
    : loop_(loop), waiter_(waiter), limits_(rules.limits), stream_(loop, fd), reader_(rules) {
  if (!stream_.is_open()) {
    gone_ = true;
    return;
  }
  if (tls != nullptr) {
    stream_.use_tls(TlsSession::accept(*tls, stream_.fd()));
    if (stream_.tls() == nullptr) gone_ = true;
  }
  stream_.attach(this, kClientReadable, kClientWritable);
}

Task<bool> ClientConnection::handshake() {
  if (gone_) co_return false;
  if (stream_.tls() == nullptr) co_return true;
  const Clock::TimePoint deadline = IoLoop::after(limits_.head_timeout);
  for (;;) {
    const IoResult result = stream_.tls()->handshake();
    if (result.status == IoStatus::kDone) co_return true;
    if (result.status != IoStatus::kBlocked) co_return false;
    if (stream_.tls()->wants_write()) {
      stream_.arm_write();
    } else {
      stream_.arm_read();
    }
    const IoEvents events = co_await waiter_.wait(kClientReadable | kClientWritable, deadline);
    if ((events & (kDeadline | kStopped)) != 0) co_return false;
  }
}

void ClientConnection::feed(std::string_view bytes) {
  if (ahead_.empty()) {
    const std::size_t taken = reader_.feed(bytes);
    ahead_.assign(bytes.substr(taken));
    return;
  }
  ahead_.append(bytes);
  ahead_.erase(0, reader_.feed(ahead_));
}

Task<ClientConnection::Next> ClientConnection::read_request() {
  watching_ = false;
  reader_.restart();
  if (!ahead_.empty()) feed({});
  if (ahead_.empty() && ahead_.capacity() > kKeptAhead) ahead_.shrink_to_fit();
  Clock::TimePoint began = IoLoop::now();
  bool is_idle = reader_.state() == RequestReader::State::kIdle;
  int reads = 0;
  while (!reader_.is_over()) {
    if (gone_) co_return Next::kOver;
    if (stream_.is_drained() || (reads >= kTurn && !stream_.holds_bytes())) {
      reads = 0;
      if (is_idle && loop_.is_draining()) co_return Next::kOver;
      const Clock::Duration allowed = is_idle                                          ? limits_.idle_timeout
                                      : reader_.state() == RequestReader::State::kBody ? limits_.body_timeout
                                                                                       : limits_.head_timeout;
      stream_.arm_read();
      const IoEvents events =
          co_await waiter_.wait(kClientReadable | (is_idle ? kDraining : 0), IoLoop::later(began, allowed));
      if ((events & kStopped) != 0) co_return Next::kOver;
      if ((events & kClientReadable) == 0) {
        if ((events & kDraining) != 0) continue;
        if (is_idle) co_return Next::kOver;
        refusal_ = 408;
        co_return Next::kRefused;
      }
    }
    const IoResult result = stream_.read(loop_.buffer());
    ++reads;
    if (result.status == IoStatus::kBlocked) continue;
    if (result.status != IoStatus::kDone) {
      gone_ = true;
      co_return Next::kOver;
    }
    feed({loop_.buffer().data(), result.bytes});
    if (is_idle && reader_.state() != RequestReader::State::kIdle) {
      is_idle = false;
      began = IoLoop::now();
    }
    if (reader_.take_continue() && !send({"HTTP/1.1 100 Continue\r\n\r\n"})) co_return Next::kOver;
  }
  if (reader_.state() == RequestReader::State::kComplete) co_return Next::kRequest;
  refusal_ = reader_.refusal();
  co_return Next::kRefused;
}

void ClientConnection::watch() {
  watching_ = true;
  if (gone_) {
    waiter_.fire(kClientGone);
  } else if (!stream_.is_drained()) {
    read_ahead();
  } else if (ahead_.size() < kAheadBytes) {
    stream_.arm_read();
  }
}

void ClientConnection::read_ahead() {
  while (ahead_.size() < kAheadBytes) {
    const IoResult result = stream_.read(loop_.buffer());
    if (result.status == IoStatus::kBlocked) break;
    if (result.status != IoStatus::kDone) {
      gone_ = true;
      waiter_.fire(kClientGone);
      return;
    }
    ahead_.append(loop_.buffer().data(), result.bytes);
    if (stream_.is_drained()) break;
  }
  if (ahead_.size() < kAheadBytes) stream_.arm_read();
}

void ClientConnection::fire(IoEvents events) {
  if (watching_ && (events & kClientReadable) != 0) {
    read_ahead();
    return;
  }
  waiter_.fire(events);
}

bool ClientConnection::send(std::initializer_list<std::string_view> parts) {
  if (gone_) return false;
  ASHLAR_DCHECK(parts.size() <= kMaxParts, "too many parts");
  std::array<std::string_view, kMaxParts> left;
  std::size_t count = 0;
  for (const std::string_view part : parts) {
    if (!part.empty()) left[count++] = part;
  }
  std::size_t first = 0;
  if (!has_unsent() && count > 0) {
    const IoResult result = stream_.write(std::span(left).first(count));
    if (result.status == IoStatus::kFailed || result.status == IoStatus::kEnd) {
      gone_ = true;
      return false;
    }
    std::size_t sent = result.bytes;
    while (first < count && sent >= left[first].size()) sent -= left[first++].size();
    if (first < count) left[first].remove_prefix(sent);
  }
  for (; first < count; ++first) unsent_.append(left[first]);
  return true;
}

Task<bool> ClientConnection::flush(std::string_view more) {
  bool has_waited = false;
  Clock::TimePoint deadline = IoLoop::after(limits_.write_timeout);
  while (has_unsent() || !more.empty()) {
    if (gone_) co_return false;
    const std::array<std::string_view, 2> rest = {std::string_view(unsent_).substr(unsent_begin_), more};
    const IoResult result = stream_.write(std::span(rest).subspan(rest[0].empty() ? 1 : 0));
    if (result.status == IoStatus::kDone) {
      const std::size_t of_unsent = std::min(result.bytes, rest[0].size());
      unsent_begin_ += of_unsent;
      more.remove_prefix(result.bytes - of_unsent);
      deadline = IoLoop::after(limits_.write_timeout);
      continue;
    }
    if (result.status != IoStatus::kBlocked) {
      gone_ = true;
      co_return false;
    }
    stream_.arm_write();
    has_waited = true;
    const IoEvents events = co_await waiter_.wait(kClientWritable | kClientGone, deadline);
    if ((events & kStopped) != 0) co_return false;
    if ((events & (kDeadline | kClientGone)) != 0 && (events & kClientWritable) == 0) {
      gone_ = true;
      co_return false;
    }
  }
  unsent_.clear();
  if (unsent_.capacity() > kKeptAhead) unsent_.shrink_to_fit();
  unsent_begin_ = 0;
  if (has_waited) stream_.forget_writing();
  co_return true;
}

Task<void> ClientConnection::refuse() {
  reader_.drop_body();
  std::string text;
  append_status_line(text, refusal_, reason_of(refusal_));
  std::string_view body;
  if (const service::Reply* reply = reader_.refusal_reply()) {
    for (const auto& [name, value] : reply->headers) append_header(text, name, value);
    body = reply->body;
  } else if (refusal_ == 503) {
    append_header(text, "Retry-After", "1");
  }
  append_header(text, "Content-Length", std::to_string(body.size()));
  text += "Connection: close\r\n\r\n";
  if (reader_.request().head.method == "HEAD") body = {};
  if (send({text, body}) && co_await flush()) co_await close_gently();
}

Task<void> ClientConnection::close_gently() {
  watching_ = false;
  reader_.drop_body();
  stream_.shutdown_send();
  const Clock::TimePoint deadline = IoLoop::after(kLingerTime);
  while (!gone_ && IoLoop::now() < deadline) {
    const IoResult result = stream_.read(loop_.buffer());
    if (result.status == IoStatus::kDone && stream_.holds_bytes()) continue;
    if (result.status != IoStatus::kDone && result.status != IoStatus::kBlocked) break;
    stream_.arm_read();
    const IoEvents events = co_await waiter_.wait(kClientReadable, deadline);
    if ((events & (kDeadline | kStopped)) != 0) break;
  }
  stream_.close();
}

}  // namespace ashlar::backend::http
