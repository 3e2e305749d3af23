// Packer: moves small pieces through device memory, so that the copy engines see large ones.
//
// Where blocks are contiguous on the host and scattered on the device, the kernel packs pieces into a slot of
// device memory, at the speed of that memory, and the copy engines carry the slot over the link; the reverse
// towards the device. Each half has its own stream, so that engines and kernel overlap. This uses the link
// better than a kernel can, above all in both directions at once, and leaves the multiprocessors mostly free.
//
// Beside a computation that fills the multiprocessors a kernel waits for room, for some tenths of a
// millisecond: slots as large as what the link carries in that time keep it busy.
//
// Thread safety: thread-compatible; its CopyStream holds a lock.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <cstdint>
#include <memory>

#include "ashlar/base/result.h"
#include "backend/cuda/copy_batch.h"
#include "backend/cuda/copy_job.h"
#include "backend/cuda/job_cursor.h"

namespace ashlar::backend::cuda {

class Packer {
 public:
  // `bytes` of device memory in four slots; `blocks` for the kernel; `link` is the stream of the copy
  // engines. Errors: those of CUDA.
  static Result<std::unique_ptr<Packer>> create(std::uint64_t bytes, std::uint32_t blocks, bool to_host,
                                                cudaStream_t link);
  ~Packer();

  bool to_host() const noexcept { return to_host_; }
  // The stream on which a transfer ends.
  cudaStream_t end_stream() const noexcept { return to_host_ ? link_ : pack_; }
  // Issues the next pieces, up to about `bytes`. After an error nothing of it runs.
  Result<Issued> issue(JobCursor* cursor, std::uint64_t bytes, LargeCopyJob* job);

 private:
  struct Slot {
    std::byte* memory = nullptr;
    cudaEvent_t filled = nullptr;
    cudaEvent_t emptied = nullptr;
  };

  Packer(std::uint64_t slot_bytes, std::uint32_t blocks, bool to_host, cudaStream_t link) noexcept
      : slot_bytes_(slot_bytes), blocks_(blocks), to_host_(to_host), link_(link) {}
  cudaError_t open();
  cudaError_t issue_slot(Slot& slot, LargeCopyJob* job, Issued* issued);

  const std::uint64_t slot_bytes_;
  const std::uint32_t blocks_;
  const bool to_host_;
  const cudaStream_t link_;
  cudaStream_t pack_ = nullptr;
  std::array<Slot, 4> slots_;
  std::size_t next_slot_ = 0;
  std::byte* memory_ = nullptr;
  CopyBatch batch_;
};

}  // namespace ashlar::backend::cuda
