// RawClient: a client of HTTP that is a plain socket, for what a good client would never send.
//
// Reads give up after two minutes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "base/owned_fd.h"

namespace ashlar::backend::http {

struct RawAnswer {
  unsigned status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // without chunk framing
  bool complete = false;

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? "" : found->second;
  }
};

class RawClient {
 public:
  RawClient() = default;
  explicit RawClient(std::uint16_t port, int receive_buffer = 0)
      : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_buffer != 0)
      setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const int on = 1;
    setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0) << errno;
  }

  explicit RawClient(OwnedFd socket) : socket_(std::move(socket)) {}

  int fd() const { return socket_.get(); }

  // False: the other side has closed.
  bool send(std::string_view bytes) const {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void shut() const { ::shutdown(socket_.get(), SHUT_WR); }
  void close() { socket_ = OwnedFd(); }
  // With an error at the other side.
  void reset() {
    const linger now = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &now, sizeof now);
    OwnedFd gone = std::move(socket_);
  }

  // More bytes into the buffer. False: the end, which is_reset() tells the kind of.
  bool more() {
    pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    if (poll(&entry, 1, 120'000) <= 0) {
      ADD_FAILURE() << "nothing came for two minutes";
      return false;
    }
    if (begin_ == buffer_.size()) {
      buffer_.clear();
      begin_ = 0;
    }
    static thread_local std::array<char, 64 << 10> piece;
    const ssize_t got = recv(socket_.get(), piece.data(), piece.size(), 0);
    if (got < 0) reset_ = true;
    if (got <= 0) return false;
    buffer_.append(piece.data(), static_cast<std::size_t>(got));
    return true;
  }
  bool is_reset() const { return reset_; }

  // Reads until the text has come, and takes all up to its end. Empty: it never came.
  std::string take_until(std::string_view text) {
    for (;;) {
      const std::size_t at = buffer_.find(text, begin_);
      if (at != std::string::npos) return take(at + text.size() - begin_);
      if (!more()) return {};
    }
  }
  // As many bytes, or what came before the end.
  std::string take_bytes(std::size_t count) {
    while (buffer_.size() - begin_ < count && more()) {
    }
    return take(std::min(count, buffer_.size() - begin_));
  }
  std::string take_all() {
    while (more()) {
    }
    return take(buffer_.size() - begin_);
  }
  bool at_end() { return begin_ == buffer_.size() && !more(); }

  // The head of an answer, with those of 1xx skipped if `skip` is on.
  RawAnswer take_head(bool skip = true) {
    RawAnswer out;
    do {
      out = {};
      const std::string head = take_until("\r\n\r\n");
      if (head.size() < 12) return out;
      out.status = static_cast<unsigned>(std::strtoul(head.c_str() + 9, nullptr, 10));
      std::size_t line = head.find("\r\n") + 2;
      while (line + 2 < head.size()) {
        const std::size_t end = head.find("\r\n", line);
        const std::size_t colon = head.find(':', line);
        std::string name = head.substr(line, colon - line);
        for (char& c : name) c = static_cast<char>(std::tolower(c));
        out.headers[name] = head.substr(colon + 2, end - colon - 2);
        line = end + 2;
      }
    } while (skip && out.status / 100 == 1);
    return out;
  }

  // A whole answer. `has_body` is off for answers to HEAD.
  RawAnswer take_answer(bool has_body = true) {
    RawAnswer out = take_head();
    if (out.status == 0) return out;
    if (!has_body || out.status == 204 || out.status == 304) {
      out.complete = true;
    } else if (out.headers.contains("transfer-encoding")) {
      for (;;) {
        const std::string size_line = take_until("\r\n");
        if (size_line.empty()) return out;
        const std::size_t size = std::strtoul(size_line.c_str(), nullptr, 16);
        const std::string data = take_bytes(size + 2);
        if (data.size() < size + 2) return out;
        out.body.append(data, 0, size);
        if (size == 0) break;
      }
      out.complete = true;
    } else if (out.headers.contains("content-length")) {
      const std::size_t size = std::strtoul(out.header("content-length").c_str(), nullptr, 10);
      out.body = take_bytes(size);
      out.complete = out.body.size() == size;
    } else {
      out.body = take_all();
      out.complete = !reset_;
    }
    return out;
  }

  RawAnswer ask(std::string_view request) {
    send(request);
    return take_answer();
  }

 private:
  std::string take(std::size_t count) {
    std::string out = buffer_.substr(begin_, count);
    begin_ += count;
    return out;
  }

  OwnedFd socket_;
  std::string buffer_;
  std::size_t begin_ = 0;  // of what was not taken yet
  bool reset_ = false;
};

// A worker that the test plays itself: it accepts, reads and writes when the test says so.
class RawWorker {
 public:
  RawWorker() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&address), size), 0) << errno;
    EXPECT_EQ(listen(socket_.get(), 128), 0) << errno;
    getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  std::uint16_t port() const { return port_; }
  // The next connection, in the order in which they came.
  RawClient accept() const {
    pollfd entry{.fd = socket_.get(), .events = POLLIN, .revents = 0};
    EXPECT_EQ(poll(&entry, 1, 120'000), 1) << "no connection for two minutes";
    return RawClient(OwnedFd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC)));
  }
  // From now on connections are refused.
  void close() { socket_ = OwnedFd(); }

 private:
  OwnedFd socket_;
  std::uint16_t port_ = 0;
};

inline std::string get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: test\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& target, const std::string& body, const std::string& headers = "") {
  return "POST " + target + " HTTP/1.1\r\nHost: test\r\n" + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}
inline std::string as_chunks(const std::string& body, std::size_t chunk) {
  std::string out;
  for (std::size_t at = 0; at < body.size(); at += chunk) {
    const std::string part = body.substr(at, chunk);
    char size[32];
    std::snprintf(size, sizeof size, "%zX\r\n", part.size());
    out += size + part + "\r\n";
  }
  return out + "0\r\n\r\n";
}

// True when `condition` holds within two minutes.
inline bool comes_true(const std::function<bool()>& condition) {
  const auto give_up = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (!condition()) {
    if (std::chrono::steady_clock::now() >= give_up) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace ashlar::backend::http
