// EngineProcess: a tiny_server in a process of its own, from start to kill. It can be started again on the
// same ports, as an engine that crashed is.
//
// Needs TINY_SERVER_PROGRAM, the path of the program. Start it on the thread that outlives it.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/server.h"

namespace tiny_engine::testing {

class EngineProcess {
 public:
  // `options` of the program but its ports; `ranks` is its --dp.
  explicit EngineProcess(std::vector<std::string> options = {}, int ranks = 1)
      : options_(std::move(options)), ranks_(ranks) {
    // Another process may take a port between the look and the use.
    for (int tries = 0; tries < 20 && !is_ready_; ++tries) {
      http_ = free_ports(1);
      events_ = free_ports(ranks_);
      replay_ = free_ports(ranks_);
      start();
    }
    EXPECT_TRUE(is_ready_) << TINY_SERVER_PROGRAM << " does not start";
  }

  bool is_ready() const noexcept { return is_ready_; }
  int port() const noexcept { return http_; }
  int events_port(int rank = 0) const noexcept { return events_ + rank; }
  int replay_port(int rank = 0) const noexcept { return replay_ + rank; }
  std::string url() const { return "http://127.0.0.1:" + std::to_string(http_); }
  std::string events(int rank = 0) const { return "tcp://127.0.0.1:" + std::to_string(events_port(rank)); }
  std::string replay(int rank = 0) const { return "tcp://127.0.0.1:" + std::to_string(replay_port(rank)); }

  pid_t pid() const noexcept { return process_->pid(); }
  bool is_running() { return process_->is_running(); }
  // As a crash does.
  void kill() { process_->kill(); }
  // In order; its exit status.
  int terminate() { return process_->terminate(); }
  // Ends it if it runs, and starts it on the same ports, with other options where they are given.
  void restart(std::optional<std::vector<std::string>> options = std::nullopt) {
    kill();
    if (options) options_ = *std::move(options);
    start();
    EXPECT_TRUE(is_ready_) << TINY_SERVER_PROGRAM << " does not start again";
  }

 private:
  static int free_ports(int count) {
    for (;;) {
      const int port = ashlar::free_port();
      int free = 1;
      while (free < count && ashlar::can_listen(port + free)) ++free;
      if (free == count) return port;
    }
  }
  void start() {
    std::vector<std::string> command = {
        TINY_SERVER_PROGRAM,     "--port",   std::to_string(http_),   "--events",
        std::to_string(events_), "--replay", std::to_string(replay_), "--dp",
        std::to_string(ranks_)};
    command.insert(command.end(), options_.begin(), options_.end());
    process_ = std::make_unique<ashlar::ServerProcess>(std::move(command));
    is_ready_ = process_->says("listening http=" + std::to_string(http_) + " ");
  }

  std::vector<std::string> options_;
  int ranks_;
  int http_ = 0;
  int events_ = 0;  // of rank 0
  int replay_ = 0;
  bool is_ready_ = false;
  std::unique_ptr<ashlar::ServerProcess> process_;
};

}  // namespace tiny_engine::testing
