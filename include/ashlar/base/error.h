// Error: why an operation of the world failed, as a code for programs and a sentence for people.
//
// The sentence says what was wrong, with the value, and what to do about it.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>
#include <utility>

namespace ashlar {

enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // the request itself is wrong; repeating it cannot help
  kNotFound,         // nothing by that name
  kAlreadyExists,    // something by that name is there, and it is not the same thing
  kCapacity,         // no room now; less, or later, may succeed
  kNotReady,         // a condition the operation needs does not hold yet
  kTimeout,          // the deadline passed first
  kCancelled,        // somebody asked for the work to stop
  kCorruption,       // bytes do not agree with their checksum or identity
  kIo,               // the operating system or a device reported a failure
  kUnavailable,      // a service or peer cannot be reached
  kUnsupported,      // this build or machine cannot do it
  kInternal,         // a bug in Ashlar
};

// The code's name in snake_case, for logs and metrics.
std::string_view to_string(ErrorCode code) noexcept;

class [[nodiscard]] Error {
 public:
  Error(ErrorCode code, std::string message) : message_(std::move(message)), code_(code) {}

  ErrorCode code() const noexcept { return code_; }
  const std::string& message() const noexcept { return message_; }
  // "code: message".
  std::string to_string() const;

  friend bool operator==(const Error&, const Error&) = default;

 private:
  std::string message_;
  ErrorCode code_;
};

std::ostream& operator<<(std::ostream& out, const Error& error);

// An Error whose message is formatted as printf does.
Error make_error(ErrorCode code, const char* format, ...) __attribute__((format(printf, 2, 3)));

}  // namespace ashlar
