// BasicRadixTree: the radix tree behind RadixTree (kShared = false: no locks) and ConcurrentRadixTree
// (kShared = true).
//
// It consists of nodes (radix_node.h), worker slots, and a map of names per worker (radix_place.h). A place
// (node, offset) lasts as long as any worker holds its block, because edges are never split. So the names of
// a worker refer to nodes, and a worker that holds a block keeps its node, and all nodes above it, from being
// freed.
//
// Locks of a shared tree, in acquisition order:
//   1. slots_lock_   the slot of each worker. Every call holds it shared throughout, so that a slot means one
//                    worker for the whole call. A worker's first block, its last one and its clearing take it
//                    exclusively, with nothing else held; at most kRanksPerHold workers lose their slots
//                    under one hold.
//   2. Holder::mu    the names of one worker. Writers of different workers do not contend here.
//   3. node locks    the parent before the child. Readers and stores couple locks: they take the next before
//                    releasing the last; a writer may also begin at a node in which its worker holds blocks.
//
// Freeing. The thread that leaves a node vacant marks it `doomed` and alone may free it: under the lock of
// the parent, which cannot go away while it has this child, and then the node's own, it checks again. A node
// in use again is left alone. Otherwise it is unlinked and unreachable: a reader would come to it with the
// parent's lock in hand, and no name refers to it. The parent may be vacant now, and so on upwards.
//
// Clearing. A cleared worker is retired first: under slots_lock_ alone, it loses its slot and its Holder.
// Queries skip retired slots, so it leaves every answer at once. Then its blocks are removed, node by node,
// under node locks only; then the slot is free. A concurrent store gets another slot.
//
// A store that runs out of memory undoes its changes, from its last node to its first, and is refused.
// Removals need no memory.
//
// A store becomes visible node by node. A query sees each node as of one instant; so it counts only blocks
// that were held, and does not miss blocks held throughout.
//
// Thread safety: thread-safe when kShared, else thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/mutex.h"
#include "ashlar/index/indexer.h"
#include "base/scoped_hold.h"
#include "index/common/retired_workers.h"
#include "index/common/rw_lock.h"
#include "index/common/worker_slots.h"
#include "index/radix/radix_entries.h"
#include "index/radix/radix_node.h"
#include "index/radix/radix_place.h"
#include "index/radix/radix_tally.h"

namespace ashlar::index {

template <bool kShared>
class BasicRadixTree {
 public:
  BasicRadixTree() = default;
  BasicRadixTree(const BasicRadixTree&) = delete;
  BasicRadixTree& operator=(const BasicRadixTree&) = delete;
  ~BasicRadixTree();

  StoreVerdict store(const BlocksStored& event);
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  void clear(const Worker& worker);
  void remove_worker(WorkerId id);
  void find_matches(std::span<const LocalHash> locals, MatchScores& scores, const FindOptions& options) const;
  void dump(IndexSink& sink) const;
  void presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const;
  void list(const Worker& worker, std::vector<BlockPresence>& out) const;
  IndexSizes sizes() const;
  IndexCounters counters() const noexcept { return totals_.counters(); }

 private:
  static constexpr std::size_t kRanksPerHold = 256;

  // A worker that holds blocks.
  struct Holder {
    explicit Holder(std::uint32_t its_slot) : slot(its_slot) {}
    const std::uint32_t slot;
    mutable Mutex mu;
    RadixNames names ASHLAR_GUARDED_BY(mu);
    std::unique_ptr<Holder> next_retired;  // for RetiredWorkers
  };
  using Retired = detail::RetiredWorkers<Holder>;
  // Real locks in a shared tree, no-ops otherwise.
  using SharedSlots = SharedHold<RwLock, kShared>;
  using SoleSlots = ExclusiveHold<RwLock, kShared>;
  using HolderHold = ExclusiveHold<Mutex, kShared>;
  class NodeShare;
  static void lock(const RadixNode& node) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kShared) node.lock.lock();
  }
  static void unlock(const RadixNode& node) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kShared) node.lock.unlock();
  }
  static void lock_shared(const RadixNode& node) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kShared) node.lock.lock_shared();
  }
  static void unlock_shared(const RadixNode& node) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
    if constexpr (kShared) node.lock.unlock_shared();
  }

  // What a name of a worker means. The name keeps its node alive.
  static BlockPresence presence_of(const RadixNames::Entry& entry);
  Holder* holder_of(const Worker& worker) const ASHLAR_ATTRIBUTE(requires_shared_capability(slots_lock_));
  // Assigns a slot to the worker unless it has one.
  void admit(const Worker& worker) ASHLAR_EXCLUDES(slots_lock_);
  // Releases the worker's slot if it holds nothing.
  void dismiss(const Worker& worker) noexcept ASHLAR_EXCLUDES(slots_lock_);

  StoreVerdict store(const BlocksStored& event, RadixTally& tally);
  // Does not throw.
  StoreVerdict store(Holder& holder, const BlocksStored& event, RadixTally& tally) ASHLAR_REQUIRES(holder.mu);
  // Whether the names that have a place mean the same content as the event's blocks from there on.
  bool agree(RadixEntries& entries, const RadixNode* node, std::uint32_t offset) const;
  // Throws std::bad_alloc with the tree unchanged; the caller undoes the names.
  void apply(Holder& holder, StorageTier tier, RadixNode* node, std::uint32_t offset, RadixEntries& entries,
             RadixTally& tally) ASHLAR_REQUIRES(holder.mu);
  // Returns, locked, the child that continues with the first block; creates it if missing. Unlocks the node,
  // unless it throws.
  RadixNode* enter_child(RadixNode* node, std::uint32_t offset, std::span<const StoredBlock> blocks,
                         RadixTally& tally);
  // The same at the root, which stays locked when it throws.
  RadixNode* enter_first(std::span<const StoredBlock> blocks, RadixTally& tally);
  void retreat(Holder& holder, StorageTier tier, RadixEntries& entries, RadixSteps& steps,
               RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);

  std::size_t remove(Holder& holder, StorageTier tier, std::span<const BlockName> names,
                     RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);
  // Takes the slot from its worker; the caller sweeps the blocks.
  std::unique_ptr<Holder> retire(std::uint32_t slot) noexcept ASHLAR_REQUIRES(slots_lock_);
  void free_slot(std::uint32_t slot) noexcept ASHLAR_REQUIRES(slots_lock_);
  void sweep(const Retired& retired, RadixTally& tally) ASHLAR_EXCLUDES(slots_lock_);
  // Removes a retired worker's blocks from the tree. Its names are invalid afterwards.
  void take_all(Holder& holder, RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);
  // Unlocks a node in which the caller's worker dropped blocks, and frees vacant nodes.
  void leave(RadixNode* node, RadixTally& tally) noexcept;

  mutable RwLock slots_lock_;
  WorkerSlots slots_ ASHLAR_GUARDED_BY(slots_lock_);
  std::vector<std::unique_ptr<Holder>> holders_ ASHLAR_GUARDED_BY(slots_lock_);  // by slot
  RadixNode root_;
  RadixTotals<kShared> totals_;
};

extern template class BasicRadixTree<false>;
extern template class BasicRadixTree<true>;

}  // namespace ashlar::index
