// HopRunner: runs two-hop transfers, one after the other, on its own thread.
//
// Thread safety: thread-safe. Destruction cancels queued transfers and waits for the running one.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <thread>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/transfer_engine.h"
#include "transfer/copy/admission.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::transfer {

// Staging memory between the hops: two halves, each its own block set.
struct Staging {
  std::array<std::shared_ptr<const BlockSet>, 2> halves;
  Executor* in = nullptr;
  Executor* out = nullptr;
};

class HopRunner {
 public:
  // Errors: kCapacity: the system has no more threads.
  static Result<std::unique_ptr<HopRunner>> create(const TransferEngineOptions& options);
  ~HopRunner();
  HopRunner(const HopRunner&) = delete;
  HopRunner& operator=(const HopRunner&) = delete;

  // The staging for a plan between these sets, or without one for all they have in common. Errors:
  // kUnsupported: no two hops lead there; kCapacity: no staging memory.
  Result<Staging> route(const BlockSet& from, const BlockSet& to, const PlanSelection& selection);
  Result<Transfer> submit(TransferRequest request);
  ExecutorCounters counters() const { return admission_.counters(); }

 private:
  struct Job {
    std::shared_ptr<TransferState> state;
    Staging staging;
  };
  struct Running {  // a second hop
    Transfer transfer;
    std::uint64_t bytes;
    std::uint64_t operations;  // of the first
  };
  Result<std::shared_ptr<storage::Storage>> memory() ASHLAR_EXCLUDES(memory_mu_);
  explicit HopRunner(const TransferEngineOptions& options);
  void run();
  void move(const Job& job);
  // Ends queued jobs that were cancelled or are late.
  void sweep();
  // Waits for a second hop to end and reports it; false when it failed.
  static bool settle(TransferState& state, std::optional<Running>& hop);

  const TransferEngineOptions options_;
  Admission admission_;
  Mutex memory_mu_;
  std::shared_ptr<storage::Storage> memory_ ASHLAR_GUARDED_BY(memory_mu_);
  Mutex mu_;
  CondVar work_;
  std::deque<Job> jobs_ ASHLAR_GUARDED_BY(mu_);
  std::shared_ptr<TransferState> current_ ASHLAR_GUARDED_BY(mu_);
  bool closing_ ASHLAR_GUARDED_BY(mu_) = false;   // new transfers are cancelled
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;  // no more transfers arrive
  std::thread thread_;
};

}  // namespace ashlar::transfer
