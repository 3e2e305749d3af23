// SocketAddress: an IPv4 or IPv6 address with a port, as "10.0.0.1:7000" or "[::1]:7000".
//
// Thread safety: immutable value.
#pragma once

#include <sys/socket.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "base/owned_fd.h"

namespace ashlar::transfer {

class SocketAddress {
 public:
  // Whether the text is HOST:PORT. Errors: kInvalidArgument.
  static Result<void> check(std::string_view text);
  // All addresses of HOST:PORT; a host that is not a number is looked up, which may wait for a name server.
  // Errors: kInvalidArgument: not HOST:PORT; kUnavailable: no such host.
  static Result<std::vector<SocketAddress>> resolve(std::string_view text);
  // The address of HOST:PORT whose host is a number; none: it is a name. Never waits. Errors:
  // kInvalidArgument.
  static Result<std::optional<SocketAddress>> from_number(std::string_view text);
  // Of a socket's own end, or of the other one.
  static Result<SocketAddress> local_of(int fd);
  static Result<SocketAddress> peer_of(int fd);

  // 127.0.0.0/8 and ::1: only processes of this machine are there.
  bool is_loopback() const noexcept;
  // 0.0.0.0 and ::, which can be listened on, but not connected to.
  bool is_any() const noexcept;
  std::string to_string() const;
  // Without the port, and without brackets.
  std::string host() const;

  // Errors: kIo with the system's reason.
  Result<OwnedFd> listen() const;
  // Starts to connect; the socket becomes writable when it has ended. Errors: kUnavailable.
  Result<OwnedFd> connect() const;

 private:
  SocketAddress(const sockaddr* address, socklen_t length) noexcept;
  // `failed`: of getaddrinfo().
  static std::vector<SocketAddress> look_up(const std::string& host, const std::string& port, int flags,
                                            int* failed);

  sockaddr_storage storage_ = {};
  socklen_t length_ = 0;
};

// Sends small messages at once.
void set_no_delay(int fd) noexcept;

}  // namespace ashlar::transfer
