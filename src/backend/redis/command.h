// A command to the server and its reply, in RESP2.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>

namespace ashlar::backend::redis {

// Error text for a value larger than the server accepts.
inline constexpr const char* kTooLarge = "TOOLARGE";

struct RedisReply {
  enum class Kind : std::uint8_t {
    kMissing,    // no reply came
    kStatus,     // text
    kError,      // text: only its first word; servers repeat arguments in the rest
    kInteger,    // number
    kValue,      // the bytes are in Command::parts
    kOtherSize,  // a value of `number` bytes, not Command::expected
    kNothing,    // no value
  };
  Kind kind = Kind::kMissing;
  std::string text = {};
  std::int64_t number = 0;
};

// On the wire: head, the bytes of value, tail.
struct Command {
  std::string head;
  std::span<const std::span<const std::byte>> value = {};
  std::string tail = {};
  bool expects_value = false;
  std::span<const std::span<std::byte>> parts = {};  // destination of a value,
  std::uint64_t expected = 0;                        // and its total size
  RedisReply reply = {};

  bool answered() const noexcept { return reply.kind != RedisReply::Kind::kMissing; }
};

inline void append_argument(std::string& out, std::string_view argument) {
  out.append("$").append(std::to_string(argument.size())).append("\r\n").append(argument).append("\r\n");
}

inline std::string encode(std::initializer_list<std::string_view> arguments) {
  std::string out = "*" + std::to_string(arguments.size()) + "\r\n";
  for (const std::string_view argument : arguments) append_argument(out, argument);
  return out;
}

// A time to live of 0 means none.
inline Command set_command(std::string_view key, std::span<const std::span<const std::byte>> value,
                           std::uint64_t size, std::uint64_t ttl_seconds) {
  Command command{.head = ttl_seconds == 0 ? "*3\r\n" : "*5\r\n", .value = value, .tail = "\r\n"};
  append_argument(command.head, "SET");
  append_argument(command.head, key);
  command.head += "$" + std::to_string(size) + "\r\n";
  if (ttl_seconds > 0) {
    append_argument(command.tail, "EX");
    append_argument(command.tail, std::to_string(ttl_seconds));
  }
  return command;
}

}  // namespace ashlar::backend::redis
