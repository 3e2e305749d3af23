// EngineSession, EngineIngest and IndexChanges: from the messages of an inference engine to exact presence.
//
//   EngineSource ──► EngineSession ──► EngineIngest ──► IndexFeeder, StreamRelay
//       messages    each once, in order    IndexChanges, KvEvents
//
// EngineSession follows one publisher without silent loss; EngineIngest turns batches into 0 -> 1 and 1 -> 0
// changes. Programs with their own decoder use EngineIngest alone.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/byte_budget.h"
#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/events/engine_codec.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/events/kv_event.h"
#include "ashlar/events/tier.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::feed {

class EngineRank;

struct EngineIngestOptions {
  events::WorkerId worker = {};
  tokens::HashScheme scheme = {};
  tokens::Salt salt = {};                 // used if the engine names no LoRA adapter or cache salt
  std::uint32_t block_size = 0;           // tokens; 0: taken from the first store of each group
  std::vector<std::uint32_t> ranks = {};  // ranks to follow; empty: all
  std::uint32_t max_ranks = 1024;
  // Blocks that the first rank will hold, at most 2^31: their memory is taken and touched at creation, which
  // throws std::bad_alloc where there is none. A page of names shrinks when it is empty, and a rank that
  // holds no block gives all of it back.
  static constexpr std::size_t kMaxExpected = std::size_t{1} << 31;
  std::size_t expected_blocks = 0;
  std::uint32_t max_groups = 64;       // of layers, of a rank
  std::uint32_t max_waiting = 65'536;  // blocks of a rank without their parent, and as many without tokens
  // Waiting blocks of all ranks, with tokens, salts and extra keys.
  std::size_t max_waiting_bytes = std::size_t{256} << 20;
  // Limit of a LoRA name or cache salt, which are kept with their blocks. Events with longer ones are
  // skipped.
  std::uint32_t max_salt_bytes = 4096;
  bool full_reports = true;
  // If given, decides instead, and is read for every batch: set before the first request that asks for a
  // report, it is seen with the events of that request.
  std::shared_ptr<const std::atomic<bool>> full_reports_asked = {};

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// In blocks unless the comment says otherwise.
struct EngineIngestCounters {
  std::uint64_t batches = 0;       // batches
  std::uint64_t events = 0;        // events
  std::uint64_t stored = 0;        // 0 -> 1
  std::uint64_t removed = 0;       // 1 -> 0
  std::uint64_t repeated = 0;      // stored again
  std::uint64_t released = 0;      // removed, with another copy left
  std::uint64_t reannounced = 0;   // part of a full report
  std::uint64_t placeholders = 0;  // stored without tokens
  std::uint64_t waited = 0;        // arrived before their parent or tokens
  std::uint64_t resolved = 0;      // of these: placed later
  std::uint64_t cancelled = 0;     // of these: removed or cleared first
  std::uint64_t overflowed = 0;    // of these: dropped for newer ones
  std::uint64_t unknown_removals = 0;
  std::uint64_t clears = 0;             // events
  std::uint64_t unknown_events = 0;     // events with an unknown tag
  std::uint64_t unknown_mediums = 0;    // events
  std::uint64_t external = 0;           // events about blocks of other workers (locality, ownership)
  std::uint64_t other_ranks = 0;        // batches
  std::uint64_t other_groups = 0;       // stores in groups beyond max_groups
  std::uint64_t wrong_block_sizes = 0;  // events
  std::uint64_t short_tokens = 0;       // events with fewer tokens than their names need
  std::uint64_t long_salts = 0;         // events with a LoRA name or salt above max_salt_bytes
  std::uint64_t collisions = 0;         // events cut at a name with other content
  std::uint64_t ambiguous_parents = 0;  // events
  std::uint64_t too_deep = 0;           // events cut at the last possible position
  // Events of the engine's own blocks by tier, and of these `clears`.
  std::array<std::uint64_t, events::kStorageTiers> tier_events{};
  std::array<std::uint64_t, events::kStorageTiers> tier_clears{};

  friend bool operator==(const EngineIngestCounters&, const EngineIngestCounters&) = default;
};

// IndexChanges: what an engine's messages change for a routing index, in order: runs of stored blocks, names
// that left a tier, ranks that are empty. The same news as the KvEvents that an index needs
// (EngineIngest::for_index()), in the form in which an index takes it, so that a run costs one call and a
// block 32 bytes.
//
// Thread safety: thread-compatible.
struct IndexChanges {
  // Consecutive blocks of a sequence that are in a tier now (kStored), names that left a tier (kRemoved), or,
  // with kAllTiers, a rank that holds nothing any more (kCleared).
  struct Change {
    events::KvEventKind kind = events::KvEventKind::kStored;
    events::TierId tier = {};
    std::uint16_t group = 0;  // of layers
    std::uint32_t rank = 0;
    std::uint32_t first = 0;  // kStored: of `blocks`; kRemoved: of `names`
    std::uint32_t count = 0;
    // kStored: the block before the first one.
    std::optional<tokens::SequenceHash> parent = {};
    // Its name, if the rank holds it now. A run without a parent begins a sequence.
    std::optional<events::BlockName> parent_name = {};
  };

  std::vector<Change> changes;
  // Of kStored, and their hashes; of kRemoved, and theirs. Hashes are those of group 0.
  std::vector<events::StoredBlock> blocks;
  std::vector<tokens::SequenceHash> block_hashes;
  std::vector<events::BlockName> names;
  std::vector<tokens::SequenceHash> name_hashes;
  // Blocks that were left out, since an index does not need them, and the tiers where some were stored.
  std::uint64_t tracked_only = 0;
  std::uint8_t tracked_tiers = 0;  // a bit each

  bool empty() const noexcept { return changes.empty(); }
  // As many as the KvEvents would be.
  std::size_t size() const noexcept {
    std::size_t count = blocks.size() + names.size() + tracked_only;
    for (const Change& change : changes) count += change.kind == events::KvEventKind::kCleared ? 1 : 0;
    return count;
  }
  // For a change more, and so many blocks or names. Throws std::bad_alloc with nothing changed.
  void make_room(events::KvEventKind kind, std::size_t count) {
    grow(changes, 1);
    if (kind == events::KvEventKind::kStored) {
      grow(blocks, count);
      grow(block_hashes, count);
    } else if (kind == events::KvEventKind::kRemoved) {
      grow(names, count);
      grow(name_hashes, count);
    }
  }
  void clear() noexcept {
    changes.clear();
    blocks.clear();
    block_hashes.clear();
    names.clear();
    name_hashes.clear();
    tracked_only = 0;
    tracked_tiers = 0;
  }

  // Room for `more` elements, by doubling.
  template <class T>
  static void grow(std::vector<T>& array, std::size_t more) {
    const std::size_t needed = array.size() + more;
    if (needed > array.capacity()) array.reserve(std::max(needed, 2 * array.capacity()));
  }
};

// ChangeOutput: where an EngineIngest puts its changes, a vector of KvEvents or IndexChanges.
//
// Thread safety: thread-compatible; it refers to the caller's memory.
class ChangeOutput {
 public:
  // Implicit: a caller passes either by its name.
  ChangeOutput(std::vector<events::KvEvent>& events) noexcept  // NOLINT(google-explicit-constructor)
      : events_(&events) {}
  ChangeOutput(IndexChanges& changes) noexcept  // NOLINT(google-explicit-constructor)
      : changes_(&changes) {}

  // For so many stored blocks of a run. Throws std::bad_alloc with nothing changed.
  void make_room(std::size_t blocks) const {
    if (events_ != nullptr)
      IndexChanges::grow(*events_, blocks);
    else
      changes_->make_room(events::KvEventKind::kStored, blocks);
  }
  // One of them is not null.
  std::vector<events::KvEvent>* events() const noexcept { return events_; }
  IndexChanges* changes() const noexcept { return changes_; }

 private:
  std::vector<events::KvEvent>* events_ = nullptr;
  IndexChanges* changes_ = nullptr;
};

// EngineIngest: turns the raw stream of an inference engine into exact presence: KvEvents that report each 0
// -> 1 and 1 -> 0 change of (name, group, tier) once, parents before children.
//
// An engine stores a block several times and removes it as often (device blocks are counted, up to 65,535
// copies: with more, the block goes early; lower tiers are sets), refers to unknown blocks, announces
// children before parents, and names offloaded blocks without tokens. Blocks that cannot be placed yet wait,
// within max_waiting and max_waiting_bytes; invalid events are counted and skipped, and the rest of their
// batch is applied. KvEvent::hash is the chain hash of the tokens under Options::scheme; LoRA names and cache
// salts, which engines publish with block 0 only, pass from parents to children. Images enter the local hash
// as routers compute it (tokens/engine_hash.h).
//
// Full reports. An engine configured for them (vLLM: kv_cache_report_mode=full) announces the blocks of a
// cache hit again from block 0, and never removes them for that. A store counts as such a report, and not as
// a copy, if it is in the device tier, has no parent, and names only blocks held there, as a hit does. From
// the first report on, and after a loss, held blocks of a mixed store are not counted again either. The limit
// of this rule: an engine that computes the first blocks of a sequence a second time sends the same message
// (a prompt of exactly one block, sent again; two requests whose first block fills in the same step; requests
// that bypass the cache; hits that another group of layers refused). The second copy is then not counted: the
// first removal reports the block as gone although a copy remains, and the second removal counts in
// `unknown_removals`. So errors are always towards absent. The next store or report of the block corrects it,
// and so does a clear. If no request asks for full reports, Options::full_reports = false counts every store
// exactly; full_reports_asked is for those who see the requests.
//
// Two more cases err towards absent: a store that was evicted while it waited; and a lower-tier block 0
// published without extra keys by an engine that publishes them elsewhere, which waits until a device store
// gives its salt.
//
// Names are scoped to a rank and a group of layers. A sliding-window group may have lost a parent, which is
// then looked up in groups with the same block size. A name that comes with different content is refused
// (`collisions`), and so are its children from then on (`ambiguous_parents`): a path is never guessed.
//
// Changes go to a ChangeOutput: as KvEvents, or, for an index, as IndexChanges, which leave out what an index
// does not need. In each event `metadata` carries the rank and whether a prefix index needs it (rank_of(),
// for_index()): full-attention groups are needed, sliding windows and state spaces are only tracked.
// `sequence` counts the events of a rank.
//
// Thread safety: thread-compatible.
// Complexity:    O(tokens) per batch; clearing sorts, O(n log n). Memory: the blocks present, plus at most
//                max_waiting blocks without parent and as many without tokens per rank, together at most
//                max_waiting_bytes. The oldest are dropped first (`overflowed`).
class EngineIngest {
 public:
  // Errors: as EngineIngestOptions::validate().
  static Result<EngineIngest> create(EngineIngestOptions options);
  EngineIngest(EngineIngest&&) noexcept;
  EngineIngest& operator=(EngineIngest&&) noexcept;
  ~EngineIngest();

  // Appends the changes of the batch. A batch without a rank belongs to rank 0.
  void apply(const events::EngineBatch& batch, ChangeOutput out);
  // Everything known of the engine, for load() of another ingest. Errors: kNotReady: blocks wait for their
  // parents or tokens; kUnsupported: a cache salt that its seed does not stand for (HashScheme, images).
  Result<std::vector<std::byte>> save() const;
  // Goes on from there: as reset(), then the changes that store what the other held. Errors, with nothing
  // changed: kCorruption: not such a state; kInvalidArgument: of another scheme, salt or block size.
  Result<void> load(std::span<const std::byte> state, ChangeOutput out);
  // Drops the blocks of the rank in every tier, and its waiting blocks; emits one kCleared of kAllTiers if it
  // held any. The stream may continue; what was learned about its groups stays.
  void clear(std::uint32_t rank, ChangeOutput out);
  // After a loss of messages: clear() for all ranks.
  void resync(ChangeOutput out);
  // A new engine follows from its start: as resync(), and also forgets everything learned.
  void reset(ChangeOutput out);

  const EngineIngestOptions& options() const noexcept { return options_; }
  const EngineIngestCounters& counters() const noexcept { return counters_; }
  // Tokens of a block of the first rank and group that a prefix index needs; 0 until one was stored.
  std::uint32_t block_size() const noexcept;
  // (name, group, tier)s, and waiting blocks, over all ranks.
  std::size_t present() const noexcept;
  std::size_t waiting() const noexcept;
  // Bytes counted against max_waiting_bytes.
  std::size_t waiting_bytes() const noexcept { return budget_->used(); }
  // Why events were last skipped; empty if none were.
  const std::string& last_refusal() const noexcept { return last_refusal_; }
  // Aborts on inconsistent state. For tests; O(n log n).
  void check_invariants() const;

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
  std::unique_ptr<ByteBudget> budget_;              // of waiting blocks
  std::vector<std::unique_ptr<EngineRank>> ranks_;  // in the order they appeared
  std::unique_ptr<EngineRank> ready_;               // of expected_blocks; becomes the first rank
  bool lost_ = false;                               // since the start of this engine
};

struct EngineSessionOptions {
  EngineIngestOptions ingest = {};
  std::uint32_t remembered = 1024;  // messages, to tell duplicates from a restart
  // Limit of a decoded message. A larger one counts as undecodable.
  std::size_t max_batch_bytes = events::kMaxEngineBatchBytes;

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// In messages unless the comment says otherwise.
struct EngineSessionCounters {
  std::uint64_t received = 0;
  std::uint64_t applied = 0;
  std::uint64_t replayed = 0;  // of these: by replay
  std::uint64_t duplicates = 0;
  std::uint64_t late = 0;               // arrived after they were counted as lost
  std::uint64_t lost = 0;               // numbers never received in readable form
  std::uint64_t undecodable = 0;        // counted on each arrival
  std::uint64_t oversized = 0;          // of these: larger than max_batch_bytes when decoded
  std::uint64_t gaps = 0;               // times
  std::uint64_t replays = 0;            // replay requests
  std::uint64_t failed_replays = 0;     // of these: not answered
  std::uint64_t resyncs = 0;            // times the state was dropped after a loss
  std::uint64_t restarts = 0;           // restarts of the engine
  std::uint64_t incomplete_starts = 0;  // times the start of a stream could not be recovered
  std::uint64_t resumes = 0;            // times that a checkpoint took the place of what was missed

  friend bool operator==(const EngineSessionCounters&, const EngineSessionCounters&) = default;
};

// What a session knew after a message: another session that has this message, and those after it, knows the
// same.
struct EngineCheckpoint {
  std::uint64_t message = 0;     // its number
  std::uint64_t digest = 0;      // of its payload, which has a time: other runs of the engine send others
  std::vector<std::byte> state;  // EngineIngest::save()
};

// EngineSession: follows one publisher of an engine (one rank's socket, or a recording) without silent loss.
//
// Messages are numbered from 0 without gaps. The session applies each number once and in order, and asks for
// missing ones (EngineSource::replay()). If they cannot be recovered, it resyncs: it drops everything known
// of the engine, emits a kCleared, and rebuilds its state from later messages. The state then lacks blocks,
// but never shows one that is gone.
//
//   first message   number 0: applied. A later one: replay from 0; messages no longer kept count as lost.
//   next number     applied. If it cannot be decoded, it is requested once more, then it is lost.
//   a later number  a gap: replay from the last applied message on, which must come back unchanged; if not,
//                   the engine was restarted.
//   a lower number  a message that was applied before: a duplicate. One that was lost: too late, dropped.
//                   Another message under a number that was applied, a younger timestamp than the last, or a
//                   number far below (more than Options::remembered), or one that cannot be read and is not
//                   kept unchanged: the engine was restarted; the old state is dropped and a new one begins.
//
// A source that detects a restart itself (EngineSource::restarts()) ends the old incarnation before any
// message does. Without that, one case goes undetected: a restarted engine whose first received message
// happens to have the next number. A message of the old incarnation that arrives after one of the new cannot
// be told apart; a single connection never delivers one.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes) per message; memory: EngineIngest's, a fingerprint per remembered message, one
//                decoded batch of up to max_batch_bytes, and one chunk of a replay.
class EngineSession {
 public:
  // Requires: a source. Errors: as EngineSessionOptions::validate().
  static Result<EngineSession> create(std::unique_ptr<EngineSource> source,
                                      const EngineSessionOptions& options = {});

  // Waits up to `timeout` for a message and appends its changes, after those of a replay. Returns how many
  // messages were applied. Errors: as EngineSource::receive(); the state is unchanged, and the next step
  // continues.
  Result<std::size_t> step(Clock::Duration timeout, ChangeOutput out);

  // Errors: kNotReady: no message was applied since the last restart; as EngineIngest::save().
  Result<EngineCheckpoint> save() const;
  // Takes the checkpoint for what was missed before its message, and applies the messages after it again.
  // Appends the changes. Errors, with nothing changed: kNotFound: the engine does not keep that message;
  // kInvalidArgument: it keeps another one under that number, so that it was restarted since; as
  // EngineIngest::load(). Requires: next().
  Result<void> resume(const EngineCheckpoint& checkpoint, ChangeOutput out);

  // The expected next number; nullopt before the first message.
  std::optional<std::uint64_t> next() const noexcept { return next_; }
  const EngineIngest& ingest() const noexcept { return ingest_; }
  const EngineSessionCounters& counters() const noexcept { return counters_; }
  const EngineSource& source() const noexcept { return *source_; }

 private:
  struct Memory {
    std::uint64_t sequence = 0;
    std::uint64_t fingerprint = 0;
    bool known = false;
  };
  enum class Stale : std::uint8_t { kDuplicate, kLate, kRestart };

  EngineSession(std::unique_ptr<EngineSource> source, const EngineSessionOptions& options,
                EngineIngest ingest);

  void begin(const EngineMessage& message, ChangeOutput out);
  void fill_gap(const EngineMessage& message, ChangeOutput out);
  void restart(const EngineMessage& message, ChangeOutput out);
  // Drops all state.
  void forget(ChangeOutput out);
  Stale judge(const EngineMessage& message);
  // Applies messages not applied yet; missing numbers count as lost.
  void follow(std::span<const EngineMessage> messages, ChangeOutput out);
  // The same, requesting further chunks up to number `until`.
  void follow(EngineReplay kept, std::uint64_t until, ChangeOutput out);
  // The live message after a replay.
  void finish(const EngineMessage& message, ChangeOutput out);
  // Requires: the next number. False, with nothing changed, when it cannot be decoded.
  bool apply(const EngineMessage& message, ChangeOutput out);
  void apply_live(const EngineMessage& message, ChangeOutput out);
  // Counts the numbers before `sequence` as lost.
  void lose_until(std::uint64_t sequence, ChangeOutput out);
  EngineReplay replay(std::uint64_t from);
  // Into batch_.
  bool decode(const EngineMessage& message);

  void remember(const EngineMessage& message);
  const Memory* recall(std::uint64_t sequence) const;

  std::unique_ptr<EngineSource> source_;
  EngineIngest ingest_;
  EngineSessionCounters counters_;
  std::optional<std::uint64_t> next_;
  std::uint64_t source_restarts_ = 0;
  double last_timestamp_ = 0;
  std::vector<Memory> memory_;  // by number modulo its size
  std::size_t max_batch_bytes_;
  events::EngineBatch batch_;
};

}  // namespace ashlar::feed
