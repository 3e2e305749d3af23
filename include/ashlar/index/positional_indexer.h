// PositionalIndexer: an index by position. A nested map leads from (position, local hash) to the contents
// that end there, and from each content to its workers, so a query can look up any position directly and
// skips most of them.
//
// Jump search. A worker that holds every block before a block that it holds is nested: seen at one position,
// it has the whole prefix. find_matches() therefore looks at the last position, then at every jump_size-th
// for the workers that are not there and, where workers are missing, bisects the window for the exact depth
// of each. Workers that are not nested, because blocks were removed in the middle or lie in lower tiers, are
// walked block by block. Contents at one position are told apart by a chain of 128 bits over the local hashes
// of their paths; two are one where these bits agree. The query computes its own chain up to the last
// position that it needs it at, a few instructions per block.
//
// Entries. A (position, local hash) nearly always has one content (Single: chain and workers lie in the
// entry); where prefixes meet in the same block it has several (Multi: a small table by chain). Entries come
// and go with the workers that hold them, and change between the two kinds both ways.
//
// Thread safety: thread-safe. Readers and writers run in parallel; entries lie in shards, each with a
//                reader-writer lock. Calls for one worker take that worker's lock one after another. Only a
//                worker that appears, vanishes or is cleared briefly stops all calls, for a time that does
//                not depend on what it holds. Under concurrency the rule of indexer.h holds.
// Complexity:    store and remove are O(1) expected per block, and O(log workers) where a content has a short
//                list of them, but for the steps that double or halve a table: those of a shard and of a
//                worker do so as a whole. clear() is O(blocks of the worker), remove_worker() that of all its
//                ranks; both take the lock of a shard for one block at a time. A query of n blocks costs n
//                steps of the chain, n / jump_size look-ups for the workers that are nested, O(log jump_size)
//                look-ups for every depth at which some of them end, and one look-up per block where a worker
//                is not nested.
// Memory:        32 bytes per entry and 24 per (worker, block) over the load of their tables (3/8 to 3/4), 40
//                bytes per (worker, block), and a set per content of more than one worker: 4 bytes for each,
//                or a bit per slot.
// Limits:        depth 2^31 blocks, 2^28 workers; beyond them stores return kFull.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "ashlar/base/result.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index {

namespace detail {
class PositionalTables;
}  // namespace detail

struct PositionalOptions {
  // Positions from one look-up of a query to the next. 1 looks at every block.
  std::uint32_t jump_size = 32;
  // Locks over the entries; rounded up to a power of two.
  std::uint32_t shards = 32;

  static constexpr std::uint32_t kMaxShards = 1u << 16;

  // Errors: kInvalidArgument for a jump_size of 0, and for shards of 0 or above kMaxShards.
  Result<void> validate() const;
};

class PositionalIndexer {
 public:
  // Errors: those of validate(); kCapacity without memory.
  static Result<PositionalIndexer> create(const PositionalOptions& options);
  // With the default options, which are valid.
  PositionalIndexer();
  ~PositionalIndexer();
  PositionalIndexer(PositionalIndexer&& other) noexcept;
  PositionalIndexer& operator=(PositionalIndexer&& other) noexcept;

  StoreVerdict store(const BlocksStored& event);
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names);
  void clear(const Worker& worker);
  void remove_worker(WorkerId worker);

  void find_matches(std::span<const LocalHash> locals, MatchScores& scores,
                    const FindOptions& options = {}) const;
  // Look-ups of an entry that the last find_matches() of this thread took, in any PositionalIndexer.
  static std::size_t lookups_of_last_find() noexcept;
  bool presence(const Worker& worker, std::span<const BlockName> names, std::span<BlockPresence> out) const;
  // O(names of the worker).
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const;
  // Each worker is sent as of one instant, but workers at different ones. The sink may call the index.
  void dump(IndexSink& sink) const;
  // `nodes` are entries.
  IndexSizes sizes() const;
  IndexCounters counters() const;

 private:
  explicit PositionalIndexer(const PositionalOptions& options);
  std::unique_ptr<detail::PositionalTables> tables_;
};

static_assert(PresenceIndexer<PositionalIndexer>);

}  // namespace ashlar::index
