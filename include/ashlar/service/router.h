// Router: chooses a worker for each request, from what the workers hold and do, and can prove each choice.
//
// Every input (a block stored or removed, a worker that comes, goes or changes its state, a request, its
// first byte, its end) passes one lock and gets a number. A choice is a function of the inputs before it: fed
// again in that order (service/journal.h), they lead to the same choices.
//
// The cost of a worker, in thousandths of a block, smaller is better:
//
//   prefill  what is left to compute: its prefill load, plus the request, minus a credit per cached block
//   decode   blocks of the requests that run there, plus those of this one
//   requests that run there
//   session  minus a bonus where the session's last request ran
//
// Claims. A worker is EXACT if its events are complete, numbered and from a known start; DEGRADED while that
// is being repaired or cannot be said; FALLBACK without events. `cached_tokens` of a decision counts blocks
// that the worker itself reported; predictions count in costs, and in the claim of a FALLBACK worker only,
// whose decisions say so.
//
// Thread safety: thread-safe.
// Complexity:    choose() is O(workers + depth / 8).
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/base/strong_id.h"
#include "ashlar/events/index_sink.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/service/miss_reason.h"
#include "ashlar/tokens/token.h"

namespace ashlar::service {

enum class Policy : std::uint8_t { kPrefix, kLeastLoaded, kRoundRobin, kRandom };
// "prefix", "least_loaded", "round_robin", "random".
std::string_view to_string(Policy policy) noexcept;
Result<Policy> parse_policy(std::string_view name);

// In thousandths of a block.
struct CostWeights {
  // Credit for a cached block, by its fastest tier.
  std::array<std::int32_t, events::kStorageTiers> credit = {1000, 750, 250, 250, 500};
  std::int32_t prefill = 1000;  // of a block that is left to compute
  std::int32_t decode = 50;     // of a block of a running request
  std::int32_t request = 250;   // of a running request
  std::int32_t session = 2000;  // bonus
  // Above 0, a choice by chance: thousandths of the spread of costs.
  std::int32_t temperature = 0;

  friend bool operator==(const CostWeights&, const CostWeights&) = default;
};

enum class WorkerState : std::uint8_t { kExact, kDegraded, kFallback };
// "EXACT", "DEGRADED", "FALLBACK".
std::string_view to_string(WorkerState state) noexcept;

struct WorkerSpec {
  events::WorkerId id;
  std::string group;              // workers of one model, adapters included; requests stay in their group
  std::uint32_t ranks = 1;        // data-parallel; each is chosen on its own
  std::uint32_t max_running = 0;  // requests at a rank at a time; 0: no limit
  bool has_events = false;
  bool is_asked_about = false;  // only: no request is sent there, and no decision lists it
  std::string name = {};        // for people who read the journal

  friend bool operator==(const WorkerSpec&, const WorkerSpec&) = default;
};

using DecisionId = StrongId<struct DecisionIdTag, std::uint64_t>;

struct RouteRequest {
  std::string_view group = {};
  std::span<const tokens::LocalHash> locals = {};  // of the full blocks of the prompt
  std::uint64_t prompt_tokens = 0;
  bool is_estimate = false;      // nothing is claimed: prompt_tokens is a guess, or the rank is
  std::uint32_t block_size = 0;  // tokens; requires: > 0
  std::uint64_t session = 0;     // 0: none
  Policy policy = Policy::kPrefix;
  CostWeights weights = {};
  std::span<const events::Worker> tried = {};  // not to be chosen again
  std::optional<std::uint32_t> rank = {};      // only workers of this data-parallel rank
  // Rather chooses nobody now than an EXACT worker with blocks that are expected and not reported yet: their
  // events may be on the way. Policies other than kPrefix never do.
  bool hesitates = false;
};

// Why a worker could not be chosen.
// kOtherModel and kNotHome stand in receipts only: to the router such a worker is not to be chosen, as a
// tried one.
enum class Exclusion : std::uint8_t { kNone, kDown, kFull, kTried, kOtherRank, kOtherModel, kNotHome };
std::string_view to_string(Exclusion exclusion) noexcept;

// A worker as a decision saw it. Loads are those before the request.
struct Candidate {
  events::Worker worker;
  WorkerState state = WorkerState::kFallback;
  Exclusion exclusion = Exclusion::kNone;
  std::array<std::uint32_t, events::kStorageTiers> blocks{};  // reported, from the start, by fastest tier
  std::uint32_t depth = 0;                                    // their sum
  std::uint32_t device_depth = 0;  // blocks from the start that are all in the device tier
  std::uint32_t predicted = 0;     // blocks from the start, reported or expected from earlier choices
  std::uint32_t requests = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t decode_blocks = 0;
  // The terms of the cost, in thousandths of a block.
  std::int64_t prefill_cost = 0;
  std::int64_t decode_cost = 0;
  std::int64_t request_cost = 0;
  std::int64_t session_cost = 0;
  std::int64_t cost = 0;

  friend bool operator==(const Candidate&, const Candidate&) = default;
};

// How much of what a worker holds has changed since it came: tells why it found something else than expected.
struct WorkerChanges {
  std::uint64_t stored = 0;   // blocks
  std::uint64_t removed = 0;  // blocks
  std::uint64_t cleared = 0;  // times

  friend bool operator==(const WorkerChanges&, const WorkerChanges&) = default;
};

// What became of blocks of a prompt at a worker that had them, or had not, at some time.
enum class BlockFate : std::uint8_t {
  kKept,       // it dropped none of them since
  kDropped,    // it dropped one, though it may have it again
  kForgotten,  // it dropped so many others since that this is not known
};

struct Decision {
  DecisionId id;
  Clock::TimePoint time;
  Policy policy = Policy::kPrefix;
  std::uint64_t prompt_tokens = 0;
  bool is_estimate = false;
  std::uint32_t block_size = 0;
  std::size_t chosen = 0;              // of `candidates`
  std::uint64_t cached_tokens = 0;     // that the chosen worker is expected to find
  std::uint64_t available_tokens = 0;  // that the best worker of the group would
  std::uint64_t draw = 0;              // the number that decided by chance; 0: none did
  WorkerChanges changes;               // of the chosen worker, until then
  // Blocks of the prompt behind those that the chosen worker reports, by reason; none where it reports
  // nothing (FALLBACK). Not written to journals: a replay finds them again.
  std::array<std::uint32_t, kMissReasons> missed{};
  std::vector<Candidate> candidates;  // by worker and rank

  const Candidate& choice() const { return candidates[chosen]; }
  friend bool operator==(const Decision&, const Decision&) = default;
};

struct RouterOptions {
  Clock::Duration prediction_ttl = std::chrono::seconds(5);  // of workers with events
  Clock::Duration fallback_ttl = std::chrono::seconds(120);  // of workers without
  std::uint64_t seed = 1;                                    // of choices by chance
  std::size_t max_sessions = 65'536;
  std::size_t max_predicted_blocks = 16'384;  // of one request, from the start of its prompt
  std::size_t max_predictions = 524'288;      // blocks of a group at a time; the oldest end first

  // Errors: kInvalidArgument, with the value.
  Result<void> validate() const;
};

class DroppedBlocks;
class RouteCore;

// Hears every input of a Router in its order, before it takes effect. Called under the router's lock.
class RouteLog {
 public:
  virtual ~RouteLog() = default;
  // Before the next input, if it wants to write down everything that was taken in so far.
  virtual bool wants_checkpoint() const noexcept { return false; }
  virtual void checkpoint(const RouteCore& /*core*/) {}
  // The locals of a request as this log names them, before it is chosen(): equal ones stay equal, and others
  // differ. They last until chosen().
  virtual std::span<const tokens::LocalHash> keyed(std::span<const tokens::LocalHash> locals) {
    return locals;
  }
  virtual void worker_added(const WorkerSpec& spec) = 0;
  virtual void worker_removed(events::WorkerId worker) = 0;
  virtual void state_changed(const events::Worker& worker, WorkerState state) = 0;
  virtual void availability_changed(events::WorkerId worker, bool is_up) = 0;
  virtual void stored(const events::BlocksStored& event) = 0;
  virtual void removed(const events::Worker& worker, events::StorageTier tier,
                       std::span<const events::BlockName> names) = 0;
  virtual void cleared(const events::Worker& worker) = 0;
  virtual void expected(const events::Worker& worker, std::span<const tokens::LocalHash> locals,
                        Clock::TimePoint now) = 0;
  // After the choice. An error: no worker could be chosen.
  virtual void chosen(const RouteRequest& request, Clock::TimePoint now,
                      const Result<Decision>& decision) = 0;
  virtual void first_byte(DecisionId decision, Clock::TimePoint now) = 0;
  virtual void released(DecisionId decision, Clock::TimePoint now) = 0;
};

// Blocks in one tier of a worker, as its events tell. A store of a block that the tier holds counts again:
// feeders send none.
struct TierChanges {
  std::uint64_t held = 0;     // now
  std::uint64_t most = 0;     // held at a time, since the worker came
  std::uint64_t stored = 0;   // in all
  std::uint64_t removed = 0;  // in all, one by one; what a clear takes is not counted
  // Of those stored: offloaded, by the tier that they came from: the next faster one that held them then.
  std::array<std::uint64_t, events::kStorageTiers> offloaded{};

  std::uint64_t all_offloaded() const noexcept {
    std::uint64_t sum = 0;
    for (const std::uint64_t blocks : offloaded) sum += blocks;
    return sum;
  }
  friend bool operator==(const TierChanges&, const TierChanges&) = default;
};

// What one (worker, rank) does and holds now.
struct WorkerLoad {
  events::Worker worker;
  std::string group;
  WorkerState state = WorkerState::kFallback;
  bool is_up = true;
  std::uint32_t requests = 0;
  std::uint64_t prefill_tokens = 0;
  std::uint64_t decode_blocks = 0;
  std::uint64_t chosen = 0;  // times
  std::array<TierChanges, events::kStorageTiers> tiers{};
};

class Router {
 public:
  // Requires: options.validate(). `log` may be null; it and the clock must outlive the router.
  explicit Router(const RouterOptions& options = {}, RouteLog* log = nullptr, Clock& clock = Clock::real());
  ~Router();
  Router(const Router&) = delete;
  Router& operator=(const Router&) = delete;

  // A worker of a known id replaces its specification and keeps its blocks, loads and states if the group is
  // the same. New ranks are FALLBACK and up.
  void add_worker(const WorkerSpec& spec);
  // Its running requests are still released one by one.
  void remove_worker(events::WorkerId worker);
  // Unknown workers are ignored, here and below.
  void set_state(const events::Worker& worker, WorkerState state);
  void set_up(events::WorkerId worker, bool is_up);

  // The reader of the worker's events runs, and its state holds for `lasts`. A choice that comes later takes
  // an EXACT worker for DEGRADED, which is an input like any other change of a state. False: this call comes
  // later than the one before allowed for. A worker without beats never lapses.
  bool beat(const events::Worker& worker, Clock::Duration lasts);
  // The last beat has ended.
  bool is_late(const events::Worker& worker) const;

  // The worker probably holds this prefix: an earlier router says so. It counts as a prediction of
  // `fallback_ttl`, and no longer once the worker is EXACT.
  void expect(const events::Worker& worker, std::span<const tokens::LocalHash> locals);

  // The index as its feeders see it: blocks of workers that were added. Calls for others are refused as
  // kFull.
  events::IndexSink& sink() noexcept;

  // Chooses, and reserves the request's load at the chosen worker. Errors: kNotFound: no worker in that
  // group; kUnavailable: all are down or were tried; kCapacity: the others are full; kNotReady: it hesitates.
  Result<Decision> choose(const RouteRequest& request);
  // The first byte of the answer came: the prefill is done.
  void first_byte(DecisionId decision);
  // Ends the reservation. Requires: called once per decision.
  void release(DecisionId decision);

  // Ends predictions whose time is over, a few at a time, with a short sleep in between in which choices are
  // made. The next choice would have to do it otherwise, and it changes none.
  void tidy();

  // What every worker of the group holds of a prefix, without choosing; predictions left out.
  std::vector<Candidate> look_up(std::string_view group, std::span<const tokens::LocalHash> locals) const;
  std::vector<WorkerLoad> loads() const;
  // Of a worker that is known; zeros otherwise.
  WorkerChanges changes(const events::Worker& worker) const;
  // Whether the worker has dropped one of these blocks of a prompt, `first` and after it, since it had
  // changed so much. The last removals of each rank are remembered, in bounded memory; clears are none.
  BlockFate fate_of(const events::Worker& worker, std::span<const tokens::LocalHash> locals,
                    std::size_t first, const WorkerChanges& since) const;
  // Reservations that were not released.
  std::size_t running() const;
  // Sends the calls that rebuild what the workers of the group hold.
  void dump(std::string_view group, events::IndexSink& sink) const;
  // The shape of what the workers of the group report; empty: no such group. Requests go on meanwhile.
  index::IndexOutline outline(std::string_view group) const;
  // Blocks, contents and bytes of the group's index.
  struct Sizes {
    std::size_t blocks = 0;
    std::size_t contents = 0;
    std::size_t bytes = 0;
    std::size_t predicted = 0;
    std::uint64_t predictions_cut = 0;      // blocks of requests beyond max_predicted_blocks, since the start
    std::uint64_t predictions_evicted = 0;  // blocks that ended for max_predictions, since the start
  };
  Sizes sizes(std::string_view group) const;

 private:
  class Sink;

  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) ASHLAR_REQUIRES(mu_);
  // The log, if there is one, and room for the next input in it.
  RouteLog* ready_log() ASHLAR_REQUIRES(mu_);
  void end_beats(Clock::TimePoint now) ASHLAR_REQUIRES(mu_);
  void degrade(const events::Worker& worker) ASHLAR_REQUIRES(mu_);
  bool is_late(const events::Worker& worker, Clock::TimePoint now) const ASHLAR_REQUIRES(mu_);

  Clock& clock_;
  RouteLog* const log_;
  mutable Mutex mu_;
  std::unique_ptr<RouteCore> core_ ASHLAR_GUARDED_BY(mu_);
  // No choice depends on them, so that no journal has them.
  std::map<events::Worker, std::unique_ptr<DroppedBlocks>> dropped_ ASHLAR_GUARDED_BY(mu_);
  std::vector<events::BlockPresence> before_ ASHLAR_GUARDED_BY(mu_);  // for remove()
  // When the beats of followed workers end, and the first of those ends that was not seen yet, or earlier.
  std::map<events::Worker, Clock::TimePoint> beats_ ASHLAR_GUARDED_BY(mu_);
  Clock::TimePoint next_end_ ASHLAR_GUARDED_BY(mu_) = Clock::TimePoint::max();
  std::unique_ptr<Sink> sink_;
};

}  // namespace ashlar::service
