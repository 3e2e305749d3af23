// Ring: an io_uring, the thread that owns it, and its transfers.
//
// Requests and registrations arrive through an inbox; an eventfd that the ring reads wakes the thread. The
// thread starts operations of the oldest transfer first, as many as the depth allows, and sleeps until one
// completes.
//
// Thread safety: thread-safe, except members marked as confined to the thread.
#pragma once

#include <liburing.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "ashlar/backend/uring/uring_executor.h"
#include "ashlar/base/mutex.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/file_work.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::backend::uring {

class Ring {
 public:
  static Result<std::shared_ptr<Ring>> create(const UringOptions& options);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  Result<transfer::Transfer> submit(transfer::TransferRequest request);
  Result<std::uint64_t> register_set(std::shared_ptr<const transfer::BlockSet> set);
  void unregister_set(std::uint64_t id);
  transfer::ExecutorCounters counters() const { return admission_.counters(); }
  // Cancels queued transfers, waits for running ones and ends the thread.
  void stop();

 private:
  struct Job {
    std::shared_ptr<transfer::TransferState> state;
    std::unique_ptr<transfer::FileWork> work;
    std::unique_ptr<transfer::FileWork::Cursor> cursor;
    std::uint32_t in_flight = 0;
    bool exhausted = false;
  };
  struct FreeMemory {
    void operator()(std::byte* memory) const noexcept;
  };
  struct Stage {
    std::unique_ptr<std::byte, FreeMemory> memory;
    std::uint64_t bytes = 0;
  };
  // One operation in flight.
  struct Slot {
    std::shared_ptr<Job> job;
    transfer::FileOperation operation;
    std::byte* memory = nullptr;
    std::int32_t stage = -1;
    std::uint64_t done = 0;
    transfer::TransferStats stats;
    bool direct = false;
    bool direct_refused = false;
  };
  // A set's registrations: indices into the kernel's tables.
  struct Registered {
    std::shared_ptr<const transfer::BlockSet> set;
    std::vector<std::uint32_t> buffers;
    std::vector<std::uint32_t> files;
  };
  struct KnownBuffer {
    std::byte* start = nullptr;
    std::uint64_t bytes = 0;
  };

  Ring(const UringOptions& options, int wake) noexcept;
  static Result<void> open(const UringOptions& options, io_uring* ring);

  // Runs `task` on the thread and waits for it; inline when called on the thread. False, with the task
  // dropped, when the ring is stopping.
  bool on_thread(std::function<void()> task);
  void wake();

  // Confined to the thread.
  void run();
  void take_inbox();
  // Submits everything prepared. Table entries change only when no operation refers to them.
  void submit_prepared();
  // Removes from the queue cancelled and late jobs that have not started.
  void sweep();
  void arm_wake();
  void start_operations();
  bool start_next(Job& job, const std::shared_ptr<Job>& shared);
  // Submits the rest of a slot's operation, or ends it when a fault says so.
  void issue(std::uint32_t slot);
  void completed(std::uint32_t slot, std::int32_t result);
  void end_operation(std::uint32_t slot);
  void finish_if_over(const std::shared_ptr<Job>& job);
  Result<void> place_memory(const transfer::BlockSet& set, Registered* out);
  Result<void> place_files(const transfer::BlockSet& set, Registered* out);
  void forget(const Registered& registered);
  std::int32_t find_buffer(const std::byte* memory, std::uint64_t bytes) const;

  const UringOptions options_;
  transfer::Admission admission_;
  io_uring ring_{};
  bool opened_ = false;
  int wake_;
  std::uint64_t woken_ = 0;  // target of the eventfd read

  Mutex mu_;
  CondVar task_done_;
  std::deque<std::shared_ptr<Job>> inbox_ ASHLAR_GUARDED_BY(mu_);
  std::deque<std::function<void()>> tasks_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t tasks_given_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::uint64_t tasks_run_ ASHLAR_GUARDED_BY(mu_) = 0;
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;

  std::deque<std::shared_ptr<Job>> active_;
  std::vector<Slot> slots_;
  std::vector<std::uint32_t> free_slots_;
  std::vector<Stage> stages_;
  std::vector<std::int32_t> free_stages_;
  std::vector<KnownBuffer> buffers_;
  std::vector<std::uint32_t> free_buffers_;
  std::vector<std::uint32_t> free_files_;
  std::unordered_map<int, std::uint32_t> file_places_;  // descriptor -> index
  std::unordered_map<std::uint64_t, Registered> registered_;
  std::uint64_t next_id_ = 1;
  bool stop_seen_ = false;
  std::uint64_t cancels_seen_ = 0;
  Clock::TimePoint next_deadline_ = Clock::TimePoint::max();

  std::thread thread_;
};

}  // namespace ashlar::backend::uring
