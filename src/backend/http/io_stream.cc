#include "backend/http/io_stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdint>

#include "ashlar/base/check.h"

namespace ashlar::backend::http {

void tune_socket(int fd) noexcept {
  const int on = 1;
  const int idle_seconds = 30;
  const int interval_seconds = 10;
  const int probes = 3;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_seconds, sizeof idle_seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_seconds, sizeof interval_seconds);
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

void limit_unacknowledged(int fd, Clock::Duration limit) noexcept {
  using std::chrono::milliseconds;
  const auto wanted = std::chrono::duration_cast<milliseconds>(limit).count();
  const auto most = static_cast<unsigned>(std::clamp<std::int64_t>(wanted, 1, INT_MAX));
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &most, sizeof most);
}

IoStream::IoStream(IoLoop& loop, int fd) : loop_(&loop), socket_(std::make_shared<Socket>(loop)) {
  boost::system::error_code error;
  socket_->descriptor.assign(fd, error);
  if (error) {
    ::close(fd);
    socket_.reset();
  }
}

IoStream& IoStream::operator=(IoStream&& other) noexcept {
  if (this == &other) return *this;
  close();
  loop_ = other.loop_;
  socket_ = std::move(other.socket_);
  tls_ = std::move(other.tls_);
  read_wants_write_ = other.read_wants_write_;
  drained_ = other.drained_;
  holds_bytes_ = other.holds_bytes_;
  return *this;
}

int IoStream::fd() const noexcept {
  return socket_ == nullptr ? -1 : socket_->descriptor.native_handle();
}

void IoStream::attach(ReadySink* sink, IoEvents readable, IoEvents writable) noexcept {
  if (socket_ == nullptr) return;
  socket_->sink = sink;
  socket_->readable = readable;
  socket_->writable = writable;
}

void IoStream::arm_read() {
  if (socket_ == nullptr || socket_->read_armed) return;
  socket_->read_armed = true;
  socket_->descriptor.async_wait(read_wants_write_ ? Descriptor::wait_write : Descriptor::wait_read,
                                 [socket = socket_](boost::system::error_code) {
                                   socket->read_armed = false;
                                   if (socket->sink != nullptr) socket->sink->fire(socket->readable);
                                 });
}

void IoStream::arm_write() {
  if (socket_ == nullptr || socket_->write_armed) return;
  socket_->write_armed = true;
  // A write of TLS that waits for reading is rare: keys are being changed. Reading goes on by itself.
  socket_->descriptor.async_wait(Descriptor::wait_write, [socket = socket_](boost::system::error_code) {
    socket->write_armed = false;
    if (socket->sink != nullptr) socket->sink->fire(socket->writable);
  });
}

void IoStream::forget_writing() {
  if (socket_ == nullptr) return;
  ASHLAR_DCHECK(!socket_->write_armed, "writing is still waited for");
  boost::system::error_code error;
  const int fd = socket_->descriptor.release();
  socket_->descriptor.assign(fd, error);
  if (error) ::close(fd);
}

IoResult IoStream::read(std::span<char> out) noexcept {
  if (socket_ == nullptr) return {};
  if (tls_ != nullptr) {
    const IoResult result = tls_->read(out.data(), out.size());
    drained_ = result.status == IoStatus::kBlocked;
    read_wants_write_ = drained_ && tls_->wants_write();
    holds_bytes_ = tls_->holds_bytes();
    return result;
  }
  for (;;) {
    const auto got = ::recv(fd(), out.data(), out.size(), 0);
    if (got > 0) {
      drained_ = static_cast<std::size_t>(got) < out.size();
      return {IoStatus::kDone, static_cast<std::size_t>(got)};
    }
    if (got == 0) return {IoStatus::kEnd, 0};
    if (errno == EINTR) continue;
    drained_ = true;
    return {errno == EAGAIN ? IoStatus::kBlocked : IoStatus::kFailed, 0};
  }
}

IoResult IoStream::write(std::span<const std::string_view> parts) {
  if (socket_ == nullptr) return {};
  if (tls_ != nullptr) return write_tls(parts);
  std::array<iovec, 4> pieces;
  std::size_t count = 0;
  for (const std::string_view part : parts) {
    if (part.empty()) continue;
    if (count == pieces.size()) break;
    pieces[count++] = {const_cast<char*>(part.data()), part.size()};
  }
  if (count == 0) return {IoStatus::kDone, 0};
  msghdr message = {};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  for (;;) {
    const auto sent = ::sendmsg(fd(), &message, MSG_NOSIGNAL);
    if (sent >= 0) return {IoStatus::kDone, static_cast<std::size_t>(sent)};
    if (errno == EINTR) continue;
    return {errno == EAGAIN ? IoStatus::kBlocked : IoStatus::kFailed, 0};
  }
}

IoResult IoStream::write_tls(std::span<const std::string_view> parts) {
  constexpr std::size_t kRecord = 16 << 10;
  std::size_t sent = 0;
  std::size_t part = 0;
  std::size_t at = 0;  // in the part
  while (part < parts.size()) {
    std::string_view piece = parts[part].substr(at);
    if (piece.size() < kRecord && part + 1 < parts.size()) {
      // Small parts go into one record.
      std::string& joined = loop_->scratch();
      joined.assign(piece);
      for (std::size_t next = part + 1; next < parts.size() && joined.size() < kRecord; ++next)
        joined.append(parts[next].substr(0, kRecord - joined.size()));
      piece = joined;
    }
    const IoResult result = tls_->write(piece.data(), piece.size());
    if (result.status == IoStatus::kBlocked && sent > 0) break;
    if (result.status != IoStatus::kDone) return {result.status, sent};
    sent += result.bytes;
    at += result.bytes;
    while (part < parts.size() && at >= parts[part].size()) at -= parts[part++].size();
  }
  return {IoStatus::kDone, sent};
}

void IoStream::shutdown_send() noexcept {
  if (socket_ == nullptr) return;
  if (tls_ != nullptr) tls_->end();
  ::shutdown(fd(), SHUT_WR);
}

void IoStream::close() noexcept {
  if (socket_ == nullptr) return;
  socket_->sink = nullptr;
  tls_.reset();
  boost::system::error_code ignored;
  socket_->descriptor.close(ignored);
  socket_.reset();
}

void IoStream::reset() noexcept {
  if (socket_ == nullptr) return;
  const linger now = {.l_onoff = 1, .l_linger = 0};
  ::setsockopt(fd(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close();
}

}  // namespace ashlar::backend::http
