// ServerLoops: listening sockets on one address, one per thread, each with its loop, and their orderly end.
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "backend/http/io_loop.h"
#include "backend/http/io_stream.h"

namespace ashlar::backend::http {

class ServerLoops {
 public:
  struct Options {
    std::string address;
    std::uint16_t port = 0;
    unsigned threads = 1;
    std::size_t connections = 0;                               // more are closed at once
    Clock::Duration write_timeout = std::chrono::seconds(60);  // of a client that takes nothing
  };
  // Called on a loop's thread, which the number tells, with an accepted socket.
  using Accepted = std::function<void(unsigned loop, int fd)>;

  // Binds. Errors: kUnavailable: the address; kInvalidArgument: the number of threads.
  static Result<std::unique_ptr<ServerLoops>> create(const Options& options);
  // Ends open connections.
  ~ServerLoops();

  // Starts the threads. Called once.
  Result<void> start(Accepted accepted);
  std::uint16_t port() const noexcept { return port_; }
  IoLoop& loop(unsigned number) noexcept { return *loops_[number]; }
  unsigned size() const noexcept { return static_cast<unsigned>(loops_.size()); }

  // Takes no more connections, and lets idle ones go.
  void stop_accepting();
  // Waits until no answer is open, or until then.
  void wait_idle(Clock::TimePoint until);
  // Runs `last` on each loop's thread, ends every wait there, and joins the threads.
  void stop(const std::function<void(unsigned loop)>& last = {});

  // Answers that are being given.
  void answer_began() noexcept;
  void answer_ended();

  // Connections. The first is false if there are too many.
  bool connection_opened() noexcept;
  void connection_closed() noexcept;
  std::size_t open_connections() const noexcept { return connections_.load(std::memory_order_relaxed); }
  std::uint64_t accepted_connections() const noexcept { return accepted_.load(std::memory_order_relaxed); }
  std::uint64_t refused_connections() const noexcept { return refused_.load(std::memory_order_relaxed); }
  std::int64_t open_answers() const noexcept { return answers_.load(std::memory_order_relaxed); }

 private:
  class Acceptor;
  ServerLoops() = default;
  void close_acceptors();

  Options options_;
  std::uint16_t port_ = 0;
  Accepted accepted_call_;
  std::vector<int> sockets_;  // bound, until start()
  std::vector<std::unique_ptr<IoLoop>> loops_;
  std::vector<std::unique_ptr<Acceptor>> acceptors_;  // each touched by its loop's thread only
  // relaxed, all: independent counts; waiters read them again under mu_.
  std::atomic<std::size_t> connections_{0};
  std::atomic<std::uint64_t> accepted_{0};
  std::atomic<std::uint64_t> refused_{0};
  std::atomic<std::int64_t> answers_{0};
  std::atomic<bool> draining_{false};
  Mutex mu_;
  CondVar idle_;
  bool started_ = false;
  bool stopped_ = false;
};

}  // namespace ashlar::backend::http
