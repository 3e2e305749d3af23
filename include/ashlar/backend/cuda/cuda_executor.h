// CudaExecutor: moves blocks between a GPU and host memory, and inside the GPU.
//
// Large pieces go to the copy engines, small ones to a kernel that computes the addresses by itself; the size
// at which this changes is measured at creation, per direction. Small pieces that make up whole blocks on the
// host are packed by the kernel inside the device and carried by the copy engines. Every direction has
// streams of its own. Page-locked memory is reached directly. Pageable memory works too, through page-locked
// buffers and a thread, at the speed of the processor.
//
// A transfer is issued in slices of 64 MiB (512 inside the device); cancel() and deadlines act between
// slices. Ends are seen by threads that wait for events, never by asking again and again.
//
// Thread safety: thread-safe. Destruction cancels what has not started and waits for what runs.
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

// Pieces of this many bytes and more go to the copy engines.
struct SwitchPoints {
  std::uint64_t to_host = 0;
  std::uint64_t to_device = 0;
  std::uint64_t on_device = 0;
  // Smaller pieces that lie side by side on the host, for this many bytes and more, are packed in device
  // memory and go to the copy engines then.
  std::uint64_t packed_run = ~std::uint64_t{0};
};

struct CudaOptions {
  int device = 0;
  // Thread blocks of 512 threads for the kernel that copies to the device, at most: what it may take from
  // those who compute. A quarter of them copies to the host, twice as many pack, for short moments.
  std::uint32_t copy_blocks = 16;
  // Device memory for packing, per direction; 0: nothing is packed.
  std::uint64_t packing_bytes = std::uint64_t{32} << 20;
  // The same for copies inside the device; 0: four for each multiprocessor.
  std::uint32_t device_copy_blocks = 0;
  // Measured at creation (less than 100 ms) unless given.
  std::optional<SwitchPoints> switch_points = {};
  transfer::QueueLimits limits = {};
  Clock* clock = nullptr;  // the machine's unless given

  // Errors: kInvalidArgument with the field and its value.
  Result<void> validate() const;
};

// For callers who order transfers among their own work. The transfer is issued whole before submit() returns,
// so events may be recorded anew or destroyed afterwards; cancel() has nothing left to stop.
struct CudaSubmitOptions {
  // The stream to issue on, of the executor's device; null: one of the executor's (cudaStreamLegacy names the
  // default stream). Not while a graph is captured on it. The executor keeps a thread for each stream that it
  // was given; a stream lives until its transfers are done.
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
  // Device memory of this device at one end at least; at the other the same, or host memory.
  bool handles(const transfer::BlockSet& from, const transfer::BlockSet& to) const noexcept override;
  // Errors: as Executor; kInvalidArgument: device memory that is not on the executor's device. A failure of
  // CUDA after the request was taken in is the result of the transfer.
  Result<transfer::Transfer> submit(transfer::TransferRequest request) override;
  // Errors: also kInvalidArgument: as many events as there are not layers, or a null one; kUnsupported:
  // pageable memory.
  Result<transfer::Transfer> submit(transfer::TransferRequest request, const CudaSubmitOptions& options);
  transfer::ExecutorCounters counters() const override;

  const SwitchPoints& switch_points() const noexcept;

 private:
  explicit CudaExecutor(std::unique_ptr<CudaStreams> core) noexcept;
  std::unique_ptr<CudaStreams> core_;
};

}  // namespace ashlar::backend::cuda
