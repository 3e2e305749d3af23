// StagedCopier: transfers between the device and pageable memory, which the device cannot access directly.
//
// A thread moves the pieces of a transfer through two page-locked buffers: while the device fills or empties
// one, the thread handles the other. Large pieces are left to CUDA, which does the same. Buffers and stream
// are created for the first transfer.
//
// Thread safety: thread-safe.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>

#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "backend/cuda/copy_issuer.h"
#include "backend/cuda/job_cursor.h"
#include "transfer/copy/transfer_state.h"

namespace ashlar::backend::cuda {

class StagedCopier {
 public:
  // `to_host`: which end is pageable.
  StagedCopier(int device, std::uint32_t blocks, bool to_host)
      : device_(device), blocks_(blocks), to_host_(to_host) {}
  ~StagedCopier();

  void submit(std::shared_ptr<transfer::TransferState> state);
  // Cancels queued transfers and waits for the running one.
  void stop();

 private:
  struct Buffer {
    std::byte* memory = nullptr;
    cudaEvent_t event = nullptr;
    std::unique_ptr<LargeCopyJob> host;  // the thread's work after the event has passed
  };

  void work();
  Result<void> open();
  Result<void> run(transfer::TransferState& state);
  Result<void> run_large(transfer::TransferState& state, std::size_t plane);
  Result<void> run_small(transfer::TransferState& state, std::size_t plane);
  Result<void> settle(transfer::TransferState& state, Buffer& buffer);

  const int device_;
  const std::uint32_t blocks_;
  const bool to_host_;

  // Confined to the thread.
  cudaStream_t stream_ = nullptr;
  std::array<Buffer, 2> buffers_;
  std::unique_ptr<LargeCopyJob> job_;

  Mutex mu_;
  CondVar changed_;
  std::deque<std::shared_ptr<transfer::TransferState>> waiting_ ASHLAR_GUARDED_BY(mu_);
  bool stopping_ ASHLAR_GUARDED_BY(mu_) = false;
  std::thread thread_ ASHLAR_GUARDED_BY(mu_);
};

}  // namespace ashlar::backend::cuda
