// TransferEngine: finds the way for a transfer among the executors that there are.
//
// One executor that handles both kinds of storage takes the transfer as it is. Where there is none, as
// between a GPU and a disk, it goes in two hops through page-locked memory: a batch of blocks is read into
// one half of it while the batch before is written from the other.
//
// Thread safety: thread-safe. Destruction cancels hops that have not started and waits for what runs.
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
  // Memory between two hops; taken when a way through it is first looked for. Null: there are no two hops.
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
  // Errors: those of the executors. For two hops also kCapacity: the memory in between cannot be had or is
  // too small for two blocks, with the numbers.
  Result<Transfer> submit(TransferRequest request) override;
  // Of transfers with two hops; those with one are counted by their executors, as are the hops.
  ExecutorCounters counters() const override;

  // How a transfer would go: "uring", "cuda, then uring", or "none".
  std::string path(const BlockSet& from, const BlockSet& to) const;

 private:
  TransferEngine(TransferEngineOptions options, std::unique_ptr<HopRunner> hops) noexcept;
  Executor* direct(const BlockSet& from, const BlockSet& to) const noexcept;

  TransferEngineOptions options_;
  std::unique_ptr<HopRunner> hops_;
};

}  // namespace ashlar::transfer
