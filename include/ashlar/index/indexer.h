// Indexer: which workers hold how much of a prefix.
//
// An index takes the calls of events::IndexSink (whose header says what names and presence mean) and answers
// find_matches(): given the local hashes of a request, how deep each worker's cached prefix reaches. All
// structures answer exactly alike; they differ in speed, memory and in what may run beside what (each header
// says so, docs/index.md compares them). IndexOracle in ashlar/testing is the brute-force model of this
// contract.
//
// The answer, per worker with a held first block:
//   device depth   blocks from the start that are all in the device tier
//   depth          blocks from the start that are each in some tier
//   blocks[tier]   the blocks within `depth`, each counted once, under its fastest tier; they add up to
//                  `depth`
//
// Mid-chain removal. A removed block ends the prefix there, wherever it is; the worker still holds the blocks
// behind it (they are retained), so that restoring the block restores the depth. FlashIndex can also forget
// them (orphan).
//
// early_exit. The walk goes block by block and stops after the first depth at which at most one worker is
// left. Workers that fell out before have their exact scores; the one that is left has the depth at which the
// walk stopped, and MatchScores::exact() is false when the request goes on behind that depth.
//
// Under concurrency (structures that allow it): every counted block was held by that worker at some instant
// of the call, and a prefix held throughout the call is counted whole.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>

#include "ashlar/events/index_sink.h"
#include "ashlar/index/match_scores.h"
#include "ashlar/tokens/token.h"

namespace ashlar::index {

using events::BlockName;
using events::BlocksStored;
using events::IndexSink;
using events::kAllStorageTiers;
using events::kStorageTiers;
using events::StorageTier;
using events::StoredBlock;
using events::StoreVerdict;
using events::Worker;
using events::WorkerId;
using tokens::LocalHash;

struct FindOptions {
  bool early_exit = false;
};

// What an index holds now.
struct IndexSizes {
  std::size_t workers = 0;   // (worker, rank)s that hold at least one block
  std::size_t blocks = 0;    // (worker, tier, content) presences
  std::size_t contents = 0;  // distinct contents that some worker holds
  std::size_t nodes = 0;     // nodes or entries of the structure; 0 when nothing is held
  std::size_t bytes = 0;     // heap memory in use, without the object itself; a constant when nothing is held
  std::size_t waiting_bytes =
      0;  // part of `bytes`: unlinked, not yet freed because a reader may still look at it

  friend bool operator==(const IndexSizes&, const IndexSizes&) = default;
};

// What an index saw since the start. Counted in blocks or names unless the comment says events.
struct IndexCounters {
  std::uint64_t stored = 0;            // blocks of applied stores, repeats included
  std::uint64_t repeated = 0;          // of these: the worker held that name in that tier already
  std::uint64_t removed = 0;           // names removed one by one
  std::uint64_t unknown_removals = 0;  // names in remove() that the worker did not hold in that tier
  std::uint64_t unknown_parents = 0;   // events refused with kUnknownParent
  std::uint64_t wrong_positions = 0;   // events refused with kWrongPosition
  std::uint64_t names_in_use = 0;      // events refused with kNameInUse
  std::uint64_t empty_stores = 0;      // events refused with kEmpty
  std::uint64_t unknown_tiers = 0;     // events refused with kUnknownTier
  std::uint64_t full = 0;              // events refused with kFull
  std::uint64_t clears = 0;            // calls of clear() and remove_worker()

  friend bool operator==(const IndexCounters&, const IndexCounters&) = default;
};

// store, remove, clear and remove_worker are as in IndexSink. find_matches() overwrites `scores`. dump()
// sends the calls that rebuild an equal index into an empty one: equal answers to every query and equal
// sizes.
template <class T>
concept Indexer =
    requires(T& index, const T& reader, const BlocksStored& stored, const Worker& worker, WorkerId id,
             StorageTier tier, std::span<const BlockName> names, std::span<const LocalHash> locals,
             const FindOptions& options, MatchScores& scores, IndexSink& sink) {
      { index.store(stored) } -> std::same_as<StoreVerdict>;
      { index.remove(worker, tier, names) } -> std::same_as<std::size_t>;
      { index.clear(worker) } -> std::same_as<void>;
      { index.remove_worker(id) } -> std::same_as<void>;
      { reader.find_matches(locals, scores, options) } -> std::same_as<void>;
      { reader.dump(sink) } -> std::same_as<void>;
      { reader.sizes() } -> std::same_as<IndexSizes>;
      { reader.counters() } -> std::same_as<IndexCounters>;
    };

}  // namespace ashlar::index
