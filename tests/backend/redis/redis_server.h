// RedisServer: a redis-server of this test alone, on loopback, that stores nothing on disk.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/scratch_folder.h"
#include "support/server.h"

namespace ashlar::backend::redis {

class RedisServer {
 public:
  static bool is_installed() { return !program().empty(); }

  // `settings` as its command line takes them: {"--maxmemory", "4mb"}. Requires: is_installed().
  explicit RedisServer(std::vector<std::string> settings = {}) : settings_(std::move(settings)) { start(); }

  void start() {
    // Somebody may take the port between its choice and the start.
    for (int attempt = 0; attempt < 10 && !running(); ++attempt) {
      if (port_ == 0 || attempt > 5) port_ = free_port();
      std::vector<std::string> command{program(),
                                       "--port",
                                       std::to_string(port_),
                                       "--bind",
                                       "127.0.0.1",
                                       "--save",
                                       "",
                                       "--appendonly",
                                       "no",
                                       "--dir",
                                       folder_.path(),
                                       "--unixsocket",
                                       socket(),
                                       "--loglevel",
                                       "warning",
                                       "--daemonize",
                                       "no",
                                       "--logfile",
                                       folder_.file("log")};
      command.insert(command.end(), settings_.begin(), settings_.end());
      process_ = std::make_unique<ServerProcess>(std::move(command), "redis-server");
      process_->wait_for(port_);
    }
    EXPECT_TRUE(running()) << "redis-server does not start";
  }
  void kill() { process_->kill(); }
  int port() const { return port_; }
  std::string socket() const { return folder_.file("socket"); }

 private:
  // Debian's redis-tools holds the server under the name of a tool; it is the one or the other as it is
  // called.
  static std::string program() {
    const std::string server = find_program("redis-server");
    return server.empty() ? find_program("redis-check-rdb") : server;
  }
  bool running() { return process_ != nullptr && process_->is_running(); }

  const std::vector<std::string> settings_;
  const ScratchFolder folder_;
  int port_ = 0;
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace ashlar::backend::redis
