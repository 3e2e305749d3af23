// CudaExecutor: moves blocks between a GPU and host memory, and inside the GPU.
//
// Large pieces go to the copy engines, small ones to a kernel that computes the addresses itself; the
// threshold is measured at creation, per direction. The kernel packs small pieces that make up whole blocks
// on the host inside the device, and the copy engines carry them. Every direction has its own streams.
// Page-locked memory is accessed directly. Pageable memory works too, through page-locked buffers and a
// thread, at the speed of the processor.
//
// A transfer is issued in slices of 64 MiB (512 inside the device); cancel() and deadlines act between
// slices. Threads wait for events to see completion; nothing polls.
//
// Thread safety: thread-safe. Destruction cancels transfers that have not started and waits for running ones.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"

// CUDA's own types behind cudaStream_t and cudaEvent_t.
struct CUstream_st;
struct CUevent_st;

namespace ashlar::backend::cuda {

// Pieces of at least this many bytes go to the copy engines.
struct SwitchPoints {
  std::uint64_t to_host = 0;
  std::uint64_t to_device = 0;
  std::uint64_t on_device = 0;
  // Smaller pieces that are adjacent on the host for at least this many bytes are packed in device memory and
  // then go to the copy engines.
  std::uint64_t packed_run = ~std::uint64_t{0};
};

struct CudaOptions {
  int device = 0;
  // Maximum thread blocks, of 512 threads, of the kernel that copies to the device: the share it may take
  // from compute kernels. Copies to the host use a quarter of them; packing uses twice as many, briefly.
  std::uint32_t copy_blocks = 16;
  // Device memory for packing, per direction; 0: nothing is packed. A quarter of it is enough while nothing
  // computes beside.
  std::uint64_t packing_bytes = std::uint64_t{128} << 20;
  // The same for copies inside the device; 0: four for each multiprocessor.
  std::uint32_t device_copy_blocks = 0;
  // Measured at creation (less than 100 ms) unless given.
  std::optional<SwitchPoints> switch_points = {};
  transfer::QueueLimits limits = {};
  Clock* clock = nullptr;  // default: the machine's

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

// For callers that order transfers among their own work. The transfer is issued whole before submit()
// returns, so events may be re-recorded or destroyed afterwards; cancel() has nothing left to stop.
struct CudaSubmitOptions {
  // The stream to issue on, of the executor's device; null: one of the executor's (cudaStreamLegacy names the
  // default stream). Not while a graph is captured on it. The executor keeps a thread for each stream it was
  // given; a stream must live until its transfers are done.
  CUstream_st* stream = nullptr;
  // The transfer starts when this event has passed.
  CUevent_st* wait_before = nullptr;
  // One for each selected layer: layers move in order, and each event is recorded on the stream after its
  // layer.
  std::span<CUevent_st* const> layer_events = {};
};

class CudaStreams;

class CudaExecutor final : public transfer::Executor {
 public:
  // Errors: kInvalidArgument: the options; kUnavailable with CUDA's reason: no driver or no device;
  // kCapacity, kIo: those of CUDA.
  static Result<std::unique_ptr<CudaExecutor>> create(const CudaOptions& options = {});
  ~CudaExecutor() override;

  std::string_view name() const noexcept override { return "cuda"; }
  // Device memory of this device on at least one side; the other is the same, or host memory.
  bool handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept override;
  // Errors: as Executor; kInvalidArgument: device memory that is not on the executor's device. A CUDA failure
  // after the request was admitted is the result of the transfer.
  Result<transfer::Transfer> submit(transfer::TransferRequest request) override;
  // Errors: also kInvalidArgument: the number of events differs from that of the layers, or one is null;
  // kUnsupported: pageable memory.
  Result<transfer::Transfer> submit(transfer::TransferRequest request, const CudaSubmitOptions& options);
  transfer::ExecutorCounters counters() const override;

  const SwitchPoints& switch_points() const noexcept;

 private:
  explicit CudaExecutor(std::unique_ptr<CudaStreams> streams) noexcept;
  std::unique_ptr<CudaStreams> streams_;
};

}  // namespace ashlar::backend::cuda
