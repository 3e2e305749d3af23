// CopyIssuer: puts the copies of a TransferPlan on a stream, a slice at a time.
//
// Each plane goes one of three ways: to the copy engines if its pieces, joined with their neighbours, are
// large enough on average; packed to the copy engines if they are so on the host side; otherwise to the
// kernel.
//
// Thread safety: thread-compatible. The plan outlives the issuer.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "ashlar/base/result.h"
#include "ashlar/transfer/copy_plan.h"
#include "ashlar/transfer/transfer_plan.h"
#include "backend/cuda/copy_batch.h"
#include "backend/cuda/copy_job.h"
#include "backend/cuda/job_cursor.h"
#include "backend/cuda/packer.h"

namespace ashlar::backend::cuda {

struct CopyRules {
  std::uint64_t switch_bytes = 0;  // larger pieces go to the copy engines
  std::uint64_t packed_run = 0;    // smaller ones that join to this size on the host are packed
  std::uint32_t blocks = 1;        // of the kernel
  std::uint64_t slice_bytes = std::uint64_t{64} << 20;
};

// Average bytes per contiguous copy when neighbouring blocks are joined.
std::uint64_t mean_run_bytes(const transfer::CopyPlan& plan) noexcept;

class CopyIssuer {
 public:
  // Without a packer nothing is packed.
  CopyIssuer(const transfer::TransferPlan& plan, const CopyRules& rules, Packer* packer = nullptr);

  bool done() const noexcept { return plane_ == plan_->copies().size(); }
  // Issues up to about `bytes`, at least one operation; nothing when done(). After an error some of it may be
  // on the stream.
  Result<Issued> issue(cudaStream_t stream, std::uint64_t bytes);

 private:
  Result<Issued> issue_engine(cudaStream_t stream, std::uint64_t bytes);
  Result<Issued> issue_kernel(cudaStream_t stream, std::uint64_t bytes);
  void open_plane();

  const transfer::TransferPlan* plan_;
  CopyRules rules_;
  Packer* packer_;
  std::size_t plane_ = 0;
  std::optional<transfer::CopyCursor> engine_;
  std::optional<JobCursor> kernel_;
  bool packed_ = false;  // by the packer, not by the kernel alone
  CopyBatch batch_;
  std::unique_ptr<LargeCopyJob> job_;
};

}  // namespace ashlar::backend::cuda
