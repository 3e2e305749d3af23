#include "client/plain_exchange.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <future>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::client {
namespace {

constexpr std::size_t kMostHead = 64 << 10;

class ExchangeSocket {
 public:
  explicit ExchangeSocket(int fd) noexcept : fd_(fd) {}
  ExchangeSocket(const ExchangeSocket&) = delete;
  ExchangeSocket& operator=(const ExchangeSocket&) = delete;
  ~ExchangeSocket() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

// False: not before the deadline.
bool is_ready(int socket, short events, std::chrono::steady_clock::time_point deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd waiting{.fd = socket, .events = events, .revents = 0};
    const int ready = poll(&waiting, 1, static_cast<int>(std::min<std::int64_t>(left.count(), 1'000'000)));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return true;  // the call behind it says what is wrong
  }
}

// The head of an answer: its status line and headers.
struct AnswerHead {
  int status = 0;
  std::size_t bytes = 0;  // with the empty line behind it
  bool chunked = false;
  std::optional<std::size_t> length;
};

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return lower;
}

// The value of a header; nullopt where there is none. `head` is in lower case.
std::optional<std::string_view> header_value(std::string_view head, std::string_view name) {
  for (std::size_t at = head.find("\r\n"); at != std::string_view::npos; at = head.find("\r\n", at)) {
    at += 2;
    const std::string_view line = head.substr(at, head.find("\r\n", at) - at);
    if (!line.starts_with(name) || line.substr(name.size(), 1) != ":") continue;
    std::string_view value = line.substr(name.size() + 1);
    while (!value.empty() && (value.front() == ' ' || value.front() == '\t')) value.remove_prefix(1);
    while (!value.empty() && (value.back() == ' ' || value.back() == '\t')) value.remove_suffix(1);
    return value;
  }
  return std::nullopt;
}

template <class Number>
bool read_decimal(std::string_view text, Number& out) {
  const auto read = std::from_chars(text.data(), text.data() + text.size(), out);
  return !text.empty() && read.ec == std::errc() && read.ptr == text.data() + text.size();
}

// nullopt: no head of HTTP.
std::optional<AnswerHead> parse_head(std::string_view bytes, std::size_t end) {
  const std::string head = lower_case(bytes.substr(0, end + 2));
  AnswerHead parsed;
  parsed.bytes = end + 4;
  if (!head.starts_with("http/1.") || head.size() < 12 || head[8] != ' ' ||
      !read_decimal(std::string_view(head).substr(9, 3), parsed.status) || parsed.status < 100)
    return std::nullopt;
  if (const auto value = header_value(head, "transfer-encoding")) {
    if (*value != "chunked") return std::nullopt;
    parsed.chunked = true;
  } else if (const auto length = header_value(head, "content-length")) {
    if (!read_decimal(*length, parsed.length.emplace(0))) return std::nullopt;
  }
  return parsed;
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

namespace {

// Reads answers from a connection, as far as the exchange allows.
class ExchangeReader {
 public:
  ExchangeReader(const PlainExchange& exchange, int socket) : exchange_(exchange), socket_(socket) {}

  Result<ServiceAnswer> read() {
    ASHLAR_TRY(AnswerHead head, read_head());
    while (head.status < 200) {  // an answer before the answer
      bytes_.erase(0, head.bytes);
      ASHLAR_TRY(head, read_head());
    }
    ServiceAnswer answer{.status = head.status, .body = {}};
    if (!exchange_.has_body || head.status == 204 || head.status == 304) return answer;
    if (head.chunked) {
      ASHLAR_RETURN_IF_ERROR(read_chunks(head.bytes, answer.body));
    } else {
      ASHLAR_RETURN_IF_ERROR(read_plain(head, answer.body));
    }
    return answer;
  }

 private:
  Error problem(ErrorCode code, const std::string& what) const {
    return make_error(code, "%s: %s", exchange_.shown.c_str(), what.c_str());
  }

  Result<AnswerHead> read_head() {
    for (;;) {
      const std::size_t end = bytes_.find("\r\n\r\n");
      if (end != std::string::npos && end <= kMostHead) {
        const auto head = parse_head(bytes_, end);
        if (head) return *head;
      }
      const bool starts_well = std::string_view("HTTP/1.").starts_with(std::string_view(bytes_).substr(0, 7));
      if (end != std::string::npos || bytes_.size() > kMostHead || ended_ || !starts_well)
        return problem(ErrorCode::kCorruption, "no answer of HTTP; is it another kind of server?");
      ASHLAR_RETURN_IF_ERROR(receive());
    }
  }

  Result<void> read_plain(const AnswerHead& head, std::string& body) {
    if (head.length && *head.length > exchange_.max_bytes) return too_long();
    while (!ended_ && (!head.length || bytes_.size() - head.bytes < *head.length)) {
      ASHLAR_RETURN_IF_ERROR(receive());
    }
    ASHLAR_DCHECK(bytes_.size() >= head.bytes, "a head of %zu bytes in %zu", head.bytes, bytes_.size());
    const std::size_t got = bytes_.size() - head.bytes;
    if (head.length && got < *head.length)
      return problem(ErrorCode::kCorruption, "the answer was cut off: " + std::to_string(got) + " bytes of " +
                                                 std::to_string(*head.length));
    body = bytes_.substr(head.bytes, head.length.value_or(got));
    return {};
  }

  // Up to the last chunk. Chunks are joined when they seem complete, so that each byte is looked at once.
  Result<void> read_chunks(std::size_t from, std::string& body) {
    for (;;) {
      if (ended_ || bytes_.ends_with("0\r\n\r\n")) {
        body.clear();
        if (join_chunks(std::string_view(bytes_).substr(from), body)) return {};
      }
      if (ended_) return problem(ErrorCode::kCorruption, "the answer was cut off");
      ASHLAR_RETURN_IF_ERROR(receive());
    }
  }

  Error too_long() const {
    return problem(ErrorCode::kCapacity,
                   "the answer is longer than " + std::to_string(exchange_.max_bytes) + " bytes");
  }

  // The next bytes, or the end.
  Result<void> receive() {
    ASHLAR_DCHECK(!ended_, "%s: read behind its end", exchange_.shown.c_str());
    for (;;) {
      if (!is_ready(socket_, POLLIN, exchange_.deadline))
        return problem(ErrorCode::kTimeout, "no whole answer in time");
      char piece[16384];
      const ssize_t got = recv(socket_, piece, sizeof piece, 0);
      if (got < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
      if (got < 0)  // a part of an answer without a length would pass for the whole
        return problem(ErrorCode::kCorruption,
                       "the answer was cut off: " + std::generic_category().message(errno));
      if (got == 0) {
        ended_ = true;
        return {};
      }
      if (bytes_.size() + static_cast<std::size_t>(got) > exchange_.max_bytes) return too_long();
      bytes_.append(piece, static_cast<std::size_t>(got));
      return {};
    }
  }

  const PlainExchange& exchange_;
  int socket_;
  std::string bytes_;
  bool ended_ = false;
};

// Sends as much as the other side takes; what it does not take shows in its answer. False: too late.
bool send_all(int socket, std::string_view left, std::chrono::steady_clock::time_point deadline) {
  while (!left.empty()) {
    if (!is_ready(socket, POLLOUT, deadline)) return false;
    const ssize_t sent = send(socket, left.data(), left.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EINTR || errno == EAGAIN || errno == EWOULDBLOCK)) continue;
    if (sent < 0) return true;
    left.remove_prefix(static_cast<std::size_t>(sent));
  }
  return true;
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

// Names that are being looked up in this process, those that were left behind included.
std::atomic<int> look_ups{0};
constexpr int kMostLookUps = 4;

class LookUpTurn {
 public:
  LookUpTurn() noexcept : taken_(look_ups.fetch_add(1, std::memory_order_relaxed) < kMostLookUps) {
    if (!taken_) look_ups.fetch_sub(1, std::memory_order_relaxed);
  }
  LookUpTurn(LookUpTurn&& other) noexcept : taken_(std::exchange(other.taken_, false)) {}
  LookUpTurn& operator=(LookUpTurn&&) = delete;
  ~LookUpTurn() {
    if (taken_) look_ups.fetch_sub(1, std::memory_order_relaxed);
  }
  explicit operator bool() const noexcept { return taken_; }

 private:
  bool taken_;
};

// A resolver takes as long as it likes: it is left behind at the deadline. Errors: kUnavailable; kTimeout;
// kCapacity: no thread, or too many that do not end.
Result<Addresses> addresses_of(const std::string& host, const std::string& port,
                               std::chrono::steady_clock::time_point deadline) {
  if (auto found = look_up_address(host, port, AI_NUMERICHOST)) return found;
  LookUpTurn turn;
  if (!turn)
    return make_error(ErrorCode::kCapacity,
                      "%d names are being looked up already; try again, or give an address in numbers",
                      kMostLookUps);
  std::packaged_task<Result<Addresses>()> task([host, port, its = std::move(turn)]() mutable {
    Result<Addresses> found = look_up_address(host, port, 0);
    const LookUpTurn ended = std::move(its);  // before the answer is seen
    return found;
  });
  std::future<Result<Addresses>> answer = task.get_future();
  try {
    std::thread(std::move(task)).detach();
  } catch (const std::system_error&) {
    return Error(ErrorCode::kCapacity, "no thread to look up the name with");
  }
  if (answer.wait_until(deadline) != std::future_status::ready)
    return Error(ErrorCode::kTimeout, "the name was not resolved in time");
  return answer.get();
}

// When to give up this address: those behind it get as much time each.
std::chrono::steady_clock::time_point share_of(const addrinfo& address,
                                               std::chrono::steady_clock::time_point deadline) {
  if (address.ai_next == nullptr) return deadline;
  int left = 0;
  for (const addrinfo* at = &address; at != nullptr; at = at->ai_next) ++left;
  const auto now = std::chrono::steady_clock::now();
  return now + (deadline - now) / left;
}

}  // namespace

Result<ServiceAnswer> PlainExchange::run(std::string_view request) const {
  ASHLAR_DCHECK(!host.empty() && max_bytes != 0, "an exchange with %s without limits", service.c_str());
  const Result<Addresses> addresses = addresses_of(host, port, deadline);
  if (!addresses)
    return make_error(addresses.error().code(), "%s: %s", service.c_str(),
                      addresses.error().message().c_str());
  int error = 0;
  bool late = false;
  for (const addrinfo* address = addresses->get(); address != nullptr; address = address->ai_next) {
    late = false;
    const ExchangeSocket socket(
        ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, address->ai_protocol));
    if (socket.get() < 0) {
      error = errno;
      continue;
    }
    if (connect(socket.get(), address->ai_addr, address->ai_addrlen) != 0 && errno != EINPROGRESS) {
      error = errno;
      continue;
    }
    late = !is_ready(socket.get(), POLLOUT, share_of(*address, deadline));
    if (late) continue;
    socklen_t length = sizeof error;
    if (getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0 || error != 0) continue;
    if (!send_all(socket.get(), request, deadline))
      return make_error(ErrorCode::kTimeout, "%s: the request was not taken in time", shown.c_str());
    return ExchangeReader(*this, socket.get()).read();
  }
  if (late) return make_error(ErrorCode::kTimeout, "%s: no connection in time", service.c_str());
  return make_error(ErrorCode::kUnavailable, "%s: %s", service.c_str(),
                    std::generic_category().message(error).c_str());
}

}  // namespace ashlar::client
