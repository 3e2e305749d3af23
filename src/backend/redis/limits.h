// Limits: the limits of a volume call, for poll(): a descriptor becomes readable when the call is stopped.
//
// Thread safety: confined to the thread of the call; the stop may come from any other.
#pragma once

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <optional>
#include <stop_token>

#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::backend::redis {

class Limits {
 public:
  explicit Limits(const tiers::CallLimits& limits)
      : limits_(limits),
        stopped_(limits.stop.stop_possible() ? eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) : -1),
        wake_(std::in_place, limits.stop, Wake{stopped_}) {}
  Limits(const Limits&) = delete;
  Limits& operator=(const Limits&) = delete;
  ~Limits() {
    wake_.reset();  // before its descriptor is closed
    if (stopped_ >= 0) close(stopped_);
  }

  // Errors: kCancelled, kTimeout.
  Result<void> check() const { return limits_.check(); }
  // As poll() of one socket, for at most `most`, or until the limits are reached. Returns the result of
  // poll(); 0 also at the limits. `about` may have no socket: fd -1.
  int wait(pollfd& about, std::chrono::milliseconds most) const {
    using std::chrono::milliseconds;
    if (limits_.deadline)
      most = std::min(most, std::chrono::ceil<milliseconds>(*limits_.deadline - Clock::real().now()));
    // Without a descriptor it polls the stop token periodically.
    if (stopped_ < 0 && limits_.stop.stop_possible()) most = std::min(most, milliseconds(20));
    std::array<pollfd, 2> both{about, pollfd{.fd = stopped_, .events = POLLIN, .revents = 0}};
    const int ready =
        poll(both.data(), both.size(), static_cast<int>(std::max<std::int64_t>(most.count(), 0)));
    about.revents = both[0].revents;
    if (ready <= 0) return ready;
    return about.revents == 0 ? 0 : 1;
  }

 private:
  struct Wake {
    int descriptor;
    void operator()() const noexcept {
      const std::uint64_t one = 1;
      if (descriptor >= 0) [[maybe_unused]]
        const ssize_t written = write(descriptor, &one, sizeof one);
    }
  };

  const tiers::CallLimits limits_;
  const int stopped_;
  std::optional<std::stop_callback<Wake>> wake_;
};

}  // namespace ashlar::backend::redis
