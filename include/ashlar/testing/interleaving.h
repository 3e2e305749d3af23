// Interleaving: pins an order of events among threads by the named points in the library's slow paths.
//
//   Interleaving order;
//   order.pause_at("drop.before_settle");
//   std::jthread dropper([&] { last = {}; });              // stops between its count and its settling
//   order.wait_until_paused("drop.before_settle");
//   … what must work meanwhile …
//   order.resume("drop.before_settle");
//
// One at a time in a process. Declare it before the threads, so that they are joined before its destruction.
// A thread held, or a wait for one, longer than a minute stops the process with a message: a broken test does
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
  // Resumes every held thread and waits until it has left.
  ~Interleaving();
  Interleaving(const Interleaving&) = delete;
  Interleaving& operator=(const Interleaving&) = delete;

  // Holds the nth thread that passes the point from now on. Several pauses at one point hold several threads,
  // in the order of the calls.
  Pause pause_at(std::string_view point, std::size_t nth = 1);

  // Waits until the pause, or any pause at the point, holds a thread.
  void wait_until_paused(Pause pause);
  void wait_until_paused(std::string_view point);
  // Resumes the held thread; a pause that holds none is cancelled. By name: all pauses at the point.
  void resume(Pause pause);
  void resume(std::string_view point);

  // The number of threads that have passed the point, held ones included.
  std::size_t passes(std::string_view point) const;
  // Waits until this many have passed.
  void wait_until_passed(std::string_view point, std::size_t passes);

 private:
  class Hook;
  std::unique_ptr<Hook> hook_;
};

}  // namespace ashlar::testing
