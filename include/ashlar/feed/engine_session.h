// EngineSession and EngineIngest: from the messages of an inference engine to exact presence.
//
//   EngineSource ── messages ──► EngineSession ── batches in order, once ──► EngineIngest ── KvEvents ──► IndexFeeder, StreamRelay
//
// EngineSession follows one publisher without silent loss; EngineIngest turns batches into 0 -> 1 and 1 -> 0 changes. Programs
// with a decoder of their own use EngineIngest alone.
#pragma once

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
#include "ashlar/events/kv_event.h"
#include "ashlar/feed/engine_source.h"
#include "ashlar/tokens/hash_scheme.h"
#include "ashlar/tokens/salt.h"

namespace ashlar::feed {

class EngineRank;

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
  std::uint64_t external = 0;           // events about blocks of others (locality, ownership)
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

// EngineIngest: turns the untidy stream of an inference engine into exact presence: KvEvents that say each 0
// -> 1 and each 1 -> 0 change of (name, group, tier) once, parents before children.
//
// An engine stores one block several times and removes it as often (device blocks are counted; lower tiers
// are sets), names blocks that nobody knows yet, announces children before parents, and names an offloaded
// block without its tokens. What cannot be placed yet waits, within max_waiting and max_waiting_bytes; what
// is wrong is counted and left out, and the rest of its batch applies.
// KvEvent::hash is the chain hash of the tokens under Options::scheme; LoRA names and cache salts, which
// engines publish with block 0 only, pass from parents to children. Images enter the local hash as routers
// compute it (tokens/router_hash.h).
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
  // Aborts where what is present or waits contradicts itself. For tests; O(n log n).
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
  std::unique_ptr<ByteBudget> budget_;              // of what waits
  std::vector<std::unique_ptr<EngineRank>> ranks_;  // in the order they appeared
  bool lost_ = false;                               // since the start of this engine
};

struct EngineSessionOptions {
  EngineIngestOptions ingest = {};
  std::uint32_t remembered = 1024;  // messages, to tell duplicates from another life of the engine
  // Of a message when decoded. A larger one counts as one that cannot be decoded.
  std::size_t max_batch_bytes = events::kMaxEngineBatchBytes;

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

// Messages, but where it says otherwise.
struct EngineSessionCounters {
  std::uint64_t received = 0;
  std::uint64_t applied = 0;
  std::uint64_t replayed = 0;  // of these: by replay
  std::uint64_t duplicates = 0;
  std::uint64_t late = 0;               // came after they had been given up
  std::uint64_t lost = 0;               // numbers that never came in a readable form
  std::uint64_t undecodable = 0;        // each time one came
  std::uint64_t oversized = 0;          // of these: larger than max_batch_bytes when decoded
  std::uint64_t gaps = 0;               // times
  std::uint64_t replays = 0;            // times a replay was asked for
  std::uint64_t failed_replays = 0;     // of these: without an answer
  std::uint64_t resyncs = 0;            // times everything was dropped for a loss
  std::uint64_t restarts = 0;           // times the engine was started anew
  std::uint64_t incomplete_starts = 0;  // times the beginning of a stream could not be had

  friend bool operator==(const EngineSessionCounters&, const EngineSessionCounters&) = default;
};

// EngineSession: one publisher of an engine (one rank's socket, or a recording), followed without silent
// loss.
//
// Messages are numbered from 0 without holes. The session applies each number once and in order; what is
// missing it asks back (EngineSource::replay()). What cannot be had back ends in a resync: everything known
// of the engine is dropped, a kCleared goes out, and the picture grows again from what follows: it lacks
// blocks from then on, but never shows one that is gone.
//
//   first message   number 0: applied. A later one: replay from 0; what is no longer kept counts as lost.
//   next number     applied. When it cannot be decoded, it is asked for once more, then it is lost.
//   a later number  a gap: replay from the last applied message on, which must come back as it was: when it
//                   does not, this is another life of the engine.
//   a lower number  a message that was applied before: a duplicate. One that was lost: too late, dropped.
//                   Another message under a number that was applied, a younger timestamp than the last, or a
//                   number far below (more than Options::remembered), or one that cannot be read and is not
//                   kept as it was: the engine was started anew; the old state disappears and a new one
//                   begins.
//
// A source that sees by itself that the engine was started anew (EngineSource::restarts()) ends the old life
// before any message does. What cannot be seen without: an engine that was started anew and whose first
// message to arrive has, by chance, the very next number. A message of the old life that arrives after one of
// the new is not told from it; one connection cannot do that.
//
// Thread safety: thread-compatible.
// Complexity:    O(bytes) per message; memory: EngineIngest's, a fingerprint per remembered message, one
//                decoded batch of up to max_batch_bytes, and one replay, as far as the source brings it at
//                once.
class EngineSession {
 public:
  // Requires: a source. Errors: as EngineSessionOptions::validate().
  static Result<EngineSession> create(std::unique_ptr<EngineSource> source,
                                      EngineSessionOptions options = {});

  // Waits for a message up to `timeout` and appends what it changes, with what a replay brought before it.
  // Returns how many messages were applied. Errors: as EngineSource::receive(); the state stays, and a later
  // step goes on from there.
  Result<std::size_t> step(Clock::Duration timeout, std::vector<events::KvEvent>& out);

  // The number that should come next; nothing before the first message.
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

  EngineSession(std::unique_ptr<EngineSource> source, EngineSessionOptions options, EngineIngest ingest);

  void begin(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void fill_gap(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void restart(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // Nothing is known any more.
  void forget(std::vector<events::KvEvent>& out);
  Stale judge(const EngineMessage& message);
  // Applies what has not been applied; numbers that are left out are lost.
  void follow(std::span<const EngineMessage> messages, std::vector<events::KvEvent>& out);
  // The same with what the source did not bring at once, up to number `until`.
  void follow(EngineReplay kept, std::uint64_t until, std::vector<events::KvEvent>& out);
  // The live message after a replay that was to lead up to it.
  void finish(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // Requires: the next number. False when it cannot be decoded; nothing has changed then.
  bool apply(const EngineMessage& message, std::vector<events::KvEvent>& out);
  void apply_live(const EngineMessage& message, std::vector<events::KvEvent>& out);
  // The numbers before `sequence` are given up.
  void lose_until(std::uint64_t sequence, std::vector<events::KvEvent>& out);
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
