// IoLoop: a thread with an Asio context; what its coroutines wait for, and until when.
//
// An EventWaiter is where one coroutine waits for any of several events: a socket is ready, a call from
// another thread, a deadline. Deadlines are checked every 50 ms by one timer, and only if the nearest one may
// have passed; so a wait costs no timer, unless it is shorter than the next check is away.
//
// Thread safety: confined to the loop's thread, except start(), join() and post().
// Complexity:    a wait is O(1); a check of deadlines that is due is O(waiters).
#pragma once

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <coroutine>
#include <cstdint>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"

namespace ashlar::backend::http {

// A set of events, as bits.
using IoEvents = std::uint32_t;
inline constexpr IoEvents kClientReadable = 1;
inline constexpr IoEvents kClientWritable = 2;
inline constexpr IoEvents kClientGone = 4;
inline constexpr IoEvents kWorkerReadable = 8;
inline constexpr IoEvents kWorkerWritable = 16;
inline constexpr IoEvents kWoken = 32;     // by another thread, or by a call
inline constexpr IoEvents kResolved = 64;  // the addresses of a name
inline constexpr IoEvents kDraining = 128;
inline constexpr IoEvents kDeadline = 256;  // these two end every wait
inline constexpr IoEvents kStopped = 512;

// Reads or writes that a coroutine does in a row before it lets the others of its loop run.
inline constexpr int kTurn = 16;

inline constexpr Clock::TimePoint kNoDeadline = Clock::TimePoint::max();

// Where a socket reports that it is ready.
class ReadySink {
 public:
  virtual void fire(IoEvents events) = 0;

 protected:
  ~ReadySink() = default;
};

class IoLoop;

class EventWaiter final : public ReadySink {
 public:
  explicit EventWaiter(IoLoop& loop);
  ~EventWaiter();
  EventWaiter(const EventWaiter&) = delete;
  EventWaiter& operator=(const EventWaiter&) = delete;

  // Remembers the events, and resumes the coroutine if it waits for one of them. This object may be gone on
  // return.
  void fire(IoEvents events) override;
  void clear(IoEvents events) noexcept { ready_ &= ~events; }

  struct Awaiter {
    EventWaiter& self;
    IoEvents interest;
    Clock::TimePoint deadline;
    bool await_ready() const noexcept { return (self.ready_ & (interest | kStopped)) != 0; }
    void await_suspend(std::coroutine_handle<> handle) noexcept;
    IoEvents await_resume() noexcept;
  };
  // Those of `interest` that came, or kDeadline, or kStopped. kStopped is never forgotten.
  Awaiter wait(IoEvents interest, Clock::TimePoint deadline) noexcept { return {*this, interest, deadline}; }

 private:
  friend class IoLoop;
  IoLoop& loop_;
  EventWaiter* previous_ = nullptr;
  EventWaiter* next_ = nullptr;
  std::coroutine_handle<> waiting_;
  IoEvents interest_ = 0;
  IoEvents ready_ = 0;
  Clock::TimePoint deadline_ = kNoDeadline;
};

class IoLoop {
 public:
  IoLoop();
  ~IoLoop();  // Requires: stopped and joined, or never started.
  IoLoop(const IoLoop&) = delete;
  IoLoop& operator=(const IoLoop&) = delete;

  // Errors: kCapacity: no thread.
  Result<void> start();
  void join();
  template <class F>
  void post(F&& f) {
    boost::asio::post(context_, std::forward<F>(f));
  }

  // Idle connections end; the others after their answer.
  void drain();
  bool is_draining() const noexcept { return draining_; }
  // Ends every wait, now and later. The thread ends when no waiter is left.
  void stop();
  bool is_stopping() const noexcept { return stopping_; }

  boost::asio::io_context& context() noexcept { return context_; }
  // What is read from a socket goes here. Not kept over a wait: all coroutines of the loop use it.
  std::span<char> buffer() noexcept { return buffer_; }
  // The same for what is put together to be written.
  std::string& scratch() noexcept { return scratch_; }
  static Clock::TimePoint now() { return std::chrono::steady_clock::now(); }
  // So much later, or never where that cannot be said.
  static Clock::TimePoint later(Clock::TimePoint begin, Clock::Duration by) noexcept {
    return by > kNoDeadline - begin ? kNoDeadline : begin + by;
  }
  static Clock::TimePoint after(Clock::Duration by) { return later(now(), by); }

 private:
  friend class EventWaiter;
  void add(EventWaiter& waiter) noexcept;
  void remove(EventWaiter& waiter) noexcept;
  void fire_all(IoEvents events);
  // In place of the one that was scheduled.
  void schedule_check(Clock::TimePoint at);
  void check_deadlines();

  boost::asio::io_context context_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_;
  boost::asio::steady_timer timer_;
  std::vector<char> buffer_;
  std::string scratch_;
  std::thread thread_;
  EventWaiter* first_ = nullptr;
  EventWaiter* cursor_ = nullptr;                 // the next one of a walk; removal moves it on
  Clock::TimePoint next_deadline_ = kNoDeadline;  // no deadline is earlier
  Clock::TimePoint check_at_ = kNoDeadline;       // when deadlines are checked next
  bool draining_ = false;
  bool stopping_ = false;
};

}  // namespace ashlar::backend::http
