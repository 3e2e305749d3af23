// TransferThreads: threads that share the work of transfers, chunk by chunk, in the order of submission.
//
// A transfer is a number of units; a thread takes a chunk of them from the oldest transfer that has some
// left. So one large transfer uses all threads, and many small ones run side by side. The last thread to
// leave a transfer finishes it. Cancelled and late transfers leave the queue when a thread next takes a
// chunk, wherever they stand.
//
// Thread safety: thread-safe. Destruction cancels queued transfers and waits for running ones.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"
#include "transfer/admission.h"
#include "transfer/transfer_state.h"

namespace ashlar::transfer {

// How one transfer is divided, and how a chunk of it is moved.
class ChunkedWork {
 public:
  virtual ~ChunkedWork() = default;
  virtual std::uint64_t units() const noexcept = 0;
  // Where the chunk that begins with unit `first` ends. Requires: first < units().
  virtual std::uint64_t chunk_end(std::uint64_t first) const noexcept = 0;
  // Moves units [first, end), on any thread. May stop early when `state` says so. What was moved and what
  // went wrong is told to `state`.
  virtual void move(TransferState& state, std::uint64_t first, std::uint64_t end) const = 0;
};

class TransferThreads {
 public:
  struct Options {
    std::uint32_t threads = 1;
    std::uint64_t inline_bytes = 0;  // up to here submit() moves by itself
    QueueLimits limits = {};
    Clock* clock = nullptr;
  };
  // Divides a plan. The plan outlives the work.
  using Divide = std::function<std::unique_ptr<const ChunkedWork>(const TransferPlan&)>;

  // Errors: kCapacity: the system has no more threads.
  static Result<std::unique_ptr<TransferThreads>> create(const Options& options, Divide divide);
  ~TransferThreads();
  TransferThreads(const TransferThreads&) = delete;
  TransferThreads& operator=(const TransferThreads&) = delete;

  Result<Transfer> submit(TransferRequest request);
  ExecutorCounters counters() const { return admission_.counters(); }

 private:
  struct Job {
    std::shared_ptr<TransferState> state;
    std::unique_ptr<const ChunkedWork> work;
    std::uint64_t next = 0;     // units handed out
    std::uint32_t threads = 0;  // inside
  };
  using Jobs = std::deque<std::shared_ptr<Job>>;

  TransferThreads(const Options& options, Divide divide);
  void run();
  // Takes jobs that have not started and will not out of the queue.
  void sweep_locked(Jobs* over) ASHLAR_REQUIRES(mu_);

  const std::uint64_t inline_bytes_;
  const Divide divide_;
  Admission admission_;
  Mutex mu_;
  CondVar work_;
  Jobs jobs_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t cancels_seen_ ASHLAR_GUARDED_BY(mu_) = 0;
  Clock::TimePoint next_deadline_ ASHLAR_GUARDED_BY(mu_) = Clock::TimePoint::max();
  bool closing_ ASHLAR_GUARDED_BY(mu_) = false;   // what comes in now is cancelled
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;  // nothing comes in any more
  std::vector<std::thread> threads_;
};

}  // namespace ashlar::transfer
