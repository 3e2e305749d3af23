#include "apps/ashlar/plain_http.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <future>
#include <memory>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

namespace ashlar::apps {
namespace {

class HttpSocket {
 public:
  explicit HttpSocket(int fd) noexcept : fd_(fd) {}
  HttpSocket(const HttpSocket&) = delete;
  HttpSocket& operator=(const HttpSocket&) = delete;
  ~HttpSocket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

using Deadline = std::chrono::steady_clock::time_point;

// False: not before the deadline.
bool is_ready(int socket, short events, Deadline deadline) {
  for (;;) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(
        std::max(deadline - std::chrono::steady_clock::now(), Deadline::duration::zero()));
    pollfd waiting{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 60'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
    if (left.count() == 0) return false;
  }
}

using Addresses = std::shared_ptr<addrinfo>;

Result<Addresses> look_up_address(const std::string& host, const std::string& port, int flags) {
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  wanted.ai_flags = flags;
  addrinfo* found = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), port.c_str(), &wanted, &found); failed != 0)
    return Error(ErrorCode::kUnavailable, gai_strerror(failed));
  return Addresses(found, freeaddrinfo);
}

// A resolver takes as long as it likes: it is left behind at the deadline. Errors: kUnavailable; kTimeout.
Result<Addresses> addresses_of(const std::string& host, const std::string& port, Deadline deadline) {
  if (auto found = look_up_address(host, port, AI_NUMERICHOST)) return found;
  std::packaged_task<Result<Addresses>()> task([host, port] { return look_up_address(host, port, 0); });
  std::future<Result<Addresses>> answer = task.get_future();
  std::thread(std::move(task)).detach();
  if (answer.wait_until(deadline) != std::future_status::ready)
    return Error(ErrorCode::kTimeout, "the name was not resolved in time");
  return answer.get();
}

std::string lower_case(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

// The value of a header; empty where there is none. `head` is in lower case.
std::string header_value(const std::string& head, const std::string& name) {
  const std::size_t at = head.find("\r\n" + name + ":");
  if (at == std::string::npos) return {};
  const std::size_t begin = head.find_first_not_of(" \t", at + name.size() + 3);
  return head.substr(begin, head.find("\r\n", begin) - begin);
}

}  // namespace

bool join_chunks(std::string_view in, std::string& out) {
  for (;;) {
    const std::size_t end = in.find("\r\n");
    if (end == std::string_view::npos) return false;
    std::size_t bytes = 0;
    if (std::from_chars(in.data(), in.data() + end, bytes, 16).ec != std::errc()) return false;
    in.remove_prefix(end + 2);
    if (bytes == 0) return true;
    if (bytes > in.size() || in.size() - bytes < 2) return false;
    out += in.substr(0, bytes);
    in.remove_prefix(bytes + 2);
  }
}

Result<PlainHttp> PlainHttp::parse(const std::string& url) {
  constexpr std::string_view kScheme = "http://";
  if (url.starts_with("https://"))
    return make_error(ErrorCode::kUnsupported,
                      "inspect speaks plain HTTP; ask from the machine of the service, or use curl");
  std::string_view rest = url;
  if (rest.starts_with(kScheme)) rest.remove_prefix(kScheme.size());
  if (rest.ends_with('/')) rest.remove_suffix(1);
  if (rest.find('@') != std::string_view::npos)
    return make_error(ErrorCode::kInvalidArgument, "the address has a user; a token goes into --token-file");
  if (rest.empty() || rest.find('/') != std::string_view::npos || rest.find('?') != std::string_view::npos)
    return make_error(ErrorCode::kInvalidArgument, "a service is named http://HOST:PORT, without a path");
  PlainHttp http;
  const std::size_t bracket = rest.find(']');
  const std::size_t colon = rest.find(':', bracket == std::string_view::npos ? 0 : bracket);
  http.host = std::string(rest.substr(0, colon));
  if (colon != std::string_view::npos) http.port = std::string(rest.substr(colon + 1));
  if (http.host.starts_with('[') && http.host.ends_with(']'))
    http.host = http.host.substr(1, http.host.size() - 2);
  std::uint16_t number = 0;
  const char* const end = http.port.data() + http.port.size();
  const auto read = std::from_chars(http.port.data(), end, number);
  if (http.host.empty() || read.ec != std::errc() || read.ptr != end || number == 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "the address has no host, or a port that is none from 1 to 65535");
  return http;
}

std::string PlainHttp::shown() const {
  return "http://" + (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" + port;
}

Result<std::string> PlainHttp::get(const std::string& target) const {
  const Result<Addresses> addresses = addresses_of(host, port, deadline);
  if (!addresses)
    return make_error(addresses.error().code(), "%s: %s", shown().c_str(),
                      addresses.error().message().c_str());
  std::string request =
      "GET " + target + " HTTP/1.1\r\nhost: " + shown().substr(7) + "\r\nconnection: close\r\n";
  if (!token.empty()) request += "x-ashlar-token: " + token + "\r\n";
  request += "\r\n";
  int error = 0;
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    const HttpSocket socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    if (socket.get() < 0) continue;
    if (connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS) {
      error = errno;
      continue;
    }
    socklen_t length = sizeof error;
    if (!is_ready(socket.get(), POLLOUT, deadline)) {
      error = ETIMEDOUT;
      continue;
    }
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) continue;
    std::string_view left = request;
    while (!left.empty() && is_ready(socket.get(), POLLOUT, deadline)) {
      const ssize_t sent = send(socket.get(), left.data(), left.size(), MSG_NOSIGNAL);
      if (sent < 0) break;
      left.remove_prefix(static_cast<std::size_t>(sent));
    }
    std::string answer;
    for (;;) {
      if (!is_ready(socket.get(), POLLIN, deadline))
        return make_error(ErrorCode::kTimeout, "%s%s: no whole answer in time", shown().c_str(),
                          target.c_str());
      char piece[16384];
      const ssize_t got = recv(socket.get(), piece, sizeof piece, 0);
      if (got <= 0) break;
      answer.append(piece, static_cast<std::size_t>(got));
      if (answer.size() > most_bytes)
        return make_error(ErrorCode::kCapacity, "%s%s: the answer is longer than %zu bytes", shown().c_str(),
                          target.c_str(), most_bytes);
    }
    const std::size_t head_end = answer.find("\r\n\r\n");
    if (!answer.starts_with("HTTP/1.") || head_end == std::string::npos || head_end < 12)
      return make_error(ErrorCode::kCorruption, "%s%s: no answer of HTTP; is it another kind of server?",
                        shown().c_str(), target.c_str());
    const std::string head = lower_case(answer.substr(0, head_end + 2));
    const std::string status = head.substr(9, 3);
    if (status == "401" || status == "403")
      return make_error(ErrorCode::kInvalidArgument,
                        "%s%s: the token is missing or wrong (status %s); name its file with --token-file",
                        shown().c_str(), target.c_str(), status.c_str());
    if (status != "200")
      return make_error(ErrorCode::kInvalidArgument, "%s%s: status %s; is it an ashlar serve?",
                        shown().c_str(), target.c_str(), status.c_str());
    std::string body = answer.substr(head_end + 4);
    const std::string length_text = header_value(head, "content-length");
    if (header_value(head, "transfer-encoding") == "chunked") {
      std::string joined;
      if (!join_chunks(body, joined))
        return make_error(ErrorCode::kCorruption, "%s%s: the answer was cut off", shown().c_str(),
                          target.c_str());
      return joined;
    }
    if (!length_text.empty() && length_text != std::to_string(body.size()))
      return make_error(ErrorCode::kCorruption, "%s%s: the answer was cut off: %zu bytes of %s",
                        shown().c_str(), target.c_str(), body.size(), length_text.c_str());
    return body;
  }
  return make_error(ErrorCode::kUnavailable, "%s: %s", shown().c_str(),
                    std::generic_category().message(error).c_str());
}

}  // namespace ashlar::apps
