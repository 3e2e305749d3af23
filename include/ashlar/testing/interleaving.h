// Interleaving: pins an order of events among threads by the named points in the library's slow paths.
//
//   Interleaving order;
//   order.pause_at("drop.before_settle");
//   std::jthread dropper([&] { last = {}; });              // stops between its count and its settling
//   order.wait_until_paused("drop.before_settle");
//   … what must work meanwhile …
//   order.resume("drop.before_settle");
//
// One at a time in a process. Declare it before the threads, so that they are joined before it goes. A thread
// that is held, or a wait for one, longer than a minute stops the process with a sentence: a broken test does
// not hang.
//
// Thread safety: thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <string_view>

namespace ashlar::testing {

class Interleaving {
 public:
  // One call of pause_at().
  using Pause = std::size_t;

  Interleaving();
  // Lets every held thread go and waits until it has gone.
  ~Interleaving();
  Interleaving(const Interleaving&) = delete;
  Interleaving& operator=(const Interleaving&) = delete;

  // The nth thread that passes the point from now on is held there. Several pauses at one point hold several
  // threads, in the order of the calls.
  Pause pause_at(std::string_view point, std::size_t nth = 1);

  // Waits until the pause, or one at the point, holds a thread.
  void wait_until_paused(Pause pause);
  void wait_until_paused(std::string_view point);
  // Lets the held thread go; a pause that holds none holds none from now on. By name: all pauses at the
  // point.
  void resume(Pause pause);
  void resume(std::string_view point);

  // How many threads have passed the point, held ones included.
  std::size_t passes(std::string_view point) const;
  // Waits until so many have passed.
  void wait_until_passed(std::string_view point, std::size_t passes);

 private:
  class Hook;
  std::unique_ptr<Hook> hook_;
};

}  // namespace ashlar::testing
