// EngineIngest: turns the untidy stream of an inference engine into exact presence: KvEvents that say each 0
// -> 1 and each 1 -> 0 change of (name, group, tier) once, parents before children.
//
// An engine stores one block several times and removes it as often (device blocks are counted; lower tiers
// are sets), names blocks that nobody knows yet, announces children before parents, and names an offloaded
// block without its tokens. What cannot be placed yet waits, within max_waiting and max_waiting_bytes; what
// is wrong is counted and left out, and the rest of its batch applies.
// KvEvent::hash is the chain hash of the tokens under Options::scheme; LoRA names and cache salts, which
// engines publish with block 0 only, pass from parents to children. Images enter the local hash as routers
// compute it (tokens/engine_hash.h).
//
// Full reports. An engine that is asked for them (vLLM: kv_cache_report_mode=full) announces the blocks of a
// cache hit again from block 0, and never removes them for that. A store is taken for such a report, and not
// counted, when it is of the device tier, has no parent, and names only blocks that are held there: a hit
// consists of these. From the first report on, and after a loss, also those blocks of a mixed store that are
// held are not counted again. What stays open: an engine that really computed the first blocks of a sequence
// a second time says the same words (a prompt of exactly one block, sent again; two requests whose first
// block fills in the same step; requests that ignore the cache; hits that another group of layers refused).
// The second copy is then not counted: the block is reported as gone with the first removal, though a copy is
// left until the second one, which is counted in `unknown_removals`. So it errs towards absent, never towards
// a block that is not there. The next store or report of the block corrects it, and a clear puts everything
// right. Where no request asks for full reports, Options::full_reports = false counts every store exactly.
//
// What else errs towards absent: a store that fell out of the waiting room; and a lower-tier block 0 that is
// published without its extra keys by an engine that publishes them elsewhere: it waits until a device store
// says which salt it has.
//
// Names mean something within a rank and a group of layers; a group that only slides over sequences may have
// lost a parent, which is then looked for in groups with blocks of the same size. A name that comes with
// other content than it has is refused (`collisions`), and so are children of it from then on
// (`ambiguous_parents`): a path is never guessed.
//
// Of each event that comes out: `metadata` carries the rank and whether an index of prefixes wants it
// (rank_of(), for_index()): groups of full attention do, sliding windows and state spaces are only tracked.
// `sequence` counts the events of a rank.
//
// Thread safety: thread-compatible.
// Complexity:    O(tokens) per batch; clearing sorts, O(n log n). Memory: what is present, plus max_waiting
//                blocks with their tokens in each of two waiting rooms, of all ranks together no more than
//                max_waiting_bytes. The oldest give way (`overflowed`).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/byte_budget.h"
#include "ashlar/base/result.h"
#include "ashlar/events/engine_event.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/events/worker.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/salt.h"

namespace ashlar::feed {

struct EngineIngestOptions {
  events::WorkerId worker = {};
  tokens::HashScheme scheme = {};
  tokens::Salt salt = {};                 // where the engine names no LoRA adapter or no cache salt
  std::uint32_t block_size = 0;           // tokens; 0: of each group, what its first store has
  std::vector<std::uint32_t> ranks = {};  // those that count; none: all
  std::uint32_t max_ranks = 1024;
  std::uint32_t max_groups = 64;       // of layers, of a rank
  std::uint32_t max_waiting = 65'536;  // blocks of a rank without their parent, and as many without tokens
  // What waits, with tokens, salts and extra keys, of all ranks together.
  std::size_t max_waiting_bytes = std::size_t{256} << 20;
  // Of a LoRA name or a cache salt, which stay with the blocks that they name. Events with longer ones are
  // left out.
  std::uint32_t max_salt_bytes = 4096;
  bool full_reports = true;

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// Blocks, but where it says events.
struct EngineIngestCounters {
  std::uint64_t batches = 0;       // batches
  std::uint64_t events = 0;        // events
  std::uint64_t stored = 0;        // 0 -> 1
  std::uint64_t removed = 0;       // 1 -> 0
  std::uint64_t repeated = 0;      // stored, and there already
  std::uint64_t released = 0;      // removed, and another copy is left
  std::uint64_t reannounced = 0;   // taken for a full report
  std::uint64_t placeholders = 0;  // stored without tokens
  std::uint64_t waited = 0;        // came before what they need
  std::uint64_t resolved = 0;      // of these: placed later
  std::uint64_t cancelled = 0;     // of these: removed or cleared before
  std::uint64_t overflowed = 0;    // of these: gave way to newer ones
  std::uint64_t unknown_removals = 0;
  std::uint64_t clears = 0;             // events
  std::uint64_t unknown_events = 0;     // events with a tag that is not known
  std::uint64_t unknown_mediums = 0;    // events
  std::uint64_t foreign = 0;            // events about blocks of others (locality, ownership)
  std::uint64_t other_ranks = 0;        // batches
  std::uint64_t other_groups = 0;       // stores in groups beyond max_groups
  std::uint64_t wrong_block_sizes = 0;  // events
  std::uint64_t short_tokens = 0;       // events with fewer tokens than their names need
  std::uint64_t long_salts = 0;         // events with a LoRA name or salt above max_salt_bytes
  std::uint64_t collisions = 0;         // events that ended at a name with other content
  std::uint64_t ambiguous_parents = 0;  // events
  std::uint64_t too_deep = 0;           // events that ended at the last position a name can have

  friend bool operator==(const EngineIngestCounters&, const EngineIngestCounters&) = default;
};

class EngineRank;

class EngineIngest {
 public:
  // Errors: as EngineIngestOptions::validate().
  static Result<EngineIngest> create(EngineIngestOptions options);
  EngineIngest(EngineIngest&&) noexcept;
  EngineIngest& operator=(EngineIngest&&) noexcept;
  ~EngineIngest();

  // Appends what the batch changes. A batch without a rank is of rank 0.
  void apply(const events::EngineBatch& batch, std::vector<events::KvEvent>& out);
  // Forgets what the rank holds, in every tier, and what waits: one kCleared of kAllTiers where it held
  // something. Its stream may go on; what was learned about its groups stays.
  void clear(std::uint32_t rank, std::vector<events::KvEvent>& out);
  // Messages were lost: the same for all ranks.
  void resync(std::vector<events::KvEvent>& out);
  // Another engine follows, from its start: the same, and what was learned is forgotten.
  void reset(std::vector<events::KvEvent>& out);

  const EngineIngestOptions& options() const noexcept { return options_; }
  const EngineIngestCounters& counters() const noexcept { return counters_; }
  // (name, group, tier)s, and blocks that wait, over all ranks.
  std::size_t present() const noexcept;
  std::size_t waiting() const noexcept;
  // What those that wait count against max_waiting_bytes.
  std::size_t waiting_bytes() const noexcept { return budget_->used(); }
  // Why events were last left out, in words; empty: none was.
  const std::string& last_refusal() const noexcept { return last_refusal_; }

  static std::uint32_t rank_of(const events::KvEvent& event) noexcept { return event.metadata & kRankMask; }
  static bool for_index(const events::KvEvent& event) noexcept {
    return (event.metadata & kTrackedOnly) == 0;
  }

  static constexpr std::uint32_t kTrackedOnly = 1u << 31;  // of KvEvent::metadata
  static constexpr std::uint32_t kRankMask = kTrackedOnly - 1;

 private:
  explicit EngineIngest(EngineIngestOptions options);

  EngineIngestOptions options_;
  EngineIngestCounters counters_;
  std::string last_refusal_;
  std::unique_ptr<ByteBudget> budget_;              // of what waits
  std::vector<std::unique_ptr<EngineRank>> ranks_;  // in the order they appeared
  bool lost_ = false;                               // since the start of this engine
};

}  // namespace ashlar::feed
