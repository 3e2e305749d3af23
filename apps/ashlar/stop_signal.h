// StopSignal: whether the program was asked to end (SIGINT, SIGTERM).
//
// Thread safety: thread-safe.
#pragma once

namespace ashlar::apps {

class StopSignal {
 public:
  // Installs the signal handlers. One per program.
  static void install();
  static bool received() noexcept;
  // A descriptor to poll: readable from the first signal on. -1 before install().
  static int descriptor() noexcept;
};

}  // namespace ashlar::apps
