// VolumeCalls: runs volume calls on its own threads, so that a waiting caller can leave.
//
// A call owns all it touches: its keys, its buffers, the volume. Its caller waits until it has ended, a
// deadline has passed, or it is cancelled. A call whose caller has left is told to stop and runs until the
// volume returns; then its memory is freed.
//
// Thread safety: thread-safe. An abandoned call may outlive this object.
// Complexity:    one thread per running call; up to kIdle idle threads are kept.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/tiers/volume.h"

namespace ashlar::tiers {

class VolumeCalls {
 public:
  static constexpr std::size_t kIdle = 8;

  // The work of a call; it owns what it refers to, and is destroyed before the call counts as ended.
  using Work = std::function<void(const std::stop_token& stop)>;
  class Call;
  // How a wait ended.
  enum class End : std::uint8_t { kEnded, kLate, kCancelled };

  VolumeCalls();
  // Ends idle threads. Does not wait for calls.
  ~VolumeCalls();
  VolumeCalls(const VolumeCalls&) = delete;
  VolumeCalls& operator=(const VolumeCalls&) = delete;

  // `left` counts the abandoned calls that have not ended. Errors: kCapacity: no thread.
  Result<std::shared_ptr<Call>> start(Work work, std::shared_ptr<std::atomic<std::size_t>> left);
  // Waits until the call ends, the limits are reached by `clock`, or `also` is stopped. A call that has not
  // ended then is abandoned. Once per call.
  static End wait(Call& call, const CallLimits& limits, const std::stop_token& also, Clock& clock);

 private:
  struct Threads;
  const std::shared_ptr<Threads> threads_;
};

class VolumeCalls::Call {
 public:
  Call(Work work, std::shared_ptr<std::atomic<std::size_t>> left)
      : work_(std::move(work)), left_count_(std::move(left)) {}
  // The exception thrown by the work, if any. Requires: the call has ended.
  std::optional<std::string> thrown() const {
    const MutexLock lock(mu_);
    return thrown_;
  }

 private:
  friend class VolumeCalls;
  void run();

  Work work_;  // of the thread that runs it
  std::stop_source stop_;
  const std::shared_ptr<std::atomic<std::size_t>> left_count_;
  mutable Mutex mu_;
  CondVar changed_;
  bool cancelled_ ASHLAR_GUARDED_BY(mu_) = false;
  bool left_ ASHLAR_GUARDED_BY(mu_) = false;
  bool ended_ ASHLAR_GUARDED_BY(mu_) = false;
  std::optional<std::string> thrown_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::tiers
