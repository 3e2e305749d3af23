// TransferThreads: threads that share transfers chunk by chunk, in submission order.
//
// A transfer is a number of units; a thread takes a chunk of them from the oldest transfer with units left.
// So one large transfer uses all threads, and many small ones run in parallel. The last thread to leave a
// transfer finishes it. Cancelled and late transfers leave the queue, at any position, when a thread next
// takes a chunk.
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
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::transfer {

// How one transfer is divided, and how a chunk of it is moved.
class ChunkedWork {
 public:
  virtual ~ChunkedWork() = default;
  virtual std::uint64_t units() const noexcept = 0;
  // End of the chunk that begins with unit `first`. Requires: first < units().
  virtual std::uint64_t chunk_end(std::uint64_t first) const noexcept = 0;
  // Moves units [first, end), on any thread. May stop early when `state` says so. Reports progress and errors
  // to `state`.
  virtual void move(TransferState& state, std::uint64_t first, std::uint64_t end) const = 0;
};

class TransferThreads {
 public:
  struct Options {
    std::uint32_t threads = 1;
    std::uint64_t inline_bytes = 0;  // up to this size submit() moves inline
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
  // Removes from the queue cancelled and late jobs that have not started.
  void sweep_locked(Jobs* over) ASHLAR_REQUIRES(mu_);

  const std::uint64_t inline_bytes_;
  const Divide divide_;
  Admission admission_;
  Mutex mu_;
  CondVar work_;
  Jobs jobs_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t cancels_seen_ ASHLAR_GUARDED_BY(mu_) = 0;
  Clock::TimePoint next_deadline_ ASHLAR_GUARDED_BY(mu_) = Clock::TimePoint::max();
  bool closing_ ASHLAR_GUARDED_BY(mu_) = false;   // new transfers are cancelled
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;  // no more transfers arrive
  std::vector<std::thread> threads_;
};

}  // namespace ashlar::transfer
