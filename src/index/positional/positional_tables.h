// PositionalTables: the implementation of PositionalIndexer (see its header).
//
// Locks, in acquisition order:
//   gate_               the slot and the WorkerBlocks of each worker. Held shared by every call, exclusively
//                       only while a worker gets or loses its slot.
//   WorkerBlocks::lock  names and records of one worker.
//   Shard::lock         the entries of one shard, for one lookup or change at a time.
//
// A new worker gets its slot first, empty; a worker that became empty loses it in a second step that checks
// again. A query holds the gate, so a slot means one worker throughout.
//
// A cleared worker is retired first: under the gate alone, it loses its slot and its WorkerBlocks. Queries
// skip retired slots, so it leaves every answer at once. Then its blocks are removed one by one, each under
// the lock of its shard; then the slot is free. A concurrent store gets another slot.
//
// A store that runs out of memory undoes its changes, from its last block to its first, and is refused.
// Removals need no memory.
//
// Writers keep nested workers nested at every instant: blocks are added front to back, and a change that
// breaks the nesting is posted on the board before it begins (positional_nesting.h).
//
// Thread safety: thread-safe.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/index/positional_indexer.h"
#include "index/common/retired_workers.h"
#include "index/common/worker_slots.h"
#include "index/positional/positional_chain.h"
#include "index/positional/positional_lock.h"
#include "index/positional/positional_map.h"
#include "index/positional/positional_nesting.h"
#include "index/positional/positional_worker.h"

namespace ashlar::index::detail {

#define ASHLAR_SHARES_GATE ASHLAR_ATTRIBUTE(requires_shared_capability(gate_))

class PositionalQuery;
struct StorePlan;

class PositionalTables {
 public:
  explicit PositionalTables(const PositionalOptions& options);
  PositionalTables(const PositionalTables&) = delete;
  PositionalTables& operator=(const PositionalTables&) = delete;

  StoreVerdict store(const BlocksStored& event);
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  void clear(const Worker& worker);
  void remove_worker(WorkerId id);
  void find_matches(std::span<const LocalHash> locals, MatchScores& scores, const FindOptions& options) const;
  static std::size_t lookups_of_last_find() noexcept;
  void dump(IndexSink& sink) const;
  void presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const;
  void list(const Worker& worker, std::vector<BlockPresence>& out) const;
  IndexSizes sizes() const;
  IndexCounters counters() const;

 private:
  friend class PositionalQuery;

  static constexpr std::uint32_t kMaxDepth = 1u << 31;
  static constexpr std::size_t kMaxRecords = std::size_t{1} << 31;  // of a worker
  static constexpr std::size_t kRanksPerHold =
      256;  // workers that lose their slots under one hold of the gate

  struct alignas(64) Shard {
    RwLock lock;
    PositionalMap map ASHLAR_GUARDED_BY(lock);
  };
  struct Counters {
    std::atomic<std::uint64_t> stored{0}, repeated{0}, removed{0}, unknown_removals{0}, unknown_parents{0},
        wrong_positions{0}, names_in_use{0}, empty_stores{0}, unknown_tiers{0}, full{0}, clears{0};
  };

  // Relaxed: counters order nothing, and readers want only sums.
  static void count(std::atomic<std::uint64_t>& counter, std::uint64_t by = 1) noexcept {
    counter.fetch_add(by, std::memory_order_relaxed);
  }
  StoreVerdict refused(StoreVerdict verdict) noexcept;

  std::uint64_t key_of(const HeldBlock& record) const noexcept {
    return entry_key(record.position, record.local, seed_);
  }
  Shard& shard_of(std::uint64_t key) const noexcept { return shards_[key & shard_mask_]; }
  // For the prefetches of its map, which need no lock.
  [[gnu::always_inline]] const PositionalMap& map_of(std::uint64_t key) const noexcept
      ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    return shard_of(key).map;
  }
  // Adds the content to the slot's worker in these tiers. Returns the tiers it was in before.
  TierMask publish(std::uint64_t key, const Chain& chain, std::uint32_t slot,
                   TierMask tiers) ASHLAR_SHARES_GATE {
    Shard& shard = shard_of(key);
    const ExclusiveHold hold(shard.lock);
    return shard.map.add(key, chain, slot, tiers, slots_.capacity());
  }
  void withdraw(std::uint64_t key, const Chain& chain, std::uint32_t slot, TierMask tiers) noexcept {
    Shard& shard = shard_of(key);
    const ExclusiveHold hold(shard.lock);
    shard.map.remove(key, chain, slot, tiers);
  }

  // For writers; those from store_into() to remove_one() hold the gate and the worker's lock.
  StoreVerdict store_or_throw(const BlocksStored& event) ASHLAR_EXCLUDES(gate_);
  StoreVerdict store_into(WorkerBlocks& blocks, const BlocksStored& event) ASHLAR_SHARES_GATE
      ASHLAR_REQUIRES(blocks.lock);
  void apply(WorkerBlocks& blocks, const BlocksStored& event, StorePlan& plan) ASHLAR_SHARES_GATE
      ASHLAR_REQUIRES(blocks.lock);
  // Applies one block as the successor of `parent`. Returns its record. Throws std::bad_alloc with nothing
  // changed.
  std::uint32_t apply_block(WorkerBlocks& blocks, const BlocksStored& event, StorePlan& plan, std::size_t i,
                            std::uint32_t parent) ASHLAR_SHARES_GATE ASHLAR_REQUIRES(blocks.lock);
  // Undoes the first `done` blocks of the event.
  void retreat(WorkerBlocks& blocks, const BlocksStored& event, const StorePlan& plan,
               std::size_t done) noexcept ASHLAR_REQUIRES(blocks.lock);
  std::uint32_t apply_new_name(WorkerBlocks& blocks, const StoredBlock& block, const Chain& chain,
                               std::uint64_t key, std::uint32_t parent, StorageTier tier) ASHLAR_SHARES_GATE
      ASHLAR_REQUIRES(blocks.lock);
  std::size_t remove_from(WorkerBlocks& blocks, StorageTier tier, std::span<const BlockName> names) noexcept
      ASHLAR_REQUIRES(blocks.lock);
  bool remove_one(WorkerBlocks& blocks, StorageTier tier, BlockName name) noexcept
      ASHLAR_REQUIRES(blocks.lock);
  void withdraw_all(const WorkerBlocks& blocks) noexcept;
  void add_worker(const Worker& worker) ASHLAR_EXCLUDES(gate_);
  void drop_worker_if_empty(const Worker& worker) noexcept ASHLAR_EXCLUDES(gate_);
  // Takes the slot from its worker; the caller withdraws the blocks, then frees the slot.
  std::unique_ptr<WorkerBlocks> retire(std::uint32_t slot) noexcept ASHLAR_REQUIRES(gate_);
  void free_slot(std::uint32_t slot) noexcept ASHLAR_REQUIRES(gate_);
  void sweep(const RetiredWorkers<WorkerBlocks>& retired) ASHLAR_EXCLUDES(gate_);
  // Null if the worker has no slot.
  WorkerBlocks* blocks_of(const Worker& worker) const ASHLAR_SHARES_GATE {
    const std::optional<std::uint32_t> slot = slots_.find(worker);
    return slot ? workers_[*slot].get() : nullptr;
  }

  const std::uint32_t jump_size_;
  const std::uint64_t shard_mask_;
  const std::uint64_t seed_ = draw_seed();  // of the entry keys
  const std::unique_ptr<Shard[]> shards_;

  mutable StripedRwLock gate_;
  WorkerSlots slots_ ASHLAR_GUARDED_BY(gate_);
  std::vector<std::unique_ptr<WorkerBlocks>> workers_ ASHLAR_GUARDED_BY(gate_);  // by slot
  NestingBoard board_;                                                           // resized under gate_
  Counters counters_;
};

#undef ASHLAR_SHARES_GATE

}  // namespace ashlar::index::detail
