// Indexer: which workers hold how much of a prefix.
//
// An index takes the calls of events::IndexSink (that header says what names and presence mean) and answers
// find_matches(): given the local hashes of a request, how deep does each worker's cached prefix reach? All
// structures give the same answers; they differ in speed, memory and in what may run concurrently (each
// header says so, docs/index.md compares them). IndexOracle in ashlar/testing is the brute-force model of
// this contract.
//
// The answer, per worker that holds the first block:
//   device depth   blocks from the start that are all in the device tier
//   depth          blocks from the start that are each in some tier
//   blocks[tier]   the blocks within `depth`, each counted once, under its fastest tier; they sum to `depth`
//
// Mid-chain removal. A removed block ends the prefix at its position. The worker still holds the blocks
// behind it (they are retained), so restoring the block restores the depth. FlashIndex can also forget them
// (orphan).
//
// early_exit. The walk goes block by block and stops after the first depth at which at most one worker is
// left. Workers that dropped out before have exact scores. The last worker's score is the depth at which the
// walk stopped; MatchScores::exact() is false if the request continues behind that depth.
//
// Under concurrency (structures that allow it): every counted block was held by that worker at some instant
// of the call, and a prefix held throughout the call is counted whole.
//
// A user's own index is any type that satisfies the concept Indexer; all adapters of this folder take it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/tokens/token.h"

namespace ashlar::index {

using events::BlockName;
using events::BlockPresence;
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

// What an index does with the blocks behind a block that a worker no longer holds.
enum class MidChainRemoval : std::uint8_t {
  // They stay under their names. The prefix ends at the hole until the block is stored again.
  kRetain,
  // When a removal leaves a block in no tier of a worker, everything that the worker holds behind it is
  // forgotten, in every tier and under every name; the names are unknown from then on. Forgotten names are
  // not counted as removed.
  kOrphan,
};

constexpr std::string_view to_string(MidChainRemoval policy) noexcept {
  switch (policy) {
    case MidChainRemoval::kRetain:
      return "retain";
    case MidChainRemoval::kOrphan:
      return "orphan";
  }
  return "unknown";
}

struct FindOptions {
  bool early_exit = false;
};

// The score of one worker. Invariant: device_depth <= depth, and blocks add up to depth.
struct Score {
  std::uint32_t device_depth = 0;
  std::uint32_t depth = 0;
  std::array<std::uint32_t, kStorageTiers> blocks{};

  friend bool operator==(const Score&, const Score&) = default;
};

// The answer of find_matches(), in storage that the caller keeps and reuses.
//
// Scores lie in dense arrays, one element per worker slot. A slot is a small number that an index gives to a
// (worker, rank). It may change when the worker is cleared or removed, so read workers through worker(slot),
// which is the assignment that this answer was computed with. Slots without a match are zero.
//
// Thread safety: thread-compatible. Filled by an index, read by its caller.
// Complexity:    a query allocates only if the index has more slots than in the last query into the same
//                object.
class MatchScores {
 public:
  // Slots of the index when it answered; the arrays have as many elements.
  std::size_t slots() const noexcept { return slots_; }
  std::span<const std::uint32_t> device_depths() const noexcept { return {device_.data(), slots_}; }
  std::span<const std::uint32_t> depths() const noexcept { return {depth_.data(), slots_}; }
  // Of one tier. Without blocks in lower tiers all are zero except for the device.
  std::span<const std::uint32_t> blocks(StorageTier tier) const noexcept {
    return {blocks_[static_cast<std::size_t>(tier)].data(), slots_};
  }

  // Requires: slot < slots(). A slot without a worker has no score; its worker is {0, 0} or the last one.
  const Worker& worker(std::size_t slot) const noexcept {
    ASHLAR_DCHECK(slot < slots_, "slot %zu of %zu", slot, slots_);
    return workers_[slot];
  }
  Score score(std::size_t slot) const noexcept;
  // The score of a worker; nothing when it matched no block. O(slots).
  std::optional<Score> of(const Worker& worker) const noexcept;
  // Workers that matched at least one block.
  std::size_t matched() const noexcept;
  // The largest depth().
  std::uint32_t longest() const noexcept;
  // Calls fn(worker, score) for every worker that matched, by rising slot.
  template <class F>
  void for_each(F&& fn) const {
    for (std::size_t slot = 0; slot < slots_; ++slot)
      if (depth_[slot] != 0) fn(workers_[slot], score(slot));
  }
  // False when early_exit cut the walk short: the one worker left may reach deeper than its score says.
  bool exact() const noexcept { return exact_; }

  // --- For implementations of Indexer. ---

  // A number that no other assignment of slots has, in any index. An index takes a new one whenever its
  // assignment changes.
  static std::uint64_t next_assignment() noexcept {
    static std::atomic<std::uint64_t> last{0};
    return last.fetch_add(1, std::memory_order_relaxed) + 1;
  }
  // Starts an answer: no matches, exact. `workers_by_slot` is copied only when `assignment` differs from the
  // last one.
  void begin(std::uint64_t assignment, std::span<const Worker> workers_by_slot) {
    if (begin(assignment, workers_by_slot.size())) std::ranges::copy(workers_by_slot, workers_.begin());
  }
  // The same for an index that keeps its workers in pieces. Returns true if `assignment` differs from the
  // last one: the caller then fills workers(), or calls forget_assignment() if it cannot.
  bool begin(std::uint64_t assignment, std::size_t slots) {
    const bool differs = assignment != assignment_;
    if (differs) assign(assignment, slots);
    if (matches_) {
      std::memset(device_.data(), 0, slots_ * sizeof(std::uint32_t));
      std::memset(depth_.data(), 0, slots_ * sizeof(std::uint32_t));
      std::memset(blocks_[0].data(), 0, slots_ * sizeof(std::uint32_t));
      matches_ = false;
    }
    if (lower_tiers_) clear_lower_tiers();
    exact_ = true;
    return differs;
  }
  std::span<Worker> workers() noexcept { return workers_; }
  void forget_assignment() noexcept { assignment_ = 0; }
  std::uint64_t assignment() const noexcept { return assignment_; }
  void set(std::size_t slot, const Score& score) noexcept;
  // A worker whose blocks are all in the device tier.
  void set_device(std::size_t slot, std::uint32_t depth) noexcept {
    device_[slot] = depth_[slot] = blocks_[0][slot] = depth;
    matches_ = true;
  }
  // The same for several: bit i of `mask` stands for slot `first` + i. Requires: first is a multiple of 64.
  void set_device(std::size_t first, std::uint64_t mask, std::uint32_t depth) noexcept;
  void set_inexact() noexcept { exact_ = false; }

 private:
  void assign(std::uint64_t assignment, std::size_t slots);
  void clear_lower_tiers() noexcept;

  std::size_t slots_ = 0;
  std::uint64_t assignment_ = 0;
  bool exact_ = true;
  bool matches_ = false;      // something was set since begin()
  bool lower_tiers_ = false;  // blocks_[1..3] hold something
  std::vector<Worker> workers_;
  // Sized up to a multiple of 64 slots.
  std::vector<std::uint32_t> device_;
  std::vector<std::uint32_t> depth_;
  std::array<std::vector<std::uint32_t>, kStorageTiers> blocks_;
};

// What an index holds now.
struct IndexSizes {
  std::size_t workers = 0;   // (worker, rank)s that hold at least one block
  std::size_t blocks = 0;    // (worker, tier, content) presences
  std::size_t contents = 0;  // distinct contents that some worker holds
  std::size_t nodes = 0;     // nodes or entries of the structure; 0 when nothing is held
  std::size_t bytes = 0;     // heap memory in use, without the object itself; a constant when nothing is held
  std::size_t waiting_bytes = 0;  // part of `bytes`: unlinked, not freed because a reader may still use it

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

// An Indexer that tells what a worker holds under a name, as IndexSink::presence() and list().
template <class T>
concept PresenceIndexer =
    Indexer<T> && requires(const T& reader, const Worker& worker, std::span<const BlockName> names,
                           std::span<BlockPresence> out, std::vector<BlockPresence>& all) {
      { reader.presence(worker, names, out) } -> std::same_as<bool>;
      { reader.list(worker, all) } -> std::same_as<bool>;
    };

// The two calls for any Indexer: false where it does not tell.
template <Indexer T>
bool presence_in(const T& index, const Worker& worker, std::span<const BlockName> names,
                 std::span<BlockPresence> out) {
  if constexpr (PresenceIndexer<T>) return index.presence(worker, names, out);
  return false;
}
template <Indexer T>
bool list_of(const T& index, const Worker& worker, std::vector<BlockPresence>& out) {
  if constexpr (PresenceIndexer<T>) return index.list(worker, out);
  return false;
}

// As IndexSink::holds_nothing(), for any Indexer.
template <Indexer T>
bool holds_nothing_in(const T& index, const Worker& worker) {
  if constexpr (requires { index.holds_nothing(worker); }) return index.holds_nothing(worker);
  return false;
}

// The calls of any Indexer behind IndexSink, so that code which is not a template can make them.
//
// Thread safety: that of T. The index must outlive it.
template <Indexer T>
class SinkOf final : public IndexSink {
 public:
  explicit SinkOf(T& index) noexcept : index_(index) {}
  SinkOf(const SinkOf&) = delete;
  SinkOf& operator=(const SinkOf&) = delete;

  StoreVerdict store(const BlocksStored& event) override { return index_.store(event); }
  std::size_t remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) override {
    return index_.remove(worker, tier, names);
  }
  void clear(const Worker& worker) override { index_.clear(worker); }
  void remove_worker(WorkerId worker) override { index_.remove_worker(worker); }
  bool presence(const Worker& worker, std::span<const BlockName> names,
                std::span<BlockPresence> out) const override {
    return presence_in(index_, worker, names, out);
  }
  bool list(const Worker& worker, std::vector<BlockPresence>& out) const override {
    return list_of(index_, worker, out);
  }
  bool holds_nothing(const Worker& worker) const override { return holds_nothing_in(index_, worker); }

 private:
  T& index_;
};

}  // namespace ashlar::index
