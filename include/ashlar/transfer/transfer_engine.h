// TransferEngine: routes each transfer to an executor that can run it.
//
// An executor that handles both kinds of storage takes the transfer as it is. Where there is none, as between
// a GPU and a disk, the transfer goes in two hops through page-locked memory: while one half of that memory
// is filled with a batch of blocks, the other half is emptied.
//
// Thread safety: thread-safe. Destruction cancels hops that have not started and waits for running ones.
// Complexity:    choosing an executor is linear in their number; two hops use `staging_bytes` once, for all
//                transfers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/transfer/executor.h"

namespace ashlar::transfer {

struct TransferEngineOptions {
  std::vector<std::shared_ptr<Executor>> executors;  // the first that handles a transfer takes it
  // Memory between two hops, allocated on first use. Null: no transfer takes two hops.
  std::shared_ptr<storage::Allocator> staging = {};
  std::uint64_t staging_bytes = std::uint64_t{64} << 20;
  QueueLimits limits = {};  // of transfers with two hops
  Clock* clock = nullptr;

  // Errors: kInvalidArgument: no executor, a null one, no staging bytes, or limits.
  Result<void> validate() const;
};

class HopRunner;

class TransferEngine final : public Executor {
 public:
  static Result<std::unique_ptr<TransferEngine>> create(TransferEngineOptions options);
  ~TransferEngine() override;

  std::string_view name() const noexcept override { return "engine"; }
  bool handles(const BlockSet& from, const BlockSet& to) const noexcept override;
  // Errors: those of the executors; kUnsupported: no executor, and no two hops, lead there. For two hops also
  // kCapacity, with the numbers: the staging memory cannot be allocated, or is too small for two blocks.
  Result<Transfer> submit(TransferRequest request) override;
  // Counts transfers with two hops only. Executors count the others, and the hops themselves.
  ExecutorCounters counters() const override;

  // The executors that a transfer would use: "uring", "cuda, then uring", or "none".
  std::string path(const BlockSet& from, const BlockSet& to) const;

 private:
  TransferEngine(TransferEngineOptions options, std::unique_ptr<HopRunner> hops) noexcept;
  Executor* direct(const BlockSet& from, const BlockSet& to) const noexcept;

  TransferEngineOptions options_;
  std::unique_ptr<HopRunner> hops_;
};

// What tiers need to keep blocks in the memory of a device; backend::cuda::device_support() makes it.
struct DeviceSupport {
  std::shared_ptr<Executor> executor;          // between the device, the host and files
  std::shared_ptr<storage::Allocator> memory;  // of the device
  std::shared_ptr<storage::Allocator> host;    // page-locked
};

}  // namespace ashlar::transfer
