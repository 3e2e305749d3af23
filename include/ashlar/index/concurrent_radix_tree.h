// ConcurrentRadixTree: the RadixTree (radix_tree.h) for many threads, with a lock per node.
//
// Queries and writers of different workers run side by side and meet only at the nodes they have in common: a
// query reads one node at a time, a writer changes one node at a time. A worker's first and last block, and
// its clearing, wait for the calls that are under way, because they change which worker a slot means; what a
// cleared worker held goes afterwards, node by node. Calls for one worker may come from any thread, one after
// the other; where they overlap they take turns.
//
// The rule of indexer.h holds: every counted block was held at some instant of the call, and a prefix held
// throughout is counted whole. A store becomes visible node by node, from the front; a removal in the order
// of its names. dump() sends each worker as it is at one instant; the sink is called without a lock, so it
// may be slow, or another index.
//
// Thread safety: thread-safe. Locks: slots, then the worker's names, then nodes from the root down.
// Complexity:    as RadixTree, and two atomic steps per node.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

class ConcurrentRadixTree final : public IndexSink {
 public:
  ConcurrentRadixTree();
  ConcurrentRadixTree(const ConcurrentRadixTree&) = delete;
  ConcurrentRadixTree& operator=(const ConcurrentRadixTree&) = delete;
  ~ConcurrentRadixTree() override;

  StoreVerdict store(const BlocksStored& event) override;
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override;
  void clear(const Worker& worker) override;
  void remove_worker(WorkerId worker) override;

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const;
  void dump(IndexSink& sink) const;
  IndexSizes sizes() const;
  IndexCounters counters() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

static_assert(Indexer<ConcurrentRadixTree>);

}  // namespace ashlar::index
