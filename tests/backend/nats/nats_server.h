// NatsServer: a nats-server of this test alone, on loopback.
#pragma once

#include <unistd.h>

#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/backend/nats/nats_options.h"
#include "support/scratch_folder.h"
#include "support/server.h"

namespace ashlar::backend::nats {

class NatsServer {
 public:
  static bool is_installed() { return !program().empty(); }

  // `configuration` as its file has it: "max_payload: 64KB". Requires: is_installed().
  explicit NatsServer(const std::string& configuration = {}, bool jet_stream = true)
      : jet_stream_(jet_stream) {
    configure(configuration);
    start();
  }
  // For the next start.
  void configure(const std::string& configuration) {
    std::ofstream(folder_.file("nats.conf")) << "write_deadline: \"60s\"\n" << configuration << "\n";
  }

  // On the port that it had, with what its folder has.
  void start() {
    // Somebody may take the port between its choice and the start.
    for (int attempt = 0; attempt < 10 && !running(); ++attempt) {
      if (port_ == 0 || (attempt > 5 && !started_)) port_ = free_port();
      std::vector<std::string> command{program(),
                                       "-a",
                                       "127.0.0.1",
                                       "-p",
                                       std::to_string(port_),
                                       "-l",
                                       folder_.file("log"),
                                       "-c",
                                       folder_.file("nats.conf")};
      if (jet_stream_) command.insert(command.end(), {"-js", "-sd", folder_.file("store")});
      process_ = std::make_unique<ServerProcess>(std::move(command));
      process_->wait_for(port_);
    }
    started_ = true;
    EXPECT_TRUE(running()) << "nats-server does not start";
  }
  void kill() { process_->kill(); }
  int port() const { return port_; }
  std::string url(const std::string& host = "127.0.0.1") const {
    return "nats://" + host + ":" + std::to_string(port_);
  }
  NatsConnectionOptions options() const {
    return {.urls = {url()},
            .connect_timeout = std::chrono::seconds(60),  // a busy machine is slow, not dead
            .write_timeout = std::chrono::seconds(60),
            .reconnect_min = std::chrono::milliseconds(5),
            .reconnect_max = std::chrono::milliseconds(20)};
  }

 private:
  static std::string program() {
    return access(ASHLAR_NATS_SERVER, X_OK) == 0 ? ASHLAR_NATS_SERVER : find_program("nats-server");
  }
  bool running() { return process_ != nullptr && process_->is_running(); }

  const bool jet_stream_;
  const ScratchFolder folder_;
  int port_ = 0;
  bool started_ = false;
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace ashlar::backend::nats
