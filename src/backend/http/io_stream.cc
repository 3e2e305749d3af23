#include "backend/http/io_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace ashlar::backend::http {

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
  if (tls_ != nullptr) {
    // Small parts go into one record.
    constexpr std::size_t kRecord = 16 << 10;
    std::string& joined = loop_->scratch();
    std::size_t sent = 0;
    IoResult last{IoStatus::kDone, 0};
    for (std::size_t i = 0; i < parts.size();) {
      joined.clear();
      std::string_view piece = parts[i++];
      if (piece.size() < kRecord && i < parts.size()) {
        joined.append(piece);
        while (i < parts.size()) joined.append(parts[i++]);
        piece = joined;
      }
      while (!piece.empty()) {
        last = tls_->write(piece.data(), piece.size());
        if (last.status != IoStatus::kDone) break;
        sent += last.bytes;
        piece.remove_prefix(last.bytes);
      }
      if (last.status != IoStatus::kDone) break;
    }
    if (last.status == IoStatus::kBlocked && sent > 0) return {IoStatus::kDone, sent};
    return {last.status, sent};
  }
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
