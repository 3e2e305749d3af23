#include "backend/cuda/staged_copier.h"

#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/transfer/copy_plan.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/cuda_error.h"
#include "base/interleaving.h"
#include "base/start_thread.h"

namespace ashlar::backend::cuda {
namespace {

constexpr std::uint64_t kBufferBytes = std::uint64_t{4} << 20;
constexpr std::uint64_t kLargePiece = std::uint64_t{128} << 10;  // from here on CUDA's own staging is as fast
constexpr std::uint64_t kStripBytes = std::uint64_t{8} << 20;
static_assert(kLargePiece <= kBufferBytes, "a piece that is staged fits into a buffer");

void copy_on_host(const LargeCopyJob& job) {
  for (std::uint32_t i = 0; i < job.shape.pieces; ++i) {
    const PieceAddresses at = locate(job, job.shape.first_piece + i);
    std::memcpy(reinterpret_cast<void*>(at.to), reinterpret_cast<const void*>(at.from),
                job.shape.piece_bytes);
  }
}

}  // namespace

void StagedCopier::stop() {
  std::thread thread;
  {
    const MutexLock lock(mu_);
    stopping_ = true;
    for (const auto& state : waiting_) state->cancel();
    thread = std::move(thread_);
    changed_.notify_all();
  }
  if (thread.joinable()) thread.join();
}

StagedCopier::~StagedCopier() {
  stop();
  const DeviceScope scope(device_);
  for (Buffer& buffer : buffers_) {
    if (buffer.event != nullptr) cudaEventDestroy(buffer.event);
    if (buffer.memory != nullptr) cudaFreeHost(buffer.memory);
  }
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void StagedCopier::submit(std::shared_ptr<transfer::TransferState> state) {
  Result<void> started;
  {
    const MutexLock lock(mu_);
    if (!thread_.joinable()) started = start_thread(&thread_, [this] { work(); });
    if (started) waiting_.push_back(state);
    changed_.notify_all();
  }
  if (started) return;
  state->fail(started.error());
  state->finish();
}

void StagedCopier::work() {
  const DeviceScope scope(device_);
  for (;;) {
    std::shared_ptr<transfer::TransferState> state;
    {
      const MutexLock lock(mu_);
      while (waiting_.empty() && !stopping_) changed_.wait(mu_);
      if (waiting_.empty()) return;
      state = std::move(waiting_.front());
      waiting_.pop_front();
    }
    if (state->may_continue()) {
      state->start();
      Result<void> ran = open();
      if (ran) ran = run(*state);
      if (!ran) state->fail(ran.error());
      // The stream must be idle when the transfer ends.
      if (stream_ != nullptr)
        if (const cudaError_t status = cudaStreamSynchronize(stream_); status != cudaSuccess)
          state->fail(cuda_error(status, "the end of a staged transfer"));
      for (Buffer& buffer : buffers_) buffer.host.reset();
    }
    state->finish();
  }
}

Result<void> StagedCopier::open() {
  if (job_ != nullptr) return {};
  cudaError_t status = cudaSuccess;
  if (stream_ == nullptr) status = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  for (Buffer& buffer : buffers_) {
    void* memory = buffer.memory;
    if (status == cudaSuccess && memory == nullptr) status = cudaMallocHost(&memory, kBufferBytes);
    buffer.memory = static_cast<std::byte*>(memory);
    if (status == cudaSuccess && buffer.event == nullptr)
      status = cudaEventCreateWithFlags(&buffer.event, cudaEventBlockingSync | cudaEventDisableTiming);
  }
  if (status != cudaSuccess)
    return cuda_error(status, "two page-locked buffers of %llu bytes are needed for pageable memory",
                      static_cast<unsigned long long>(kBufferBytes));
  job_ = std::make_unique_for_overwrite<LargeCopyJob>();
  return {};
}

Result<void> StagedCopier::run(transfer::TransferState& state) {
  for (std::size_t plane = 0; plane < state.plan().copies().size(); ++plane) {
    const transfer::CopyPlan& copy = state.plan().copies()[plane];
    if (copy.bytes() == 0) continue;
    const Result<void> ran =
        mean_run_bytes(copy) >= kLargePiece ? run_large(state, plane) : run_small(state, plane);
    if (!ran) return ran;
  }
  return {};
}

Result<void> StagedCopier::run_large(transfer::TransferState& state, std::size_t plane) {
  const transfer::TransferPlan& plan = state.plan();
  const transfer::CopyPlan& copy = plan.copies()[plane];
  transfer::CopyCursor cursor(copy, kStripBytes, 0, transfer::CopyCursor::units(copy, kStripBytes));
  transfer::CopyPiece piece;
  while (state.may_continue() && cursor.next(&piece)) {
    interleaving_point("cuda.staged_turn");
    cudaError_t status =
        cudaMemcpyAsync(plan.to().address(plane, piece.to), plan.from().address(plane, piece.from),
                        piece.bytes, cudaMemcpyDefault, stream_);
    if (status == cudaSuccess) status = cudaStreamSynchronize(stream_);
    if (status != cudaSuccess)
      return cuda_error(status, "a copy of %llu bytes of pageable memory failed",
                        static_cast<unsigned long long>(piece.bytes));
    state.moved({.bytes = piece.bytes, .operations = 1, .staged_bytes = piece.bytes});
  }
  return {};
}

// To the host: the device fills a buffer, and the thread empties it on its next turn. To the device: the
// thread fills a buffer, and the device empties it meanwhile.
Result<void> StagedCopier::run_small(transfer::TransferState& state, std::size_t plane) {
  const transfer::TransferPlan& plan = state.plan();
  JobCursor cursor(plan.copies()[plane], plan.from(), plan.to(), plane);
  for (std::size_t turn = 0; !cursor.done() && state.may_continue(); ++turn) {
    interleaving_point("cuda.staged_turn");
    Buffer& buffer = buffers_[turn % buffers_.size()];
    ASHLAR_RETURN_IF_ERROR(settle(state, buffer));
    cursor.next(kBufferBytes, job_.get());
    ASHLAR_CHECK(job_->shape.pieces * job_->shape.piece_bytes <= kBufferBytes,
                 "%u pieces of %llu bytes pass the end of a buffer", job_->shape.pieces,
                 static_cast<unsigned long long>(job_->shape.piece_bytes));
    auto host = std::make_unique<LargeCopyJob>(*job_);
    if (to_host_) {
      make_destination_linear(buffer.memory, job_.get());
      make_source_linear(buffer.memory, host.get());
    } else {
      make_source_linear(buffer.memory, job_.get());
      make_destination_linear(buffer.memory, host.get());
      copy_on_host(*host);
    }
    buffer.host = std::move(host);
    cudaError_t status = launch_copy(*job_, blocks_, stream_);
    if (status == cudaSuccess) status = cudaEventRecord(buffer.event, stream_);
    if (status != cudaSuccess)
      return cuda_error(status, "the copy kernel cannot be launched for %u pieces of %llu bytes",
                        job_->shape.pieces, static_cast<unsigned long long>(job_->shape.piece_bytes));
  }
  for (Buffer& buffer : buffers_) ASHLAR_RETURN_IF_ERROR(settle(state, buffer));
  return {};
}

// Waits for the device, then does the thread's part for a buffer.
Result<void> StagedCopier::settle(transfer::TransferState& state, Buffer& buffer) {
  if (buffer.host == nullptr) return {};
  if (const cudaError_t status = cudaEventSynchronize(buffer.event); status != cudaSuccess)
    return cuda_error(status, "a staged copy of %u pieces failed", buffer.host->shape.pieces);
  if (to_host_) copy_on_host(*buffer.host);
  const std::uint64_t bytes = buffer.host->shape.pieces * buffer.host->shape.piece_bytes;
  state.moved({.bytes = bytes, .operations = 1, .staged_bytes = bytes});
  buffer.host.reset();
  return {};
}

}  // namespace ashlar::backend::cuda
