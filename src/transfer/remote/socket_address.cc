#include "transfer/remote/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <memory>
#include <system_error>
#include <utility>

#include "ashlar/base/log.h"

namespace ashlar::transfer {
namespace {

std::string errno_text(int error) {
  return std::generic_category().message(error);
}

bool is_port(std::string_view text) noexcept {
  if (text.empty() || text.size() > 5) return false;
  unsigned value = 0;
  for (const char letter : text) {
    if (letter < '0' || letter > '9') return false;
    value = value * 10 + static_cast<unsigned>(letter - '0');
  }
  return value <= 65535;
}

Error not_an_address(std::string_view text) {
  return make_error(ErrorCode::kInvalidArgument,
                    "'%s' is not HOST:PORT with a port up to 65535; IPv6 hosts are written in brackets",
                    printable(text.substr(0, 128)).c_str());
}

// Host and port.
Result<std::pair<std::string, std::string>> split_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0 || text.size() > 300) return not_an_address(text);
  std::string host(text.substr(0, colon));
  std::string port(text.substr(colon + 1));
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);
  if (!is_port(port) || (!bracketed && host.find_first_of(":[]") != std::string::npos) ||
      printable(host) != host)
    return not_an_address(text);
  return std::pair(std::move(host), std::move(port));
}

}  // namespace

SocketAddress::SocketAddress(const sockaddr* address, socklen_t length) noexcept : length_(length) {
  std::memcpy(&storage_, address, length);
}

Result<void> SocketAddress::check(std::string_view text) {
  ASHLAR_RETURN_IF_ERROR(split_host_port(text));
  return {};
}

std::vector<SocketAddress> SocketAddress::look_up(const std::string& host, const std::string& port, int flags,
                                                  int* failed) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  *failed = ::getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> owned(found, &::freeaddrinfo);
  std::vector<SocketAddress> out;
  for (const addrinfo* one = found; *failed == 0 && one != nullptr; one = one->ai_next)
    if (one->ai_family == AF_INET || one->ai_family == AF_INET6)
      out.push_back(SocketAddress(one->ai_addr, one->ai_addrlen));
  return out;
}

Result<std::optional<SocketAddress>> SocketAddress::from_number(std::string_view text) {
  ASHLAR_TRY(const auto parts, split_host_port(text));
  int failed = 0;
  const std::vector<SocketAddress> found = look_up(parts.first, parts.second, AI_NUMERICHOST, &failed);
  return found.empty() ? std::nullopt : std::optional(found.front());
}

Result<std::vector<SocketAddress>> SocketAddress::resolve(std::string_view text) {
  ASHLAR_TRY(const auto parts, split_host_port(text));
  int failed = 0;
  std::vector<SocketAddress> out = look_up(parts.first, parts.second, 0, &failed);
  if (out.empty())
    return make_error(ErrorCode::kUnavailable, "the host of '%s' is not known: %s",
                      printable(text.substr(0, 300)).c_str(),
                      failed != 0 ? ::gai_strerror(failed) : "it has no address");
  return out;
}

Result<SocketAddress> SocketAddress::local_of(int fd) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof storage;
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return make_error(ErrorCode::kIo, "a socket has no address: %s", errno_text(errno).c_str());
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

Result<SocketAddress> SocketAddress::peer_of(int fd) {
  sockaddr_storage storage = {};
  socklen_t length = sizeof storage;
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0)
    return make_error(ErrorCode::kIo, "a socket has no peer: %s", errno_text(errno).c_str());
  return SocketAddress(reinterpret_cast<const sockaddr*>(&storage), length);
}

bool SocketAddress::is_loopback() const noexcept {
  if (storage_.ss_family == AF_INET) {
    const auto* four = reinterpret_cast<const sockaddr_in*>(&storage_);
    return ntohl(four->sin_addr.s_addr) >> 24 == 127;
  }
  const auto* six = reinterpret_cast<const sockaddr_in6*>(&storage_);
  if (IN6_IS_ADDR_V4MAPPED(&six->sin6_addr)) return six->sin6_addr.s6_addr[12] == 127;
  return IN6_IS_ADDR_LOOPBACK(&six->sin6_addr);
}

bool SocketAddress::is_any() const noexcept {
  if (storage_.ss_family == AF_INET)
    return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr == htonl(INADDR_ANY);
  return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr);
}

std::string SocketAddress::host() const {
  char text[INET6_ADDRSTRLEN] = {};
  if (storage_.ss_family == AF_INET) {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr, text, sizeof text);
  } else {
    ::inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr, text, sizeof text);
  }
  return text;
}

std::string SocketAddress::to_string() const {
  if (storage_.ss_family == AF_INET)
    return host() + ":" + std::to_string(ntohs(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port));
  return "[" + host() +
         "]:" + std::to_string(ntohs(reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port));
}

Result<OwnedFd> SocketAddress::listen() const {
  OwnedFd fd(::socket(storage_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (fd.valid()) ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd.valid() || ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&storage_), length_) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0)
    return make_error(ErrorCode::kIo, "%s cannot be listened on: %s", to_string().c_str(),
                      errno_text(errno).c_str());
  return fd;
}

Result<OwnedFd> SocketAddress::connect() const {
  OwnedFd fd(::socket(storage_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid())
    return make_error(ErrorCode::kUnavailable, "no socket for %s: %s", to_string().c_str(),
                      errno_text(errno).c_str());
  set_no_delay(fd.get());
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&storage_), length_) != 0 &&
      errno != EINPROGRESS && errno != EINTR)
    return make_error(ErrorCode::kUnavailable, "%s cannot be connected to: %s", to_string().c_str(),
                      errno_text(errno).c_str());
  return fd;
}

void set_no_delay(int fd) noexcept {
  const int on = 1;
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace ashlar::transfer
