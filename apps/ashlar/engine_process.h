// EngineProcess: a tiny_server beside this program, for `ashlar run`. Ends with the object, and with this
// program however that ends.
//
// Thread safety: thread-compatible. Start it from the thread that outlives it.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::apps {

class EngineProcess {
 public:
  // The program `tiny_server` that belongs to this one: beside it, or in ../libexec/ashlar.
  // Errors: kNotFound, with where it was looked for.
  static Result<std::string> find_program();
  // Returns when it listens. Errors: kUnavailable: it did not start; what it said is on standard error.
  static Result<EngineProcess> start(const std::string& program, std::vector<std::string> arguments);

  EngineProcess(EngineProcess&& other) noexcept
      : pid_(std::exchange(other.pid_, -1)), worker_(std::move(other.worker_)) {}
  EngineProcess& operator=(EngineProcess&& other) noexcept {
    std::swap(pid_, other.pid_);
    std::swap(worker_, other.worker_);
    return *this;
  }
  ~EngineProcess();

  // As --worker of `ashlar serve` takes it.
  const std::string& worker() const noexcept { return worker_; }
  // "http://127.0.0.1:8000".
  std::string url() const { return worker_.substr(0, worker_.find(',')); }

 private:
  EngineProcess(pid_t pid, std::string worker) : pid_(pid), worker_(std::move(worker)) {}

  pid_t pid_;
  std::string worker_;
};

}  // namespace ashlar::apps
