#include "apps/ashlar/stop_signal.h"

#include <atomic>
#include <csignal>

namespace ashlar::apps {
namespace {
std::atomic<bool> asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);
}  // namespace

void StopSignal::install() {
  struct sigaction action{};
  action.sa_handler = [](int) { asked.store(true); };
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
}

bool StopSignal::received() noexcept {
  return asked.load();
}

}  // namespace ashlar::apps
