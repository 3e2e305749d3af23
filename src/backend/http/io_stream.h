// IoStream: a connected, non-blocking socket, plain or with TLS, on a loop.
//
// Reads and writes never wait. arm_read() and arm_write() have the socket reported to the sink once, when it
// is ready. So the data path of a request is: wait, recv, send, arm.
//
// Thread safety: confined to the loop's thread.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <memory>
#include <span>
#include <string_view>

#include "backend/http/io_loop.h"
#include "backend/http/tls.h"

namespace ashlar::backend::http {

// Small pieces are sent at once, and a machine at the other end that is gone is found out. Sockets accepted
// by a listening one have its settings.
void tune_socket(int fd) noexcept;
// Ends connections whose other side has acknowledged nothing of what was sent for so long, or taken nothing.
// While something is sent Linux does not ask whether it is still there, and would try for a quarter of an
// hour.
void limit_unacknowledged(int fd, Clock::Duration limit) noexcept;

class IoStream {
 public:
  IoStream() = default;
  // Takes over the socket.
  IoStream(IoLoop& loop, int fd);
  IoStream(IoStream&&) noexcept = default;
  IoStream& operator=(IoStream&& other) noexcept;
  ~IoStream() { close(); }

  bool is_open() const noexcept { return socket_ != nullptr; }
  int fd() const noexcept;
  // Who is told, and by which events. Null: nobody.
  void attach(ReadySink* sink, IoEvents readable, IoEvents writable) noexcept;
  // Nothing happens if it is armed already.
  void arm_read();
  void arm_write();
  // Forgets that writing was ever waited for: Asio would wake every later wait for reading once for nothing.
  void forget_writing();

  // From now on with TLS.
  void use_tls(std::unique_ptr<TlsSession> session) noexcept { tls_ = std::move(session); }
  TlsSession* tls() noexcept { return tls_.get(); }

  IoResult read(std::span<char> out) noexcept;
  // As much of the parts as goes without waiting; kBlocked if that is nothing.
  IoResult write(std::span<const std::string_view> parts);
  // Whether nothing is left to read without waiting, as far as the last read could tell.
  bool is_drained() const noexcept { return drained_; }
  // Whether bytes were received that the socket will not report any more: they must be read before a wait.
  bool holds_bytes() const noexcept { return holds_bytes_; }

  // Ends what this side sends.
  void shutdown_send() noexcept;
  void close() noexcept;
  // Ends the connection so that the other side sees an error.
  void reset() noexcept;

 private:
  using Descriptor = boost::asio::posix::basic_stream_descriptor<boost::asio::io_context::executor_type>;
  // Shared with the handlers that Asio holds.
  struct Socket {
    explicit Socket(IoLoop& loop) : descriptor(loop.context().get_executor()) {}
    Descriptor descriptor;
    ReadySink* sink = nullptr;
    IoEvents readable = 0;
    IoEvents writable = 0;
    bool read_armed = false;
    bool write_armed = false;
  };

  IoResult write_tls(std::span<const std::string_view> parts);

  IoLoop* loop_ = nullptr;
  std::shared_ptr<Socket> socket_;
  std::unique_ptr<TlsSession> tls_;
  bool read_wants_write_ = false;
  bool drained_ = true;
  bool holds_bytes_ = false;
};

}  // namespace ashlar::backend::http
