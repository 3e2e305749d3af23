// EventFences: fences that pass when CUDA events complete: preconditions of an offload.
//
//   cudaEventRecord(written, stream);                       // behind the kernel that writes the blocks
//   kv.register_blocks(std::move(blocks), {.after = {fences->after(written).value()}});
//
// Thread safety: thread-safe. Fences pass on a CUDA thread; their callbacks must not call CUDA.
#pragma once

#include <memory>

#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"

struct CUstream_st;
struct CUevent_st;

namespace ashlar::backend::cuda {

class EventFences {
 public:
  // Errors: as device_count(); kInvalidArgument: no such device.
  static Result<std::unique_ptr<EventFences>> create(int device = 0);
  // Waits for the events passed to it.
  ~EventFences();
  EventFences(const EventFences&) = delete;
  EventFences& operator=(const EventFences&) = delete;

  // Passes when the work recorded in the event so far completes; at once if none was. Errors: those of CUDA.
  Result<block::Fence> after(CUevent_st* event);

 private:
  EventFences(int device, CUstream_st* stream) noexcept : device_(device), stream_(stream) {}
  const int device_;
  CUstream_st* const stream_;
};

}  // namespace ashlar::backend::cuda
