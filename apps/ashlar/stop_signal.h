// StopSignal: whether the program was asked to end (SIGINT, SIGTERM), or to read its files again (SIGHUP).
//
// Thread safety: thread-safe.
#pragma once

namespace ashlar::apps {

class StopSignal {
 public:
  // Installs the signal handlers.
  static void install();
  // From now on a signal ends the program as it is, for commands that only read. install() takes it back.
  static void end_at_once();
  static bool received() noexcept;
  // A descriptor to poll: readable from the first signal on. -1 before install().
  static int descriptor() noexcept;
  // From now on SIGHUP asks for a reload, in place of ending the program.
  static void install_reload();
  // Whether a reload was asked for since the last call.
  static bool take_reload() noexcept;
  // Waits for a signal. It may return without one.
  static void wait();
};

}  // namespace ashlar::apps
