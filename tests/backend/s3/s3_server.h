// S3Server: an S3 store of this process, on loopback, that checks signatures: moto, as s3_server.py starts
// it.
#pragma once

#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "support/server.h"

namespace ashlar::backend::s3 {

class S3Server {
 public:
  static constexpr const char* kBucket = "test-bucket";

  static bool is_installed() { return access(ASHLAR_S3_SERVER_PYTHON, X_OK) == 0; }

  // With a certificate and its key it speaks TLS. Requires: is_installed().
  S3Server() { start(); }
  S3Server(std::string certificate, std::string key) : tls_{std::move(certificate), std::move(key)} {
    start();
  }

  // Empty as it was at first, on the same port.
  void start() {
    std::vector<std::string> command{ASHLAR_S3_SERVER_PYTHON, "-B", ASHLAR_S3_SERVER_SCRIPT, kBucket,
                                     std::to_string(port_)};
    command.insert(command.end(), tls_.begin(), tls_.end());
    process_ = std::make_unique<ServerProcess>(std::move(command));
    const std::optional<std::string> line = process_->read_line();
    ASSERT_TRUE(line) << "the S3 server does not start";
    std::istringstream(*line) >> port_ >> access_key >> secret_key >> session_access_key >>
        session_secret_key >> session_token;
  }
  void kill() { process_->kill(); }
  int port() const { return port_; }

  std::string access_key;
  std::string secret_key;
  std::string session_access_key;
  std::string session_secret_key;
  std::string session_token;

 private:
  std::vector<std::string> tls_;
  int port_ = free_port();
  std::unique_ptr<ServerProcess> process_;
};

}  // namespace ashlar::backend::s3
