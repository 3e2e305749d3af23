// CopyStream: a CUDA stream, the transfers queued for it, and the thread that waits for them.
//
// Transfers are issued in slices, as many as keep the stream busy; the rest is queued here, where cancel()
// and deadlines still apply. Issued slices end in stream order.
//
// Thread safety: thread-safe. Holds its lock while it calls CUDA, never while it finishes a transfer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/transfer_plan.h"
#include "backend/cuda/copy_issuer.h"
#include "backend/cuda/packer.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::backend::cuda {

class CopyStream {
 public:
  // On its own stream, with higher or lower priority, or on the caller's. Errors: those of CUDA.
  static Result<std::unique_ptr<CopyStream>> create(int device, const CopyRules& rules, bool urgent,
                                                    cudaStream_t borrowed = nullptr);
  // Cancels transfers not yet issued and waits for the rest.
  ~CopyStream();

  // Enables packing of small pieces. Requires: no transfer yet. Errors: as Packer::create().
  Result<void> pack(std::uint64_t bytes, std::uint32_t blocks, bool to_host);

  void submit(std::shared_ptr<transfer::TransferState> state);
  // Issues everything before it returns: after `wait_before`, plan by plan, with an event after each. `parts`
  // make up the plan of the transfer; without events there is one part, the plan itself.
  void submit_at_once(std::shared_ptr<transfer::TransferState> state, cudaEvent_t wait_before,
                      std::span<const transfer::TransferPlan> parts, std::span<const cudaEvent_t> events);

 private:
  struct Task {
    std::shared_ptr<transfer::TransferState> state;
    std::optional<CopyIssuer> issuer;
    std::uint32_t running = 0;  // slices on the stream
    bool started = false;
    bool closed = false;  // no more of it will be issued
  };
  struct Slice {
    cudaEvent_t event = nullptr;
    std::shared_ptr<Task> task;
    Issued issued;
  };
  using Ended = std::vector<std::shared_ptr<transfer::TransferState>>;

  CopyStream(int device, const CopyRules& rules, cudaStream_t stream, bool owned) noexcept
      : device_(device), rules_(rules), stream_(stream), owned_(owned) {}

  void issue_more(Ended* ended) ASHLAR_REQUIRES(mu_);
  void sweep(Ended* ended) ASHLAR_REQUIRES(mu_);
  cudaError_t issue_parts(transfer::TransferState& state, cudaEvent_t wait_before,
                          std::span<const transfer::TransferPlan> parts, std::span<const cudaEvent_t> events,
                          Issued* issued) ASHLAR_REQUIRES(mu_);
  // Records an event after the issued work. False when CUDA refuses; the stream has then been synchronized.
  bool mark(const std::shared_ptr<Task>& task, const Issued& issued) ASHLAR_REQUIRES(mu_);
  void close(const std::shared_ptr<Task>& task, Ended* ended) ASHLAR_REQUIRES(mu_);
  void watch();

  const int device_;
  const CopyRules rules_;
  const cudaStream_t stream_;
  const bool owned_;
  std::unique_ptr<Packer> packer_;  // used under the lock

  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<Task>> waiting_ ASHLAR_GUARDED_BY(mu_);
  std::deque<Slice> running_ ASHLAR_GUARDED_BY(mu_);
  std::uint64_t running_bytes_ ASHLAR_GUARDED_BY(mu_) = 0;
  std::vector<cudaEvent_t> free_events_ ASHLAR_GUARDED_BY(mu_);
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread watcher_;
};

}  // namespace ashlar::backend::cuda
