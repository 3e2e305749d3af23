#include "backend/cuda/packer.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "backend/cuda/copy_kernel.h"
#include "backend/cuda/cuda_error.h"

namespace ashlar::backend::cuda {
namespace {

// The copies between a slot and the host: runs of pieces contiguous on the host.
template <class Add>
void for_each_run(const LargeCopyJob& job, bool to_host, std::byte* slot, Add&& add) {
  const std::uint32_t end = job.shape.first_piece + job.shape.pieces;
  const std::uint32_t run = host_run_pieces(job, to_host);
  std::uint64_t start = 0;
  std::uint64_t bytes = 0;
  for (std::uint32_t piece = job.shape.first_piece; piece < end;) {
    const std::uint32_t count = std::min(run - piece % run, end - piece);
    const PieceAddresses at = locate(job, piece);
    const std::uint64_t host = to_host ? at.to : at.from;
    if (bytes != 0 && host != start + bytes) {
      add(reinterpret_cast<std::byte*>(start), slot, bytes);
      slot += bytes;
      bytes = 0;
    }
    if (bytes == 0) start = host;
    bytes += count * job.shape.piece_bytes;
    piece += count;
  }
  if (bytes != 0) add(reinterpret_cast<std::byte*>(start), slot, bytes);
}

}  // namespace

Result<std::unique_ptr<Packer>> Packer::create(std::uint64_t bytes, std::uint32_t blocks, bool to_host,
                                               cudaStream_t link) {
  constexpr std::uint64_t kAligned = 4096;
  std::unique_ptr<Packer> packer(new Packer(bytes / 4 / kAligned * kAligned, blocks, to_host, link));
  if (const cudaError_t status = packer->open(); status != cudaSuccess)
    return cuda_error(status, "%llu bytes of device memory for packing",
                      static_cast<unsigned long long>(bytes));
  return packer;
}

cudaError_t Packer::open() {
  int least = 0;
  int greatest = 0;
  cudaError_t status = cudaDeviceGetStreamPriorityRange(&least, &greatest);
  if (status == cudaSuccess) status = cudaStreamCreateWithPriority(&pack_, cudaStreamNonBlocking, greatest);
  void* memory = nullptr;
  if (status == cudaSuccess) status = cudaMalloc(&memory, slot_bytes_ * slots_.size());
  memory_ = static_cast<std::byte*>(memory);
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].memory = memory_ + i * slot_bytes_;
    for (cudaEvent_t* event : {&slots_[i].filled, &slots_[i].emptied})
      if (status == cudaSuccess) status = cudaEventCreateWithFlags(event, cudaEventDisableTiming);
  }
  return status;
}

Packer::~Packer() {
  for (const Slot& slot : slots_) {
    if (slot.filled != nullptr) cudaEventDestroy(slot.filled);
    if (slot.emptied != nullptr) cudaEventDestroy(slot.emptied);
  }
  if (memory_ != nullptr) cudaFree(memory_);
  if (pack_ != nullptr) cudaStreamDestroy(pack_);
}

Result<Issued> Packer::issue(JobCursor* cursor, std::uint64_t bytes, LargeCopyJob* job) {
  Issued issued;
  issued.stream = end_stream();
  while (!cursor->done() && issued.bytes < bytes) {
    // Whole runs, if a slot holds one.
    const std::uint64_t run = cursor->host_run_bytes(to_host_);
    cursor->next(run <= slot_bytes_ ? slot_bytes_ / run * run : slot_bytes_, job);
    Slot& slot = slots_[next_slot_++ % slots_.size()];
    if (const cudaError_t status = issue_slot(slot, job, &issued); status != cudaSuccess) {
      static_cast<void>(cudaStreamSynchronize(link_));
      static_cast<void>(cudaStreamSynchronize(pack_));
      return cuda_error(status, "%u pieces of %llu bytes cannot be packed", job->shape.pieces,
                        static_cast<unsigned long long>(job->shape.piece_bytes));
    }
  }
  issued.staged = issued.bytes;
  return issued;
}

// Streams wait, never the caller: a slot is filled when its last content has left it.
cudaError_t Packer::issue_slot(Slot& slot, LargeCopyJob* job, Issued* issued) {
  batch_.clear();
  for_each_run(*job, to_host_, slot.memory, [&](std::byte* host, std::byte* packed, std::uint64_t bytes) {
    batch_.add(to_host_ ? host : packed, to_host_ ? packed : host, bytes);
  });
  const std::uint64_t packed_bytes = job->shape.pieces * job->shape.piece_bytes;
  ASHLAR_CHECK(packed_bytes <= slot_bytes_, "%llu bytes are packed into a slot of %llu",
               static_cast<unsigned long long>(packed_bytes), static_cast<unsigned long long>(slot_bytes_));
  issued->bytes += packed_bytes;
  issued->operations += batch_.to.size() + 1;
  const cudaStream_t fills = to_host_ ? pack_ : link_;
  const cudaStream_t empties = to_host_ ? link_ : pack_;
  const auto run_kernel = [&] {
    if (to_host_) {
      make_destination_linear(slot.memory, job);
    } else {
      make_source_linear(slot.memory, job);
    }
    return launch_copy(*job, blocks_, pack_);
  };
  cudaError_t status = cudaStreamWaitEvent(fills, slot.emptied, 0);
  if (status == cudaSuccess) status = to_host_ ? run_kernel() : batch_.issue(link_);
  if (status == cudaSuccess) status = cudaEventRecord(slot.filled, fills);
  if (status == cudaSuccess) status = cudaStreamWaitEvent(empties, slot.filled, 0);
  if (status == cudaSuccess) status = to_host_ ? batch_.issue(link_) : run_kernel();
  if (status == cudaSuccess) status = cudaEventRecord(slot.emptied, empties);
  return status;
}

}  // namespace ashlar::backend::cuda
