// HttpClient: a small blocking client of HTTP/1.1 for tests, over plain sockets. It keeps its connection from
// request to request, hands out a streamed body as it comes, and can leave in the middle.
//
//   HttpClient client(port);
//   const HttpAnswer answer = client.request("POST", "/v1/completions", R"({"prompt":"a"})");
//
// Thread safety: thread-compatible.
#pragma once

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "support/server.h"

namespace ashlar::testing {

struct HttpAnswer {
  int status = 0;  // 0: no answer came
  std::vector<std::pair<std::string, std::string>> headers;
  std::string body;          // without the framing of chunks
  bool is_complete = false;  // it ended as its framing says

  // By any case of the name; empty where there is none.
  std::string header(std::string_view name) const {
    const auto same = [](char a, char b) {
      return std::tolower(static_cast<unsigned char>(a)) == std::tolower(static_cast<unsigned char>(b));
    };
    for (const auto& [key, value] : headers)
      if (std::equal(key.begin(), key.end(), name.begin(), name.end(), same)) return value;
    return {};
  }
};

class HttpClient {
 public:
  using Headers = std::vector<std::pair<std::string, std::string>>;
  // A piece of the body, as it comes. False: leave, and close the connection.
  using OnBody = std::function<bool(std::string_view)>;

  explicit HttpClient(int port) : port_(port) {}

  // Waits for the whole answer, two minutes at most between two bytes of it.
  HttpAnswer request(std::string_view method, std::string_view target, std::string_view body = {},
                     const Headers& headers = {}, const OnBody& on_body = {}) {
    std::string text = std::string(method) + " " + std::string(target) + " HTTP/1.1\r\nHost: localhost\r\n";
    for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
    if (!body.empty() || method == "POST") text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
    text += "\r\n" + std::string(body);
    const bool is_kept = socket_.get() >= 0;
    HttpAnswer answer;
    if (exchange(text, on_body, answer)) return answer;
    close();
    // The server may have closed a kept connection meanwhile.
    if (is_kept && answer.status == 0) {
      answer = {};
      if (!exchange(text, on_body, answer)) close();
    }
    return answer;
  }
  HttpAnswer get(std::string_view target) { return request("GET", target); }
  HttpAnswer post(std::string_view target, std::string_view body, const Headers& headers = {}) {
    return request("POST", target, body, headers);
  }

  // Bytes as they are, for requests that are wrong. False: the connection is gone.
  bool send(std::string_view bytes) {
    if (socket_.get() < 0 && !connect()) return false;
    for (std::size_t at = 0; at < bytes.size();) {
      const ssize_t sent = ::send(socket_.get(), bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (sent < 0 && errno == EINTR) continue;
      if (sent <= 0) return false;
      at += static_cast<std::size_t>(sent);
    }
    return true;
  }
  // The answer to bytes that were sent.
  HttpAnswer receive(const OnBody& on_body = {}) {
    HttpAnswer answer;
    if (!read_answer(on_body, answer)) close();
    return answer;
  }
  bool is_connected() const noexcept { return socket_.get() >= 0; }
  void close() {
    socket_.close();
    unread_.clear();
  }

 private:
  bool connect() {
    unread_.clear();
    socket_ = connect_to(port_);
    const timeval patience{.tv_sec = 120, .tv_usec = 0};
    return socket_.get() >= 0 &&
           setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) == 0;
  }
  // False: the connection cannot be used again.
  bool exchange(std::string_view text, const OnBody& on_body, HttpAnswer& answer) {
    return send(text) && read_answer(on_body, answer);
  }

  bool more() {
    std::vector<char> bytes(16 * 1024);
    ssize_t got = -1;
    do {
      got = recv(socket_.get(), bytes.data(), bytes.size(), 0);
    } while (got < 0 && errno == EINTR);
    if (got <= 0) return false;
    unread_.append(bytes.data(), static_cast<std::size_t>(got));
    return true;
  }
  bool read_line(std::string& line) {
    std::size_t end = 0;
    while ((end = unread_.find("\r\n")) == std::string::npos)
      if (!more()) return false;
    line = unread_.substr(0, end);
    unread_.erase(0, end + 2);
    return true;
  }
  // So many bytes of the body.
  bool read_body(std::size_t left, const OnBody& on_body, HttpAnswer& answer) {
    while (left > 0) {
      if (unread_.empty() && !more()) return false;
      const std::string piece = unread_.substr(0, left);
      unread_.erase(0, piece.size());
      left -= piece.size();
      answer.body += piece;
      if (on_body && !on_body(piece)) return false;
    }
    return true;
  }
  bool read_head(HttpAnswer& answer) {
    std::string line;
    if (!read_line(line) || line.size() < 12 || !line.starts_with("HTTP/1.")) return false;
    answer.status = std::atoi(line.c_str() + 9);
    while (read_line(line)) {
      if (line.empty()) return true;
      const std::size_t colon = std::min(line.find(':'), line.size());
      const std::size_t value = std::min(line.find_first_not_of(" \t", colon + 1), line.size());
      answer.headers.emplace_back(line.substr(0, colon), line.substr(value));
    }
    return false;
  }
  bool read_answer(const OnBody& on_body, HttpAnswer& answer) {
    do {
      answer = {};
      if (!read_head(answer)) return false;
    } while (answer.status == 100);
    if (answer.header("transfer-encoding").find("chunked") != std::string::npos) {
      std::string line;
      for (std::size_t size = 1; size > 0;) {
        if (!read_line(line)) return false;
        size = std::strtoull(line.c_str(), nullptr, 16);
        if (!read_body(size, on_body, answer)) return false;
        if (size > 0 && (!read_line(line) || !line.empty())) return false;
      }
      do {  // trailers
        if (!read_line(line)) return false;
      } while (!line.empty());
    } else if (const std::string length = answer.header("content-length"); !length.empty()) {
      if (!read_body(std::strtoull(length.c_str(), nullptr, 10), on_body, answer)) return false;
    } else if (answer.status != 204 && answer.status != 304) {
      while (read_body(1, on_body, answer)) continue;  // to the end of the connection
      answer.is_complete = true;
      return false;
    }
    answer.is_complete = true;
    return answer.header("connection") != "close";
  }

  const int port_;
  TestSocket socket_;
  std::string unread_;
};

// The data of a stream of events, one by one.
inline std::vector<std::string> events_of(std::string_view body) {
  std::vector<std::string> events;
  for (std::size_t at = 0; at < body.size();) {
    const std::size_t end = std::min(body.find('\n', at), body.size());
    const std::string_view line = body.substr(at, end - at);
    if (line.starts_with("data: ")) events.emplace_back(line.substr(6));
    at = end + 1;
  }
  return events;
}

}  // namespace ashlar::testing
