#include "apps/ashlar/stop_signal.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>

namespace ashlar::apps {
namespace {

std::atomic<bool> asked{false};
std::atomic<bool> reloads{false};
static_assert(std::atomic<bool>::is_always_lock_free);
int wake[2] = {-1, -1};  // a pipe; set before any signal is handled

void on_signal(int) {
  const int kept = errno;
  asked.store(true);
  [[maybe_unused]] const ssize_t wrote = write(wake[1], "", 1);  // a full pipe is readable too
  errno = kept;
}

void on_reload(int) {
  const int kept = errno;
  reloads.store(true);
  [[maybe_unused]] const ssize_t wrote = write(wake[1], "", 1);
  errno = kept;
}

}  // namespace

void StopSignal::install_reload() {
  struct sigaction action{};
  action.sa_handler = on_reload;
  sigaction(SIGHUP, &action, nullptr);
}

bool StopSignal::take_reload() noexcept {
  return reloads.exchange(false);
}

void StopSignal::wait() {
  if (asked.load()) return;
  pollfd readable{.fd = wake[0], .events = POLLIN, .revents = 0};
  ::poll(&readable, 1, wake[0] < 0 ? 200 : -1);
  // Once it ends, the pipe stays readable for others who poll it.
  char byte = 0;
  if (!asked.load()) [[maybe_unused]]
    const ssize_t got = read(wake[0], &byte, 1);
}

void StopSignal::install() {
  if (wake[0] < 0 && pipe2(wake, O_CLOEXEC | O_NONBLOCK) != 0) wake[0] = wake[1] = -1;
  struct sigaction action{};
  action.sa_handler = on_signal;
  sigaction(SIGTERM, &action, nullptr);
  action.sa_flags = SA_RESETHAND;  // a second Ctrl-C ends the program as it is
  sigaction(SIGINT, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

void StopSignal::end_at_once() {
  std::signal(SIGTERM, SIG_DFL);
  std::signal(SIGINT, SIG_DFL);
  if (asked.load()) std::raise(SIGINT);
}

bool StopSignal::received() noexcept {
  return asked.load();
}

int StopSignal::descriptor() noexcept {
  return wake[0];
}

}  // namespace ashlar::apps
