// IndexFeeder: turns the KvEvents of a worker into calls of a routing index.
//
// An index needs the hash of a block's own tokens and its parent by name. An event without a local hash uses
// the one from an event of another tier for the same name; until there is one the block is only remembered
// (`without_local`). A block whose parent the index does not know waits, counted as kUnknownParent, until the
// parent arrives: events name parents that no tier holds. One whose event has no parent waits for an event
// that has. To an index the groups of layers are one block, present while every group seen so far holds it.
//
// Parents. Where events tell the producer's name of the parent (KvEvent::set_parent_name()), that is its name
// in the index, and nothing is kept for it. Elsewhere a name that is not the chain hash is kept by that hash.
// A child waits for the parent under the name that it was told, even if the worker holds the same content
// under another one.
//
// What a worker holds is kept in one place, the index: the feeder asks it (IndexSink::presence()) and keeps
// only blocks that the index cannot have yet. Over a sink that does not tell it keeps them all. It must be
// the only writer of its worker. A feeder over an index that already holds blocks of its worker, from a dump
// for example, continues from there.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected per event, a question per 1,024 events, and a call of the sink per run. The
//                first event of a further group, after others were applied, and the clear of one tier list
//                the worker's blocks. Memory: about 180 bytes per (rank, name) that waits, and 22 to 86 bytes
//                per block with a name kept by its hash; over a sink that does not tell, about 180 bytes per
//                (rank, name) that some tier holds.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/stream_receiver.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::feed {

struct FeederRank;
struct FeederEntry;

struct IndexFeederCounters {
  std::uint64_t events = 0;
  std::uint64_t tracked_only = 0;   // of groups that an index ignores
  std::uint64_t other_tiers = 0;    // of tiers that routing ignores
  std::uint64_t without_local = 0;  // stored without a known local hash
  std::uint64_t stores = 0;         // runs
  std::uint64_t stored_blocks = 0;  // of runs that were applied
  std::uint64_t removed_blocks = 0;
  std::uint64_t missing_removals = 0;  // known here, and not in the index
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
  // The sink must outlive the feeder. The memory for the names of `expected_blocks` blocks of the first rank
  // is taken and touched here, which throws std::bad_alloc where there is none; events that name parents need
  // none. Tables shrink with what is removed.
  IndexFeeder(events::IndexSink& sink, events::WorkerId worker, std::size_t expected_blocks = 0);
  IndexFeeder(const IndexFeeder&) = delete;
  IndexFeeder& operator=(const IndexFeeder&) = delete;
  ~IndexFeeder();

  // Events of an EngineIngest, which carry their rank and whether an index needs them.
  void apply(std::span<const events::KvEvent> events);
  // Events of one rank, all for the index. A kResync clears the rank: a snapshot follows.
  void apply(std::uint32_t rank, std::span<const events::KvEvent> events);
  // Changes of an EngineIngest, which tells each once; the first form is for ranks by their numbers, the
  // second takes all for one rank. Where the worker held nothing at the start, a run costs one call of the
  // sink and no question.
  void apply(const IndexChanges& changes);
  void apply(std::uint32_t rank, const IndexChanges& changes);

  const IndexFeederCounters& counters() const noexcept { return counters_; }
  // Blocks that it keeps itself: those that wait, or all over a sink that does not tell. O(ranks).
  std::size_t kept() const noexcept;
  // Aborts on inconsistent state. For tests; O(blocks).
  void check_invariants() const;

 private:
  static constexpr std::size_t kRound = 1024;  // events for which the index is asked at once

  void check_invariants(const FeederRank& rank) const;
  FeederRank& rank_of(std::uint32_t number);
  void apply_needed(FeederRank& rank, std::span<const events::KvEvent> events);
  void apply_changes(FeederRank& rank, const IndexChanges& all,
                     std::span<const IndexChanges::Change> changes);
  // The same without clears.
  void apply_blocks(FeederRank& rank, const IndexChanges& all, std::span<const IndexChanges::Change> changes);
  // Sends a change as it is. Returns how many of its blocks were sent.
  std::size_t send_change(FeederRank& rank, const IndexChanges& changes, const IndexChanges::Change& change);
  // Whether all there is to know of the rank lies in the index.
  bool is_simple(const FeederRank& rank) const noexcept;
  void note_applied(FeederRank& rank, std::size_t blocks) noexcept;
  // Sends the run of stores or removals at the front of the events at once, where the index knows everything
  // that is needed. Returns its length; 0: it is no such run, and nothing was done.
  std::size_t send_run(FeederRank& rank, std::span<const events::KvEvent> events);
  std::size_t store_run(FeederRank& rank, std::span<const events::KvEvent> events);
  std::size_t remove_run(FeederRank& rank, std::span<const events::KvEvent> events);
  bool begin_run(FeederRank& rank, const events::KvEvent& first);
  // Loads what the index tells of the names in these events.
  void prepare(FeederRank& rank, std::span<const events::KvEvent> events);
  void load(FeederRank& rank, std::span<const events::BlockName> names,
            std::span<const tokens::SequenceHash> hashes);
  // Null: neither the index nor the rank has the block.
  FeederEntry* load(FeederRank& rank, const events::BlockPresence& told);
  void load_all(FeederRank& rank);
  // Drops the entries that the index tells. Requires: nothing is gathered.
  void settle(FeederRank& rank);
  void apply(FeederRank& rank, const events::KvEvent& event);
  std::optional<std::uint32_t> bit_of(FeederRank& rank, std::uint16_t group);
  void clear(FeederRank& rank);
  void clear_tier(FeederRank& rank, std::size_t tier);
  // Updates the index to match the entry.
  void sync(FeederRank& rank, events::BlockName name, FeederEntry& entry);
  // Stores the blocks that waited for this one, and their descendants.
  void adopt(FeederRank& rank, const tokens::SequenceHash& parent, events::BlockName parent_name);
  void store(FeederRank& rank, events::BlockName name, FeederEntry& entry, std::size_t tier);
  void remove(std::uint32_t rank_number, events::BlockName name, std::size_t tier);
  std::optional<events::BlockName> indexed_parent(FeederRank& rank, const FeederEntry& child);
  // Sends the gathered run or removals.
  void flush();

  events::IndexSink& sink_;
  events::WorkerId worker_;
  IndexFeederCounters counters_;
  std::unordered_map<std::uint32_t, std::unique_ptr<FeederRank>> ranks_;
  FeederRank* last_rank_ = nullptr;    // of them, that changes came for
  std::unique_ptr<FeederRank> ready_;  // of expected_blocks; becomes the first rank
  bool tells_ = true;                  // the sink, until it says otherwise
  // Of a question to the sink.
  std::vector<events::BlockName> asked_;
  std::vector<tokens::SequenceHash> asked_hashes_;
  std::vector<events::BlockPresence> told_;

  std::vector<events::KvEvent> expanded_;  // changes that need the long way

  // The run being gathered: blocks to store, or names to remove, of one rank and tier.
  std::uint32_t run_rank_ = 0;
  std::size_t run_tier_ = 0;
  std::optional<events::BlockName> run_parent_;
  std::uint32_t run_position_ = 0;
  tokens::SequenceHash run_end_;
  std::vector<events::StoredBlock> run_;
  std::vector<std::pair<std::uint64_t, events::BlockName>> run_names_;  // by chain hash
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
