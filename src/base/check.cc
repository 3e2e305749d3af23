#include "ashlar/base/check.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

#include "ashlar/base/result.h"

namespace ashlar {

void check_failed(const char* file, int line, const char* condition, const char* format, ...) {
  std::fprintf(stderr, "ashlar: check failed at %s:%d: %s: ", file, line, condition);
  std::va_list arguments;
  va_start(arguments, format);
  std::vfprintf(stderr, format, arguments);
  va_end(arguments);
  std::fputc('\n', stderr);
  std::fflush(stderr);
  std::abort();
}

namespace detail {

void value_of_error(const std::string& error, const std::source_location& where) {
  std::fprintf(stderr, "ashlar: value() of an error at %s:%u: %s\n", where.file_name(), where.line(),
               error.c_str());
  std::fflush(stderr);
  std::abort();
}

void value_of_error(const std::string& error) {
  std::fprintf(stderr, "ashlar: * or -> of an error: %s; call value() to see where\n", error.c_str());
  std::fflush(stderr);
  std::abort();
}

}  // namespace detail
}  // namespace ashlar
