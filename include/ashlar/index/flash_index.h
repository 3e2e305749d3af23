// FlashIndex: an exact router index whose readers usually take no lock and write to no shared memory.
//
// A tree of runs: a node holds up to 64 consecutive blocks, their local hashes side by side (a query compares
// them by vector instructions), and for every (worker, tier) one 64-bit mask of the blocks it holds. A query
// walks the path of its hashes, intersecting sets of workers as bitsets; every worker's depth is exact, also
// after mid-chain removals. Names lie in one table for all workers: a block that a hundred workers hold costs
// one entry and a bit each. Replaced memory is freed by eras (docs/index.md); a reader that stalls holds back
// no writer, and no more memory than the index had when it stalled plus 256 KiB and an object.
//
// Thread safety: thread-safe. Writers share one lock; a reader takes it only after writers made it restart
//                eight times, or beyond 8,192 reading threads.
// Complexity:    store and remove are O(blocks), one cache miss per block, prefetched, plus O(holders) per 64
//                blocks, in vector steps of 16. A block that leaves a worker with kOrphan costs O(blocks
//                below it). find_matches() is O(depth / 8) vector compares plus O(depth / 64) intersections
//                of slots / 64 words, and O(holders) where workers hold parts of a node or need lower tiers.
//                clear() and a worker's first store are O(workers / 64 + log workers), whatever the worker
//                holds: its blocks are out of every answer at once. What is left of them is swept by later
//                writing calls, each of which looks at 32 nodes and takes 1,024 steps at most. No cost
//                depends on the choice of names and hashes: tables are hashed with a secret. The writers'
//                lock is held for one store, 1,024 names of a removal or 512 ranks of remove_worker(); other
//                writers run in between. sizes() and dump() walk the whole index under it.
// Limits:        65,535 (worker, rank)s, including those that a concurrent reader may still see; 2^26 nodes;
//                2^24 blocks per sequence. Beyond them a store is refused as kFull, before its names are
//                checked.
// Memory:        without memory a store is refused as kFull and all other calls throw std::bad_alloc, both
//                without effect; a removal needs none (docs/memory_exhaustion.md).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"

namespace ashlar::index {

struct FlashOptions {
  MidChainRemoval mid_chain = MidChainRemoval::kRetain;
  // (worker, rank)s at a time, at most 65,535; a store for one more is refused as kFull.
  std::uint32_t max_workers = 65'535;
  // Distinct blocks, over all workers, whose memory is allocated and touched at creation, and kept until the
  // end: stores up to that number then pay for no growth. More may be stored all the same. About 32 bytes
  // each.
  std::size_t expected_blocks = 0;
  // Seed of the hash tables, for tests that replay a run. Without one a random number of the process is used,
  // so that names and hashes cannot be chosen to collide.
  std::optional<std::uint64_t> seed{};
};

// What the writers' calls did, in steps: a block of an event, a node, a name or an alias that goes, 16
// holders of a node, a freed object. sizes() and dump() are not counted.
struct FlashWork {
  std::uint64_t steps = 0;
  std::uint64_t most_in_one_hold = 0;  // of the writers' lock

  friend bool operator==(const FlashWork&, const FlashWork&) = default;
};

// The shape of an index: runs of consecutive blocks, and who holds how much of each. No hash but the first of
// a run, no names.
struct IndexOutline {
  static constexpr std::uint32_t kNoRun = UINT32_MAX;
  struct Run {
    std::uint32_t parent = kNoRun;  // of `runs`; kNoRun: it starts a sequence
    std::uint32_t position = 0;     // of its first block
    std::uint32_t blocks = 0;       // that anybody holds; 0: it only bridges a hole
    LocalHash first = {};
    std::uint32_t holders = 0;  // so many more of `holders`
  };
  struct Holder {
    std::uint32_t worker = 0;  // of `workers`
    std::uint32_t blocks = 0;  // of the run, in any tier
  };
  std::vector<Worker> workers;
  std::vector<Run> runs;        // parents first
  std::vector<Holder> holders;  // run by run
};

// Where a block of a sequence is, seen from a worker.
enum class BlockPlace : std::uint8_t { kNowhere, kElsewhere, kHere };

class FlashIndex {
 public:
  explicit FlashIndex(const FlashOptions& options = {});
  FlashIndex(const FlashIndex&) = delete;
  FlashIndex& operator=(const FlashIndex&) = delete;
  // Requires: no call in progress.
  ~FlashIndex();

  StoreVerdict store(const BlocksStored& event);
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  void clear(const Worker& worker);
  void remove_worker(WorkerId worker);

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const;
  // Several queries at once, interleaved so that their cache misses overlap (with early_exit one by one).
  // Requires: as many scores as queries.
  void find_matches(std::span<const std::span<const LocalHash>> queries, std::span<MatchScores> scores,
                    const FindOptions& options = {}) const;

  // For each block of the sequence from `first` on, in any tier: whether the worker holds it, else whether
  // another one does. Blocks behind a gap count. Requires: locals.size() - first places. O(blocks / 64 +
  // holders of the blocks from `first` on), under the writers' lock.
  void places(std::span<const LocalHash> locals, std::size_t first, const Worker& worker,
              std::span<BlockPlace> out) const;
  // Takes the writers' lock for 1,024 names at a time.
  bool presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const;
  // O(nodes of the index), under the writers' lock.
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const;
  // O(1) for the worker of the last call, else O(log workers), under the writers' lock.
  bool holds_nothing(const Worker& worker) const;
  // The sink is called without the lock, after the index was copied: it may be slow, or write to this index.
  void dump(IndexSink& sink) const;
  // O(nodes + holders). Takes the writers' lock for 1,024 nodes at a time, and the children of one at a time:
  // each run is told as it was at some instant of the call.
  void outline(IndexOutline& out) const;
  // Finishes the sweep behind clear() first, and frees what readers have left.
  IndexSizes sizes() const;
  IndexCounters counters() const;
  FlashWork work() const;
  // Bytes that are unlinked but not freed, because a reader may still use them. Callable from any thread.
  std::size_t waiting_bytes() const noexcept;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

static_assert(PresenceIndexer<FlashIndex>);

}  // namespace ashlar::index
