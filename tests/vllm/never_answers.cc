// Preloaded into an engine, makes the files below one folder a storage that never answers, or slowly.
//
// Every open() of a path that starts with $ASHLAR_TEST_NEVER_ANSWERS sleeps for as long as the file
// $ASHLAR_TEST_NEVER_ANSWERS.now exists, like a mounted file system whose server is gone. A call that waits
// for it never returns, so whoever answers did not wait. With $ASHLAR_TEST_ANSWERS_AFTER every open() there
// takes that many milliseconds.
//
// Thread safety: thread-safe.
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

void wait_if_below(const char* path) {
  static const char* const folder = std::getenv("ASHLAR_TEST_NEVER_ANSWERS");
  if (folder == nullptr || std::strncmp(path, folder, std::strlen(folder)) != 0) return;
  static const std::string now = std::string(folder) + ".now";
  while (access(now.c_str(), F_OK) == 0) sleep(1);
  static const char* const after = std::getenv("ASHLAR_TEST_ANSWERS_AFTER");
  if (after != nullptr) usleep(static_cast<useconds_t>(std::atoi(after)) * 1000);
}

using Open = int (*)(const char*, int, ...);

int open_as(const char* name, const char* path, int flags, mode_t mode) {
  wait_if_below(path);
  return reinterpret_cast<Open>(dlsym(RTLD_NEXT, name))(path, flags, mode);
}

mode_t mode_of(int flags, va_list& rest) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(rest, mode_t) : 0;
}

}  // namespace

extern "C" int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_as("open", path, flags, mode);
}

extern "C" int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = mode_of(flags, rest);
  va_end(rest);
  return open_as("open64", path, flags, mode);
}
