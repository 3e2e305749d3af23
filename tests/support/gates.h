// Gate: holds threads until a test lets them go. ScriptedFaults: file operations that go as a function of the
// test says.
#pragma once

#include <atomic>
#include <functional>

#include "ashlar/base/mutex.h"
#include "ashlar/storage/storage.h"

namespace ashlar {

class Gate {
 public:
  void open() {
    const MutexLock lock(mu_);
    open_ = true;
    changed_.notify_all();
  }
  void pass() {
    const MutexLock lock(mu_);
    ++waiting_;
    changed_.notify_all();
    while (!open_) changed_.wait(mu_);
    --waiting_;
  }
  // Waits until somebody stands at the gate.
  void wait_for_somebody() {
    const MutexLock lock(mu_);
    while (waiting_ == 0) changed_.wait(mu_);
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ ASHLAR_GUARDED_BY(mu_) = false;
  int waiting_ ASHLAR_GUARDED_BY(mu_) = 0;
};

// Asks a function of the test.
class ScriptedFaults final : public storage::IoFaults {
 public:
  using Script =
      std::function<storage::IoVerdict(storage::IoDirection, std::uint64_t offset, std::uint64_t bytes)>;
  explicit ScriptedFaults(Script script) : script_(std::move(script)) {}
  storage::IoVerdict judge(storage::IoDirection direction, std::uint64_t offset,
                           std::uint64_t bytes) override {
    ++calls;
    return script_(direction, offset, bytes);
  }
  std::atomic<std::uint64_t> calls{0};

 private:
  Script script_;
};

}  // namespace ashlar
