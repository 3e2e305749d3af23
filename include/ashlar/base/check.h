// Checks for programmer errors: they print the expectation and its location, and stop the process.
//
// ASHLAR_CHECK(condition, format, ...)   always on.
// ASHLAR_DCHECK(condition, format, ...)  on hot paths; on when the library is built with ASHLAR_DCHECKS.
//
// The message takes printf arguments and should include the wrong value. Failures of the world (a full pool,
// a bad file) are values (result.h), never checks.
//
// Thread safety: thread-safe.
// Complexity:    one predicted branch; a DCHECK that is off is parsed and costs nothing.
#pragma once

namespace ashlar {

// Prints the failed condition and the message to stderr and aborts. Never returns.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const char* format, ...)
    __attribute__((format(printf, 4, 5), cold));

}  // namespace ashlar

#define ASHLAR_CHECK(condition, ...)                                       \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::ashlar::check_failed(__FILE__, __LINE__, #condition, __VA_ARGS__); \
  } while (false)

#ifdef ASHLAR_DCHECKS
#define ASHLAR_DCHECK(condition, ...) ASHLAR_CHECK(condition, __VA_ARGS__)
#else
#define ASHLAR_DCHECK(condition, ...)                \
  do {                                               \
    if (false) ASHLAR_CHECK(condition, __VA_ARGS__); \
  } while (false)
#endif
