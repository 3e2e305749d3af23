// ProcessWatch: a thread that sees processes end, and releases withdrawn memory that no peer copies any more.
//
// Thread safety: thread-safe. Destruction waits for the callback that runs; it must not happen inside one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <unordered_map>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "base/owned_fd.h"
#include "transfer/remote/registration_table.h"

namespace ashlar::transfer {

class ProcessWatch {
 public:
  // Errors: kCapacity: no thread or descriptor is left.
  static Result<std::shared_ptr<ProcessWatch>> create(std::shared_ptr<RegistrationTable> table);
  ~ProcessWatch();
  ProcessWatch(const ProcessWatch&) = delete;
  ProcessWatch& operator=(const ProcessWatch&) = delete;

  // Calls `ended` on the thread when the process of a pidfd ends, unless remove() comes first. The descriptor
  // lives until one of them. Errors: kCapacity.
  Result<std::uint64_t> add(const OwnedFd& process, std::function<void()> ended);
  // The callback may be running.
  void remove(std::uint64_t id);
  // The table keeps memory: look after it.
  void release_memory_soon() noexcept;

 private:
  struct Watched {
    int process = -1;
    std::function<void()> ended;
  };

  ProcessWatch(std::shared_ptr<RegistrationTable> table, OwnedFd epoll, OwnedFd wake) noexcept;
  // Ends the watching; none where it has ended.
  std::function<void()> take(std::uint64_t id);
  void run();

  const std::shared_ptr<RegistrationTable> table_;
  const OwnedFd epoll_;
  const OwnedFd wake_;
  Mutex mu_;
  std::uint64_t next_ ASHLAR_GUARDED_BY(mu_) = 1;  // 0: wake_
  std::unordered_map<std::uint64_t, Watched> watched_ ASHLAR_GUARDED_BY(mu_);
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace ashlar::transfer
