// IndexFeeder: turns the KvEvents of a worker into calls of a routing index.
//
// An index needs the hash of a block's own tokens and its parent by name. An event without a local hash uses
// the one from an event of another tier for the same name; until there is one the block is only remembered
// (`without_local`). A block whose parent the index does not know waits, counted as kUnknownParent, until the
// parent arrives: events name parents that no tier holds. To an index the groups of layers are one block,
// present while every group seen so far holds it.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected per event, and a call of the sink per run; the first event of a further group
//                visits all blocks. Memory: about 150 bytes per (rank, name) that some tier holds.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::feed {

struct IndexFeederCounters {
  std::uint64_t events = 0;
  std::uint64_t tracked_only = 0;   // of groups that an index ignores
  std::uint64_t other_tiers = 0;    // of tiers that routing ignores
  std::uint64_t without_local = 0;  // stored without a known local hash
  std::uint64_t stores = 0;         // runs
  std::uint64_t stored_blocks = 0;  // of runs that were applied
  std::uint64_t removed_blocks = 0;
  std::uint64_t missing_removals = 0;  // not in the index
  std::uint64_t clears = 0;
  std::array<std::uint64_t, 7> verdicts{};  // runs by StoreVerdict

  std::uint64_t refused() const noexcept {
    std::uint64_t count = 0;
    for (std::size_t i = 1; i < verdicts.size(); ++i) count += verdicts[i];
    return count;
  }
  friend bool operator==(const IndexFeederCounters&, const IndexFeederCounters&) = default;
};

class IndexFeeder {
 public:
  // The sink must outlive the feeder.
  IndexFeeder(events::IndexSink& sink, events::WorkerId worker) : sink_(sink), worker_(worker) {}

  // Events of an EngineIngest, which carry their rank and whether an index needs them.
  void apply(std::span<const events::KvEvent> events);
  // Events of one rank, all for the index. A kResync clears the rank: a snapshot follows.
  void apply(std::uint32_t rank, std::span<const events::KvEvent> events);

  const IndexFeederCounters& counters() const noexcept { return counters_; }
  // Aborts on inconsistent state. For tests; O(blocks).
  void check_invariants() const;

 private:
  using Groups = std::uint32_t;  // a bit per group, in the order they appeared
  struct Entry {
    tokens::SequenceHash parent;
    tokens::SequenceHash hash;
    tokens::LocalHash local;
    std::uint32_t group = 0;  // of the hashes
    std::array<Groups, events::kStorageTiers> held{};
    std::array<bool, events::kStorageTiers> indexed{};
    bool has_parent = false;
    bool has_local = false;

    bool is_indexed() const noexcept { return std::ranges::find(indexed, true) != indexed.end(); }
    bool is_held() const noexcept {
      return std::ranges::any_of(held, [](Groups groups) { return groups != 0; });
    }
  };
  using Entries = std::unordered_map<events::BlockName, Entry>;
  struct Rank {
    Entries entries;
    std::unordered_multimap<tokens::SequenceHash, events::BlockName> by_hash;
    std::unordered_multimap<tokens::SequenceHash, events::BlockName> orphans;  // waiting, by their parent
    std::vector<std::uint16_t> groups;
    Groups required = 0;
  };

  static void check_invariants(const Rank& rank);
  void apply(std::uint32_t rank_number, Rank& rank, const events::KvEvent& event);
  std::optional<Groups> bit_of(std::uint32_t rank_number, Rank& rank, std::uint16_t group);
  void clear(std::uint32_t rank_number, Rank& rank);
  // Updates the index to match the entry.
  void sync(std::uint32_t rank_number, Rank& rank, events::BlockName name, Entry& entry);
  // Stores the blocks that waited for this one, and their descendants.
  void adopt(std::uint32_t rank_number, Rank& rank, const tokens::SequenceHash& parent);
  void forget(Rank& rank, Entries::iterator at);
  void store(std::uint32_t rank_number, Rank& rank, events::BlockName name, const Entry& entry,
             std::size_t tier);
  void remove(std::uint32_t rank_number, events::BlockName name, std::size_t tier);
  std::optional<events::BlockName> indexed_name(const Rank& rank, const tokens::SequenceHash& hash) const;
  // Sends the gathered run or removals.
  void flush();

  events::IndexSink& sink_;
  events::WorkerId worker_;
  IndexFeederCounters counters_;
  std::unordered_map<std::uint32_t, Rank> ranks_;

  // The run being gathered: blocks to store, or names to remove, of one rank and tier.
  std::uint32_t run_rank_ = 0;
  std::size_t run_tier_ = 0;
  std::optional<events::BlockName> run_parent_;
  std::uint32_t run_position_ = 0;
  tokens::SequenceHash run_end_;
  std::vector<events::StoredBlock> run_;
  std::vector<events::BlockName> removals_;
};

// IndexListener: feeds the streams of a StreamReceiver into a routing index.
//
// A worker that restarts, or whose state a snapshot replaces, is cleared from the index first.
//
// Thread safety: thread-compatible. Complexity: as IndexFeeder.
class IndexListener final : public StreamListener {
 public:
  // The sink must outlive the listener.
  explicit IndexListener(events::IndexSink& sink) : sink_(sink) {}

  void on_reset(const events::StreamId& stream) override;
  void on_events(const events::EventBatch& batch) override;

  // Of one (worker, rank); null if it is unknown.
  const IndexFeederCounters* counters(const events::Worker& worker) const;
  // Of the feeders of all workers. For tests.
  void check_invariants() const;

 private:
  events::IndexSink& sink_;
  std::map<events::Worker, IndexFeeder> feeders_;
};

}  // namespace ashlar::feed
