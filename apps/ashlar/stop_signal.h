// StopSignal: whether somebody asked the program to end (SIGINT, SIGTERM).
//
// Thread safety: thread-safe.
#pragma once

namespace ashlar::apps {

class StopSignal {
 public:
  // Takes the signals over. One per program.
  static void install();
  static bool received() noexcept;
  // A descriptor to wait for: readable from the first signal on. -1 before install().
  static int descriptor() noexcept;
};

}  // namespace ashlar::apps
