#include "apps/ashlar/stop_signal.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace ashlar::apps {
namespace {

std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);
int wake[2] = {-1, -1};  // a pipe; set before any signal is handled

void on_signal(int) {
  const int kept = errno;
  asked.store(true);
  [[maybe_unused]] const ssize_t wrote = write(wake[1], "", 1);  // a full pipe is readable too
  errno = kept;
}

}  // namespace

void StopSignal::install() {
  if (pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool StopSignal::received() noexcept {
  return asked.load();
}

int StopSignal::descriptor() noexcept {
  return wake[0];
}

}  // namespace ashlar::apps
