// BasicRadixTree: the radix tree behind RadixTree (kShared = false: no locks) and ConcurrentRadixTree
// (kShared = true).
//
// What it is made of: nodes (radix_node.h), slots of workers, and per worker what its names mean
// (radix_place.h). A place (node, offset) lasts as long as somebody holds the block there, because edges are
// never split; so the names of a worker refer to nodes, and a worker that holds a block keeps its node, and
// all nodes above it, from being freed.
//
// Locks of a shared tree, in the order in which they are taken:
//   1. slots_lock_   who has which slot. Every call holds it shared for its whole length, so that a slot
//                    means one worker as long as anyone looks. A worker's first block, its last one and its
//                    clearing take it alone, with nothing else held; at most kRanksPerHold workers lose their
//                    slots under one hold.
//   2. Holder::mu    the names of one worker. Writers of different workers do not meet here.
//   3. node locks    the parent before the child. Readers and stores pass from node to node with the next
//                    lock in hand before the last one is let go; a writer may also begin at a node in which
//                    its worker holds blocks.
//
// Freeing. Whoever leaves a node vacant marks it `doomed` and is the only one who may free it: under the lock
// of the parent, which cannot go away while it has this child, and then the node's own, it looks again. A
// node that is in use again is left alone. Otherwise it is unlinked, and nobody can reach it: a reader comes
// to it with the parent's lock in hand, and no name refers to it. The parent may be vacant now, and so on
// upwards.
//
// Clearing. A worker that is cleared is retired first: under slots_lock_ alone, it loses its slot and its
// Holder. Queries leave retired slots out, so it is out of every answer at once. Then its blocks go, node by
// node, under the locks of nodes only; then the slot is free. A store that comes meanwhile gets another slot.
//
// A store that finds no memory takes back what it did, from its last node to its first, and is refused. What
// takes blocks away needs no memory.
//
// A store becomes visible node by node. A query sees every node as it is at one instant; so it counts nothing
// that was not held, and does not miss what is held throughout.
//
// Thread safety: thread-safe when kShared, thread-compatible else.
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
  IndexSizes sizes() const;
  IndexCounters counters() const noexcept { return totals_.counters(); }

 private:
  static constexpr std::size_t kRanksPerHold = 256;

  // A worker that holds something.
  struct Holder {
    explicit Holder(std::uint32_t its_slot) : slot(its_slot) {}
    const std::uint32_t slot;
    mutable Mutex mu;
    RadixNames names ASHLAR_GUARDED_BY(mu);
    std::unique_ptr<Holder> next_retired;  // for RetiredWorkers
  };
  using Retired = detail::RetiredWorkers<Holder>;
  // The locks where the tree is shared, nothing where it is not.
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

  Holder* holder_of(const Worker& worker) const ASHLAR_ATTRIBUTE(requires_shared_capability(slots_lock_));
  // Gives the worker a slot, when it has none.
  void admit(const Worker& worker) ASHLAR_EXCLUDES(slots_lock_);
  // Takes the worker's slot back, when it holds nothing.
  void dismiss(const Worker& worker) noexcept ASHLAR_EXCLUDES(slots_lock_);

  StoreVerdict store(const BlocksStored& event, RadixTally& tally);
  // Does not throw.
  StoreVerdict store(Holder& holder, const BlocksStored& event, RadixTally& tally) ASHLAR_REQUIRES(holder.mu);
  // Whether the names that have a place mean the content that goes on from there with the blocks of the
  // event.
  bool agree(RadixEntries& entries, const RadixNode* node, std::uint32_t offset) const;
  // Throws std::bad_alloc, with the tree as it was; the names are the caller's to undo.
  void apply(Holder& holder, StorageTier tier, RadixNode* node, std::uint32_t offset, RadixEntries& entries,
             RadixTally& tally) ASHLAR_REQUIRES(holder.mu);
  // The locked child that goes on with the first block; makes it where it is missing. Lets the node go,
  // unless it throws.
  RadixNode* enter_child(RadixNode* node, std::uint32_t offset, std::span<const StoredBlock> blocks,
                         RadixTally& tally);
  // The same at the root, which is locked when it throws.
  RadixNode* enter_first(std::span<const StoredBlock> blocks, RadixTally& tally);
  void retreat(Holder& holder, StorageTier tier, RadixEntries& entries, RadixSteps& steps,
               RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);

  std::size_t remove(Holder& holder, StorageTier tier, std::span<const BlockName> names,
                     RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);
  // Takes the slot from its worker; the blocks are the caller's to sweep.
  std::unique_ptr<Holder> retire(std::uint32_t slot) noexcept ASHLAR_REQUIRES(slots_lock_);
  void free_slot(std::uint32_t slot) noexcept ASHLAR_REQUIRES(slots_lock_);
  void sweep(const Retired& retired, RadixTally& tally) ASHLAR_EXCLUDES(slots_lock_);
  // Takes what a retired worker holds out of the tree. Its names are good for nothing any more.
  void take_all(Holder& holder, RadixTally& tally) noexcept ASHLAR_REQUIRES(holder.mu);
  // Lets a node go in which the caller's worker gave something up, and frees what is vacant.
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
