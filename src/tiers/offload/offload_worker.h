// OffloadWorker: runs one offload route, from a tier to one below it.
//
// Blocks are offered by hash, pass the policy, go through the table (offload_table.h), and are copied in
// batches on the worker's thread: when enough of them are on deck, or the oldest has waited long enough.
// Blocks that have arrived can be offered to the next worker. Offering a block that is already on its way
// joins it: nothing is copied twice.
//
// Thread safety: thread-safe. Destruction drops queued blocks and waits for the batches in flight.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"
#include "ashlar/tiers/offload_handle.h"
#include "ashlar/tiers/offload_options.h"
#include "tiers/offload/offload_table.h"
#include "tiers/pool/block_mover.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

class OffloadWorker {
 public:
  using Started = OffloadTable::Started;
  // Starts copying blocks to the lower tier; the returned function is called once and completes the move. A
  // batch is completed while the next one is copied, so batches arrive in order. The control lives until
  // then, and the worker may cancel it at any time. The deadline is in the worker's clock.
  using Finish = std::function<MoveReport()>;
  using Begin = std::function<Finish(std::vector<block::Hold>, const MoveOptions&)>;
  // Called for each block that has arrived in the lower tier, with the priority it was offloaded at.
  using Arrived = std::function<void(const tokens::SequenceHash&, std::uint8_t priority)>;

  // Pools outlive the worker. `begin` and `arrived` run on the worker's thread. Errors: kInvalidArgument;
  // kCapacity: no thread.
  static Result<std::unique_ptr<OffloadWorker>> create(TierPool& from, TierPool& to, Begin begin,
                                                       OffloadWorkerOptions options, Arrived arrived = {});
  ~OffloadWorker();

  // A block also waits for the precondition of its registration in the upper tier. Requires: 0, 1 or
  // `hashes.size()` preconditions.
  OffloadHandle offload(std::span<const tokens::SequenceHash> hashes, const OffloadOptions& options);
  OffloadHandle offload(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority) {
    return offload(hashes, OffloadOptions{.priority = priority});
  }
  // The same without a handle: the blocks are offered permanently and cost only their place in the table.
  // Requires: as offload().
  void suggest(std::span<const tokens::SequenceHash> hashes, std::uint8_t priority,
               std::span<const block::Fence> after = {});
  // Starts queued blocks at once and waits until none is queued or in flight. Blocks that wait for a
  // precondition stay. False when `until` passed first.
  bool drain(std::optional<Clock::TimePoint> until = {}) { return table_->drain(until); }
  // Drops queued blocks, and either waits for copies in flight or stops their batches and re-offers the other
  // blocks of those batches. Calls for dropped blocks end as cancelled. On return the worker holds none of
  // the blocks, except those offered concurrently.
  void withdraw(std::span<const tokens::SequenceHash> hashes, Started started = Started::kFinish) {
    table_->withdraw(hashes, started);
  }
  // Drops every block that has not started, and accepts no more: those offered from now on end as cancelled,
  // also the later ones of an offload() that is running. Returns the number of dropped blocks.
  std::size_t shut_down() { return table_->drop_queued(OffloadTable::Later::kRefuse); }
  // Changes the priority of a block that has not started.
  void set_priority(const tokens::SequenceHash& hash, std::uint8_t priority) {
    table_->set_priority(hash, priority);
  }
  OffloadCounters counters() const { return table_->counters(); }
  const TierPool& to() const noexcept { return to_; }
  // For tests. See OffloadTable.
  void check_invariants() const { table_->check_invariants(); }

 private:
  struct Batch {
    std::shared_ptr<OffloadBatch> blocks;
    Finish finish;
  };

  OffloadWorker(TierPool& from, TierPool& to, Begin begin, OffloadWorkerOptions options, Arrived arrived);
  bool passes(const tokens::SequenceHash& hash, std::uint8_t priority) const;
  // By the block's retention in the upper tier.
  std::uint8_t priority_of(const tokens::SequenceHash& hash) const;
  void run();
  std::optional<Batch> begin();
  void finish(Batch batch);

  TierPool& from_;
  TierPool& to_;
  const Begin begin_;
  const OffloadWorkerOptions options_;
  const Arrived arrived_;
  const std::shared_ptr<OffloadTable> table_;  // handles may outlive the worker
  std::thread thread_;
};

}  // namespace ashlar::tiers
