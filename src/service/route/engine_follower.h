// EngineFollower: follows the events of one (worker, rank) into a Router, and says how far they can be
// trusted.
//
//   EXACT      the stream is complete from a known start: its first message, an empty replay, a clear, a
//              restart that was seen
//   DEGRADED   not connected, or nothing is known yet; a replay is running; messages were lost for good and
//              nothing has cleared the engine since; a request was answered and no event of it came
//
// What is lost only ever makes blocks absent (feed/engine_session.h): a worker is never believed to hold what
// it dropped. A connection that was lost and came back without a replay is a loss of everything: the next
// number proves nothing, since a restarted engine may have reached it. Only message 0, or a clear, is a known
// start again.
//
// A loss concerns every tier, and a clear ends it in the tier that was cleared. Tiers that the engine has
// never mentioned since it started do not count.
//
// What another follower of the same engine knew after a message (save()) takes the place of a start that was
// missed, if the engine still keeps that message, or it was heard here, unchanged: the state is then complete
// again, and EXACT.
//
// Thread safety: thread-safe. A thread of its own runs until destruction, which waits for it: up to the
//                timeout of a replay.
#pragma once

#include <atomic>
#include <bitset>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/mutex.h"
#include "ashlar/base/result.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/service/router.h"

namespace ashlar::service {

// Why a worker is not EXACT, as one of few words, for metrics.
enum class StateReason : std::uint8_t {
  kNone,
  kNoEvents,
  kStarting,     // no message yet, and nothing that tells what came before
  kUnreachable,  // its events cannot be had
  kReconnected,  // messages may be missing
  kReplaying,
  kStartMissed,
  kLost,
  kRefused,    // events that cannot be so
  kBlockSize,  // another than that of the model
  kUnread,     // this router is behind
  kLate,       // its events are
};
std::string_view to_string(StateReason reason) noexcept;

struct FollowerStatus {
  WorkerState state = WorkerState::kDegraded;
  StateReason why = StateReason::kStarting;
  std::string reason;            // of a state that is not EXACT
  std::uint32_t block_size = 0;  // tokens; 0: not known yet
  feed::EngineSessionCounters session;
  feed::EngineIngestCounters ingest;
  std::uint64_t present = 0;   // blocks of the engine that were reported
  bool is_incomplete = false;  // something was lost for good, and nothing made up for it yet
  std::uint64_t losses = 0;    // times that messages were
};

// What a snapshot says of one (worker, rank): the state after a message, or why it has none.
using SavedEngine = Result<feed::EngineCheckpoint>;

class EngineFollower {
 public:
  struct Options {
    events::Worker worker;
    std::uint32_t block_size = 0;        // 0: as the engine says; events of others are refused
    std::uint32_t model_block_size = 0;  // as set_model_block_size(); 0: not known yet
    tokens::HashScheme scheme = {};
    tokens::Salt salt = {};  // of blocks whose engine names none
    // Whether a request has asked the engine to announce again what it found; see EngineIngestOptions.
    std::shared_ptr<const std::atomic<bool>> full_reports_asked = {};
    // An answered request whose events do not come within this time degrades the worker.
    Clock::Duration late_after = std::chrono::seconds(2);
    // So does a thread that is kept from reading for longer than this: events may wait, unread.
    Clock::Duration unread_after = std::chrono::seconds(2);
    // Messages, and bytes of them, that are kept while the stream is incomplete, for engines that keep none.
    std::size_t most_kept = 4096;
    std::size_t most_kept_bytes = std::size_t{16} << 20;
  };
  // What is heard on the follower's thread; either may be empty.
  struct Hearers {
    // A new state or block size; status() says the state afterwards.
    std::function<void(const FollowerStatus&)> on_change = {};
    // Messages were applied, or status() says another state now: whoever waits for either looks again.
    std::function<void()> on_news = {};
  };
  // Starts. Errors: kCapacity: no thread; kInvalidArgument: an option.
  static Result<std::unique_ptr<EngineFollower>> create(const Options& options, Router& router,
                                                        std::unique_ptr<feed::EngineSource> source,
                                                        Hearers hearers);
  ~EngineFollower();
  EngineFollower(const EngineFollower&) = delete;
  EngineFollower& operator=(const EngineFollower&) = delete;

  FollowerStatus status() const;
  // Another follower's state, for the case that something is missing here; it replaces an earlier one.
  void offer(SavedEngine saved);
  // What is known after the last message, as soon as the thread has finished its step. Errors: kNotReady: the
  // worker is not EXACT; as EngineSession::save().
  std::future<SavedEngine> save();
  // A request that must have stored blocks was answered; `before` is what had changed at the worker when it
  // was chosen. Unless something was stored since, an event is owed.
  void expect_event(const WorkerChanges& before);
  // Tokens of the blocks that requests are cut into. A worker with others is DEGRADED: nothing that it holds
  // is ever found.
  void set_model_block_size(std::uint32_t block_size) noexcept;
  // An answer said that this many tokens were cached, which is no number of whole blocks: until its next
  // restart, or until the model has another size, the worker is taken for one with blocks of another size.
  void note_odd_answer(std::uint64_t cached_tokens) noexcept;

 private:
  class WatchedSource;

  EngineFollower(const Options& options, Router& router, WatchedSource& watched, feed::EngineSession session,
                 Hearers hearers);
  void run();
  void step();
  // Gives changes_ to the router; `ingested`: before them.
  void apply_changes(const feed::EngineIngestCounters& ingested);
  // What the counters say after a step.
  void judge(const feed::EngineSessionCounters& before, const feed::EngineIngestCounters& ingested_before,
             const Error* failure);
  void lose(StateReason why, std::string reason);
  // Takes an offered state where something is missing. False: none was tried.
  bool try_resume();
  void answer_saves();
  bool is_incomplete() const { return (incomplete_ & tiers_).any(); }
  void set_state(StateReason why, std::string reason);
  // What was said last, whether or not it has become late since.
  bool says_exact() const;

  const Options options_;
  Router& router_;
  WatchedSource& watched_;
  feed::EngineSession session_;
  feed::IndexFeeder feeder_;
  const Hearers hearers_;
  feed::IndexChanges changes_;
  using TierSet = std::bitset<events::kStorageTiers>;
  TierSet incomplete_;       // something was lost there, and nothing has cleared the tier since
  TierSet tiers_{1};         // that the engine has named; the device
  bool is_doubtful_ = true;  // not connected since the last message
  bool is_behind_ = false;   // it did not run for a while, and has not read everything since
  StateReason incomplete_why_ = StateReason::kLost;
  std::string incomplete_reason_;
  std::string offer_reason_;  // why the last state that was offered does not help
  std::uint64_t losses_ = 0;
  std::string size_refusal_;   // of events of another block size since the last restart
  std::uint64_t blind_ = 0;    // reconnects so far
  std::uint64_t refused_ = 0;  // events so far
  // Since when an event is owed, and what had changed then; nullopt: none is.
  struct Owed {
    Clock::TimePoint since;
    WorkerChanges before;
  };
  bool is_late();
  // What is wrong with the size of its blocks; empty: nothing.
  std::string size_complaint() const;
  std::atomic<std::uint32_t> model_block_size_{0};  // 0: not known
  std::atomic<std::uint64_t> odd_answer_{0};        // 0: none
  std::atomic<bool> stops_{false};
  mutable Mutex mu_;
  FollowerStatus status_ ASHLAR_GUARDED_BY(mu_);
  std::optional<Owed> owed_ ASHLAR_GUARDED_BY(mu_);
  std::optional<SavedEngine> offered_ ASHLAR_GUARDED_BY(mu_);
  std::vector<std::promise<SavedEngine>> saves_ ASHLAR_GUARDED_BY(mu_);  // that are waited for
  std::thread thread_;
};

}  // namespace ashlar::service
