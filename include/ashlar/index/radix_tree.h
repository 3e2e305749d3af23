// RadixTree and ConcurrentRadixTree: router indexes for one thread and for many.
//
// A tree over local hashes whose nodes are runs of blocks, with the workers that hold each block; per worker,
// what its names mean.
//
//   store   finds the parent by its name, follows and extends the path, and adds the worker to each node
//   remove  finds each block by its name; nodes without holders and children are freed upwards
//   find    follows the path, and drops workers where their blocks end
//
// A run that diverges in the middle of a node becomes a child at that offset: nodes never split, so names can
// refer to places in them. Removing a block leaves the blocks behind it in place (retained).
//
// Thread safety: RadixTree is thread-compatible, ConcurrentRadixTree thread-safe.
// Complexity:    store and remove are O(1) expected per block, and O(log workers) per node of at most 64
//                blocks; plus O(workers of the node) where a worker comes to a node or leaves it, where a
//                taken block may have no other holder, and where the end of an edge is cut off. The maps of
//                names and of children double and halve as a whole. find_matches() is O(depth) comparisons
//                and O(slots / 64) words per node, plus O(workers of the node) where workers drop out.
//                clear() is O(n log n) in the names of the worker. Nothing is allocated by a query on up to
//                1,024 slots.
// Memory:        8 bytes per content; per name 16 bytes in a table that is 3/16 to 3/4 full; per node 192
//                bytes, and 16 per worker in it.
// Invariant:     an index that holds nothing has no nodes and no heap memory beyond a constant.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

template <bool kShared>
class BasicRadixTree;

// The calls of both trees; users name RadixTree or ConcurrentRadixTree. kShared: locks its nodes.
template <bool kShared>
class RadixIndex final : public IndexSink {
 public:
  RadixIndex();
  RadixIndex(const RadixIndex&) = delete;
  RadixIndex& operator=(const RadixIndex&) = delete;
  ~RadixIndex() override;

  StoreVerdict store(const BlocksStored& event) override;
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override;
  void clear(const Worker& worker) override;
  void remove_worker(WorkerId worker) override;
  bool presence(const Worker& worker, std::span<const BlockName> names,
                std::span<BlockPresence> out) const override;
  // O(names of the worker).
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const override;

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const;
  void dump(IndexSink& sink) const;
  IndexSizes sizes() const;
  IndexCounters counters() const;

 private:
  std::unique_ptr<BasicRadixTree<kShared>> tree_;
};
extern template class RadixIndex<false>;
extern template class RadixIndex<true>;

// RadixTree: for one thread.
//
// Thread safety: thread-compatible.
using RadixTree = RadixIndex<false>;

static_assert(PresenceIndexer<RadixTree>);

// ConcurrentRadixTree: a RadixTree for many threads, with a lock per node.
//
// Queries and writers of different workers run concurrently and contend only for shared nodes: a query reads
// one node at a time, a writer changes one node at a time. A worker's first store, its last removal and its
// clearing wait for calls in progress, because they change which worker a slot means; the blocks of a cleared
// worker are removed afterwards, node by node. Calls for one worker may come from any thread; concurrent ones
// are serialised.
//
// The rule of indexer.h holds: every counted block was held at some instant of the call, and a prefix held
// throughout is counted whole. A store becomes visible node by node, from the front; a removal in the order
// of its names. dump() sends each worker as of one instant; the sink is called without a lock, so it may be
// slow, or another index.
//
// Thread safety: thread-safe. Locks: slots, then the worker's names, then nodes from the root down.
// Complexity:    as RadixTree, and two atomic steps per node.
using ConcurrentRadixTree = RadixIndex<true>;

static_assert(PresenceIndexer<ConcurrentRadixTree>);

}  // namespace ashlar::index
