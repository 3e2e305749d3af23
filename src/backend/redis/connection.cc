#include "backend/redis/connection.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"

namespace ashlar::backend::redis {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::size_t kPieces = 64;                           // per sendmsg() and readv() call
constexpr std::uint64_t kWindow = 64ULL * 1024 * 1024;        // of expected bytes
constexpr std::uint64_t kWorthReading = 16ULL * 1024 * 1024;  // of a value to discard
static_assert(kWorthReading <= kWindow, "a discarded value reads no more than an expected one");

std::string message_of(int error) {
  return std::generic_category().message(error);
}

// The word that names the error: "OOM", "WRONGPASS".
std::string first_word(std::string_view text) {
  const std::size_t end = std::min(text.find(' '), text.size());
  std::string word(text.substr(0, std::min<std::size_t>(end, 32)));
  std::ranges::replace_if(word, [](char c) { return c < '!' || c > '~'; }, '?');
  return word;
}

}  // namespace

RedisConnection::RedisConnection(const RedisOptions& options, redisContext* context) noexcept
    : options_(options), context_(context) {}

Result<std::unique_ptr<RedisConnection>> RedisConnection::connect(const RedisOptions& options,
                                                                  const Limits& limits) {
  ASHLAR_RETURN_IF_ERROR(limits.check());
  redisContext* const context = options.socket.empty()
                                    ? redisConnectNonBlock(options.host.c_str(), options.port)
                                    : redisConnectUnixNonBlock(options.socket.c_str());
  std::unique_ptr<RedisConnection> made(new RedisConnection(options, context));
  if (context == nullptr)
    return make_error(ErrorCode::kUnavailable, "%s: no memory for a connection", options.describe().c_str());
  if (context->err != 0)
    return make_error(ErrorCode::kUnavailable, "%s: cannot connect: %s", options.describe().c_str(),
                      context->errstr);
  ASHLAR_RETURN_IF_ERROR(made->finish_connecting(limits));
  ASHLAR_RETURN_IF_ERROR(made->introduce(limits));
  return made;
}

Result<void> RedisConnection::finish_connecting(const Limits& limits) {
  const steady_clock::time_point end = steady_clock::now() + options_.connect_timeout;
  for (;;) {
    ASHLAR_RETURN_IF_ERROR(limits.check());
    const auto left = std::chrono::ceil<milliseconds>(end - steady_clock::now());
    if (left.count() <= 0) return broken("cannot connect within connect_timeout_ms");
    pollfd about{.fd = context_->fd, .events = POLLOUT, .revents = 0};
    const int ready = limits.wait(about, left);
    if (ready < 0 && errno != EINTR) return broken(message_of(errno).c_str());
    if (ready > 0) break;
  }
  int error = 0;
  socklen_t size = sizeof error;
  if (getsockopt(context_->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) return broken(("cannot connect: " + message_of(error)).c_str());
  return {};
}

Result<void> RedisConnection::introduce(const Limits& limits) {
  std::vector<Command> commands;
  if (!options_.username.empty()) {
    commands.push_back({.head = encode({"AUTH", options_.username, options_.password})});
  } else if (!options_.password.empty()) {
    commands.push_back({.head = encode({"AUTH", options_.password})});
  }
  if (options_.db != 0) commands.push_back({.head = encode({"SELECT", std::to_string(options_.db)})});
  if (commands.empty()) return {};
  std::vector<Command*> pointers;
  pointers.reserve(commands.size());
  for (Command& command : commands) pointers.push_back(&command);
  ASHLAR_RETURN_IF_ERROR(exchange(pointers, limits));
  for (const Command& command : commands) {
    if (command.reply.kind == RedisReply::Kind::kStatus) continue;
    const bool later = command.reply.text == "LOADING" || command.reply.text == "MASTERDOWN";
    return make_error(later ? ErrorCode::kUnavailable : ErrorCode::kIo, "%s: the server answered %s%s",
                      options_.describe().c_str(), command.reply.text.c_str(),
                      later ? "" : "; check the options username, password and db");
  }
  return {};
}

Error RedisConnection::broken(const char* what) const {
  return make_error(ErrorCode::kUnavailable, "%s: %s", options_.describe().c_str(), what);
}

bool RedisConnection::is_quiet() const {
  pollfd about{.fd = context_->fd, .events = POLLIN, .revents = 0};
  return poll(&about, 1, 0) == 0;
}

Result<void> RedisConnection::exchange(std::span<Command* const> commands, const Limits& limits) {
  for (const Command* const command : commands)
    ASHLAR_DCHECK(!command->answered(), "a command is sent again though it was answered");
  ASHLAR_DCHECK(phase_ == Phase::kLine && begin_ == end_, "%zu bytes are left of an earlier exchange",
                end_ - begin_);
  commands_ = commands;
  cursor_ = {};
  reading_ = 0;
  expected_ = 0;
  last_answer_ = steady_clock::now();
  steady_clock::time_point last_byte = last_answer_;
  while (reading_ < commands_.size()) {
    ASHLAR_RETURN_IF_ERROR(limits.check());
    const bool writing = may_write();
    pollfd about{
        .fd = context_->fd, .events = static_cast<short>(writing ? POLLIN | POLLOUT : POLLIN), .revents = 0};
    const auto left = std::chrono::ceil<milliseconds>(last_answer_ + options_.deadline - steady_clock::now());
    if (left.count() <= 0) return broken("no object was answered within deadline_ms");
    const milliseconds silence =
        std::chrono::ceil<milliseconds>(last_byte + options_.timeout - steady_clock::now());
    if (silence.count() <= 0) return broken("the server is silent for longer than timeout_ms");
    const int ready = limits.wait(about, std::min(left, silence));
    if (ready < 0 && errno == EINTR) continue;
    if (ready < 0) return broken(message_of(errno).c_str());
    if (ready == 0) continue;
    last_byte = steady_clock::now();
    if ((about.revents & (POLLIN | POLLHUP | POLLERR)) != 0) {
      ASHLAR_RETURN_IF_ERROR(read_some());
    }
    if ((about.revents & POLLOUT) != 0 && may_write()) {
      ASHLAR_RETURN_IF_ERROR(write_some());
    }
  }
  if (begin_ != end_) return broken("the server sent unsolicited data");
  return {};
}

// A partly written command must continue; the next one waits until there is room for its reply.
bool RedisConnection::may_write() const {
  if (cursor_.command >= commands_.size()) return false;
  if (cursor_.piece > 0 || cursor_.byte > 0 || cursor_.command == reading_) return true;
  return cursor_.command - reading_ < options_.pipeline &&
         expected_ + commands_[cursor_.command]->expected <= kWindow;
}

std::span<const std::byte> RedisConnection::piece(const Cursor& cursor) const {
  const Command& command = *commands_[cursor.command];
  if (cursor.piece == 0) return std::as_bytes(std::span(command.head)).subspan(cursor.byte);
  if (cursor.piece <= command.value.size()) return command.value[cursor.piece - 1].subspan(cursor.byte);
  return std::as_bytes(std::span(command.tail)).subspan(cursor.byte);
}

void RedisConnection::advance(Cursor& cursor, std::size_t bytes) const {
  cursor.byte += bytes;
  if (!piece(cursor).empty()) return;
  cursor.byte = 0;
  if (++cursor.piece < commands_[cursor.command]->value.size() + 2) return;
  cursor.piece = 0;
  ++cursor.command;
}

Result<void> RedisConnection::write_some() {
  std::array<iovec, kPieces> pieces{};
  std::size_t count = 0;
  std::uint64_t expected = expected_;
  for (Cursor at = cursor_; at.command < commands_.size() && count < pieces.size();) {
    const bool fresh = at.piece == 0 && at.byte == 0;
    const std::uint64_t room = commands_[at.command]->expected;
    if (fresh && at.command != reading_ &&
        (at.command - reading_ >= options_.pipeline || expected + room > kWindow))
      break;
    if (fresh) expected += room;
    const std::span<const std::byte> bytes = piece(at);
    if (!bytes.empty())
      pieces[count++] = {.iov_base = const_cast<std::byte*>(bytes.data()), .iov_len = bytes.size()};
    advance(at, bytes.size());
  }
  msghdr message{};
  message.msg_iov = pieces.data();
  message.msg_iovlen = count;
  const ssize_t sent = sendmsg(context_->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  if (sent < 0) {
    const Error error = broken(message_of(errno).c_str());
    // A server that closes may have sent the reason.
    ASHLAR_RETURN_IF_ERROR(read_some());
    return error;
  }
  auto left = static_cast<std::size_t>(sent);
  while (cursor_.command < commands_.size()) {
    const std::size_t here = piece(cursor_).size();
    if (left == 0 && here > 0) break;
    if (cursor_.piece == 0 && cursor_.byte == 0) expected_ += commands_[cursor_.command]->expected;
    const std::size_t now = std::min(left, here);
    left -= now;
    advance(cursor_, now);
  }
  ASHLAR_CHECK(left == 0, "the socket took %zu bytes more than it was given", left);
  return {};
}

Result<void> RedisConnection::read_some() {
  const bool straight = phase_ == Phase::kValue && begin_ == end_ && place_.left() > 0;
  if (!straight && begin_ > 0) {
    std::memmove(buffer_.data(), buffer_.data() + begin_, end_ - begin_);
    end_ -= std::exchange(begin_, 0);
  }
  std::array<iovec, kPieces> pieces{};
  std::size_t count = 1;
  if (straight) {
    count = place_.gather(pieces, place_.left());
  } else {
    pieces[0] = {.iov_base = buffer_.data() + end_, .iov_len = buffer_.size() - end_};
  }
  const ssize_t got = readv(context_->fd, pieces.data(), static_cast<int>(count));  // non-blocking
  if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return {};
  if (got < 0) return broken(message_of(errno).c_str());
  if (got == 0) return broken("the server closed the connection");
  const auto bytes = static_cast<std::size_t>(got);
  if (straight) {
    ASHLAR_CHECK(bytes <= value_left_, "%zu bytes were read into a value that lacks %llu", bytes,
                 static_cast<unsigned long long>(value_left_));
    place_.pass(bytes);
    value_left_ -= bytes;
  } else {
    end_ += bytes;
  }
  return parse();
}

// Takes the complete replies out of the buffer.
Result<void> RedisConnection::parse() {
  while (true) {
    ASHLAR_DCHECK(phase_ != Phase::kValue || place_.left() == 0 || place_.left() == value_left_,
                  "%llu bytes of a value are to come, and room is left for %llu",
                  static_cast<unsigned long long>(value_left_),
                  static_cast<unsigned long long>(place_.left()));
    if (phase_ == Phase::kValue) {
      const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(value_left_, end_ - begin_));
      if (place_.left() > 0) place_.copy(std::as_bytes(std::span(buffer_.data() + begin_, now)));
      begin_ += now;
      value_left_ -= now;
      if (value_left_ > 0) return {};
      phase_ = Phase::kValueEnd;
    }
    if (phase_ == Phase::kValueEnd) {
      if (end_ - begin_ < 2) return {};
      if (buffer_[begin_] != '\r' || buffer_[begin_ + 1] != '\n')
        return broken("a value does not end where it says");
      begin_ += 2;
      phase_ = Phase::kLine;
      RedisReply& reply = commands_[reading_]->reply;
      if (reply.number == static_cast<std::int64_t>(commands_[reading_]->expected)) {
        reply.kind = RedisReply::Kind::kValue;
      } else {
        reply.kind = RedisReply::Kind::kOtherSize;
      }
      answered();
    }
    ASHLAR_TRY(const bool more, parse_line());
    if (!more) return {};
  }
}

// True when a line was taken.
Result<bool> RedisConnection::parse_line() {
  const std::string_view unread(buffer_.data() + begin_, end_ - begin_);
  if (unread.empty()) return false;
  // A reply may precede the end of its command if it closes the connection.
  const bool asked = reading_ < cursor_.command;
  const bool half_sent = reading_ == cursor_.command && (cursor_.piece > 0 || cursor_.byte > 0);
  if (!asked && !half_sent) return broken("the server sent an unsolicited reply");
  const std::size_t end = unread.find("\r\n");
  if (end == std::string_view::npos) {
    if (unread.size() == buffer_.size()) return broken("the server sent a line without an end");
    return false;
  }
  const std::string_view line = unread.substr(0, end + 2);
  begin_ += line.size();
  constexpr std::string_view kRefusal = "-ERR Protocol error";
  if (line.starts_with(kRefusal)) {
    const bool size = line.find("bulk length") != std::string_view::npos;
    commands_[reading_]->reply = {.kind = RedisReply::Kind::kError, .text = size ? kTooLarge : "ERR"};
    answered();
    return broken("the server refused a command and closes the connection");
  }
  if (!asked) return broken("the server answered before it was asked");
  if (line.front() != '$') {
    ASHLAR_RETURN_IF_ERROR(read_plain(line));
    answered();
    return true;
  }
  std::int64_t size = 0;
  const auto [stop, error] = std::from_chars(line.data() + 1, line.data() + end, size);
  if (error != std::errc() || stop != line.data() + end || size < -1 || !commands_[reading_]->expects_value)
    return broken("the server sent an unsolicited value, or one without a size");
  if (size == -1) {
    commands_[reading_]->reply.kind = RedisReply::Kind::kNothing;
    answered();
    return true;
  }
  ASHLAR_RETURN_IF_ERROR(begin_value(size));
  return true;
}

Result<void> RedisConnection::begin_value(std::int64_t size) {
  Command& command = *commands_[reading_];
  value_left_ = static_cast<std::uint64_t>(size);
  command.reply.number = size;
  phase_ = Phase::kValue;
  const bool fits = value_left_ == command.expected;
  place_ = fits ? storage::PartsCursor<std::byte>(command.parts) : storage::PartsCursor<std::byte>();
  if (!fits && value_left_ > kWorthReading) {
    command.reply.kind = RedisReply::Kind::kOtherSize;
    answered();
    return broken("a value is larger than expected, and not worth reading to its end");
  }
  return {};
}

// Parses non-values: a status, an error, a number. Of a list, which no command here expects, only the first
// line is read: no memory is allocated for its announced elements.
Result<void> RedisConnection::read_plain(std::string_view line) {
  const std::string_view text = line.substr(1, line.size() - 3);
  RedisReply& answer = commands_[reading_]->reply;
  switch (line.front()) {
    case '+':
      answer = {.kind = RedisReply::Kind::kStatus, .text = std::string(text)};
      return {};
    case '-':
      answer = {.kind = RedisReply::Kind::kError, .text = first_word(text)};
      return {};
    case ':': {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || end != text.data() + text.size())
        return broken("the server does not speak the protocol");
      answer = {.kind = RedisReply::Kind::kInteger, .number = number};
      return {};
    }
    case '*':
      return broken("the server answered with a list, which was not asked for");
    default:
      return broken("the server does not speak the protocol");
  }
}

void RedisConnection::answered() {
  ASHLAR_CHECK(reading_ <= cursor_.command, "reply %zu is taken, and only %zu commands were sent", reading_,
               cursor_.command);
  expected_ -= std::min<std::uint64_t>(expected_, commands_[reading_]->expected);
  ++reading_;
  last_answer_ = steady_clock::now();
}

}  // namespace ashlar::backend::redis
