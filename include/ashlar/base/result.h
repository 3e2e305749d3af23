// Result<T, E>: a value or the reason there is none, with the names of std::expected.
//
// Failures of the world travel as Result; the library throws nothing across its interface. A Result cannot be
// ignored. Reading the value of an error is a programmer error: it prints the error and stops the process. So
// does reading the error of a value.
//
//   ASHLAR_TRY(auto file, open(path));            declares `file`, or returns the error of open()
//   ASHLAR_RETURN_IF_ERROR(file.write(bytes));    the same for a Result without a value
//
// Error: why an operation failed, as a code for programs and a sentence for people. The sentence says what
// was wrong, with the value, and what to do about it.
//
// unless_out_of_memory() turns a failed allocation into a refusal.
//
// Thread safety: thread-compatible.
// Complexity:    O(1). A Result stores its value or its error in place; an Error owns one string.
// Invariant:     a Result holds a value or an error, never both and never neither.
#pragma once

#include <concepts>
#include <cstdint>
#include <new>
#include <ostream>
#include <source_location>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar {

// The kinds of failure, by what a caller can do about them.
enum class ErrorCode : std::uint8_t {
  kInvalidArgument,  // the request itself is wrong; repeating it cannot help
  kNotFound,         // nothing by that name
  kAlreadyExists,    // that name is taken by something else
  kCapacity,         // no room now; less, or later, may succeed
  kNotReady,         // a condition the operation needs does not hold yet
  kTimeout,          // the deadline passed first
  kCancelled,        // the caller asked for the work to stop
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

  // For programs: decide by the code, never by the text.
  ErrorCode code() const noexcept { return code_; }
  // For people: one sentence, without the code.
  const std::string& message() const noexcept { return message_; }
  // "code: message".
  std::string to_string() const;

  friend bool operator==(const Error&, const Error&) = default;

 private:
  std::string message_;
  ErrorCode code_;
};

std::ostream& operator<<(std::ostream& out, const Error& error);

// An Error with a printf-formatted message.
Error make_error(ErrorCode code, const char* format, ...) __attribute__((format(printf, 2, 3)));

// Carries an error into a Result, so that Result<T, E> is unambiguous when T and E are alike. ASHLAR_TRY
// returns it too, so that the caller's error type may be any that the error converts to.
template <class E>
class Unexpected {
 public:
  explicit Unexpected(E error) : error_(std::move(error)) {}
  E& error() & noexcept { return error_; }
  const E& error() const& noexcept { return error_; }
  E&& error() && noexcept { return std::move(error_); }

 private:
  E error_;
};
template <class E>
Unexpected(E) -> Unexpected<E>;

namespace detail {

// Prints the error of a Result whose value was requested, and the location of the request; then aborts.
[[noreturn]] void value_of_error(const std::string& error, const std::source_location& where);
// The same where the location is not known: operator* and operator-> take no argument.
[[noreturn]] void value_of_error(const std::string& error);

// The text of an error of any type.
template <class E>
std::string describe_error(const E& error) {
  if constexpr (requires { error.to_string(); }) {
    return error.to_string();
  } else if constexpr (requires { error.error.to_string(); }) {  // Rejected, and errors around an Error
    return error.error.to_string();
  } else {
    return "an error without a text";
  }
}

// One of two, and which. What std::variant does, in a tenth of the time that it takes to compile: a Result is
// in every file.
template <class T, class E>
class Either {
 public:
  template <class U>
  Either(std::in_place_index_t<0>, U&& value) : value_(std::forward<U>(value)), first_(true) {}
  template <class U>
  Either(std::in_place_index_t<1>, U&& error) : error_(std::forward<U>(error)), first_(false) {}
  Either(const Either& other)
    requires(std::is_copy_constructible_v<T> && std::is_copy_constructible_v<E>)
      : first_(other.first_) {
    take(other);
  }
  Either(Either&& other) noexcept : first_(other.first_) { take(std::move(other)); }
  Either& operator=(const Either& other)
    requires(std::is_copy_constructible_v<T> && std::is_copy_constructible_v<E>)
  {
    return *this = Either(other);
  }
  Either& operator=(Either&& other) noexcept {
    if (this == &other) return *this;
    this->~Either();
    first_ = other.first_;
    take(std::move(other));
    return *this;
  }
  ~Either() {
    if (first_) {
      value_.~T();
    } else {
      error_.~E();
    }
  }

  bool is_first() const noexcept { return first_; }
  // Requires: it is the one that is asked for.
  T* first() noexcept { return &value_; }
  E* second() noexcept { return &error_; }
  const E* second() const noexcept { return &error_; }

 private:
  template <class Other>
  void take(Other&& other) {
    if (first_) {
      ::new (static_cast<void*>(&value_)) T(std::forward<Other>(other).value_);
    } else {
      ::new (static_cast<void*>(&error_)) E(std::forward<Other>(other).error_);
    }
  }

  union {
    T value_;
    E error_;
  };
  bool first_;
};

struct Nothing {};

}  // namespace detail

// A value of type T, or an error of type E. A function that fails returns the error itself, or
// Unexpected(error) where T and E are alike.
template <class T, class E = Error>
class [[nodiscard]] Result {
 public:
  using value_type = T;
  using error_type = E;
  using Where = std::source_location;

  Result(T value)  // NOLINT(google-explicit-constructor)
      : state_(std::in_place_index<0>, std::move(value)) {}
  template <class G>
    requires std::convertible_to<G, E>
  Result(Unexpected<G> error) : state_(std::in_place_index<1>, std::move(error).error()) {}  // NOLINT
  Result(E error)  // NOLINT(google-explicit-constructor)
    requires(!std::same_as<T, E>)
      : state_(std::in_place_index<1>, std::move(error)) {}

  // True when there is a value.
  bool has_value() const noexcept { return state_.is_first(); }
  explicit operator bool() const noexcept { return has_value(); }

  // Each prints the error and stops the process when there is no value. value() also prints its caller's
  // location; operators cannot.
  T& value(Where where = Where::current()) & { return *checked(where); }
  const T& value(Where where = Where::current()) const& { return *checked(where); }
  T&& value(Where where = Where::current()) && { return std::move(*checked(where)); }
  T& operator*() & { return *checked(); }
  const T& operator*() const& { return *checked(); }
  T&& operator*() && { return std::move(*checked()); }
  T* operator->() { return checked(); }
  const T* operator->() const { return checked(); }

  // Requires: there is no value.
  E& error() & { return *checked_error(); }
  const E& error() const& { return *checked_error(); }
  E&& error() && { return std::move(*checked_error()); }

  // The value, or `fallback` in place of an error.
  template <class U>
  T value_or(U&& fallback) const& {
    return has_value() ? **this : static_cast<T>(std::forward<U>(fallback));
  }
  template <class U>
  T value_or(U&& fallback) && {
    return has_value() ? std::move(**this) : static_cast<T>(std::forward<U>(fallback));
  }

  // f(value) returns a Result with the same error type; an error passes through.
  template <class F>
  auto and_then(F&& f) && -> std::invoke_result_t<F, T&&> {
    if (has_value()) return std::forward<F>(f)(std::move(**this));
    return Unexpected(std::move(*this).error());
  }
  // f(value) returns a plain value; an error passes through.
  template <class F>
  auto transform(F&& f) && -> Result<std::invoke_result_t<F, T&&>, E> {
    if (has_value()) return std::forward<F>(f)(std::move(**this));
    return Unexpected(std::move(*this).error());
  }
  // f(error) returns a Result with the same value type; a value passes through.
  template <class F>
  auto or_else(F&& f) && -> std::invoke_result_t<F, E&&> {
    if (has_value()) return std::move(**this);
    return std::forward<F>(f)(std::move(*this).error());
  }
  // f(error) returns another error; a value passes through.
  template <class F>
  auto transform_error(F&& f) && -> Result<T, std::invoke_result_t<F, E&&>> {
    if (has_value()) return std::move(**this);
    return Unexpected(std::forward<F>(f)(std::move(*this).error()));
  }

 private:
  // Location: none, or the caller's location.
  template <class... Location>
  T* checked(const Location&... where) {
    if (!has_value()) [[unlikely]]
      detail::value_of_error(detail::describe_error(*state_.second()), where...);
    return state_.first();
  }
  template <class... Location>
  const T* checked(const Location&... where) const {
    return const_cast<Result*>(this)->checked(where...);
  }
  E* checked_error() {
    ASHLAR_CHECK(!has_value(), "error() called on a Result that holds a value");
    return state_.second();
  }
  const E* checked_error() const {
    ASHLAR_CHECK(!has_value(), "error() called on a Result that holds a value");
    return state_.second();
  }

  detail::Either<T, E> state_;
};

// Success without a value, or an error. A default-constructed one is success: `return {};`.
template <class E>
class [[nodiscard]] Result<void, E> {
 public:
  using value_type = void;
  using error_type = E;
  using Where = std::source_location;

  Result() : state_(std::in_place_index<0>, detail::Nothing()) {}
  template <class G>
    requires std::convertible_to<G, E>
  Result(Unexpected<G> error) : state_(std::in_place_index<1>, std::move(error).error()) {}  // NOLINT
  Result(E error) : state_(std::in_place_index<1>, std::move(error)) {}                      // NOLINT

  bool has_value() const noexcept { return state_.is_first(); }
  explicit operator bool() const noexcept { return has_value(); }
  void value(Where where = Where::current()) const {
    if (!has_value()) [[unlikely]]
      detail::value_of_error(detail::describe_error(*state_.second()), where);
  }

  E& error() & { return *checked_error(); }
  const E& error() const& { return *checked_error(); }
  E&& error() && { return std::move(*checked_error()); }

  template <class F>
  auto and_then(F&& f) && -> std::invoke_result_t<F> {
    if (has_value()) return std::forward<F>(f)();
    return Unexpected(std::move(*this).error());
  }

 private:
  E* checked_error() {
    ASHLAR_CHECK(!has_value(), "error() called on a Result that holds a value");
    return state_.second();
  }
  const E* checked_error() const {
    ASHLAR_CHECK(!has_value(), "error() called on a Result that holds a value");
    return state_.second();
  }

  detail::Either<detail::Nothing, E> state_;
};

// A refused transition: the reason, and the guard itself, so that a refusal cannot lose a block. The guard is
// unchanged; dropping the Rejected drops it.
template <class Guard>
struct [[nodiscard]] Rejected {
  Error error;
  Guard guard;
};

// ---- How a failed allocation leaves a call that can refuse: as an error, with no state changed.
//
// Inside the library a failed allocation is std::bad_alloc, and every step that may throw it comes before the
// steps that cannot be undone. A call that returns a Result turns it into a refusal at its end. A call that
// cannot refuse lets std::bad_alloc pass. docs/memory_exhaustion.md lists both kinds.

// kCapacity. The sentence is short enough to need no allocation.
inline Error out_of_memory_error() {
  return Error(ErrorCode::kCapacity, "out of memory");
}

// f(), or refuse() when an allocation failed inside it. Requires: f() then leaves all state unchanged.
template <class F, class Refuse>
std::invoke_result_t<F> unless_out_of_memory(F&& f, Refuse&& refuse) {
  try {
    return std::forward<F>(f)();
  } catch (const std::bad_alloc&) {
    return std::forward<Refuse>(refuse)();
  }
}
template <class F>
std::invoke_result_t<F> unless_out_of_memory(F&& f) {
  return unless_out_of_memory(std::forward<F>(f), out_of_memory_error);
}

}  // namespace ashlar

#define ASHLAR_TRY_JOIN(a, b) a##b
#define ASHLAR_TRY_NAME(line) ASHLAR_TRY_JOIN(ashlar_try_, line)
#define ASHLAR_TRY_INTO(result, declaration, ...)                      \
  auto result = (__VA_ARGS__);                                         \
  if (!result) return ::ashlar::Unexpected(std::move(result).error()); \
  declaration = *std::move(result)
// Declares a variable with the value of a Result, or returns its error from this function.
#define ASHLAR_TRY(declaration, ...) ASHLAR_TRY_INTO(ASHLAR_TRY_NAME(__LINE__), declaration, __VA_ARGS__)
// Returns the error of a Result from this function, if it has one.
#define ASHLAR_RETURN_IF_ERROR(...)                                  \
  do {                                                               \
    if (auto ashlar_result = (__VA_ARGS__); !ashlar_result)          \
      return ::ashlar::Unexpected(std::move(ashlar_result).error()); \
  } while (false)
