// RouteCore: the deterministic part of Router: no lock, no clock, no thread. Equal calls give equal answers.
//
// A group has one index of what its workers report and two of what earlier choices lead to: predictions for
// workers with events bridge the delay of those events and end soon; those for workers without events last
// longer.
//
// Thread safety: thread-compatible.
// Complexity:    choose() is O(ranks of the group + depth / 8); everything else O(log workers) beside the
//                index.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ashlar/index/approximate_index.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/service/router.h"
#include "service/route/route_checkpoint.h"

namespace ashlar::service {

class RouteCore {
 public:
  // `explains_misses`: decisions tell why blocks were not found.
  explicit RouteCore(const RouterOptions& options, bool explains_misses = true);
  ~RouteCore();

  void add_worker(const WorkerSpec& spec);
  void remove_worker(events::WorkerId worker);
  bool set_state(const events::Worker& worker, WorkerState state);  // false: no change
  bool set_up(events::WorkerId worker, bool is_up);                 // false: no change

  void expect(const events::Worker& worker, std::span<const tokens::LocalHash> locals, Clock::TimePoint now);
  // Ends at most `limit` predictions whose time is over, and returns how many. choose() ends all of them
  // first, so that no choice depends on this.
  std::size_t end_predictions(Clock::TimePoint now, std::size_t limit);

  // Nothing: no such rank.
  std::optional<WorkerState> state(const events::Worker& worker) const;
  bool knows(events::WorkerId worker) const { return workers_.contains(worker); }
  events::StoreVerdict store(const events::BlocksStored& event);
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names);
  void clear(const events::Worker& worker);
  bool presence(const events::Worker& worker, std::span<const events::BlockName> names,
                std::span<events::BlockPresence> out) const;
  bool list(const events::Worker& worker, std::vector<events::BlockPresence>& out) const;
  bool holds_nothing(const events::Worker& worker) const;

  // `identity`: the locals, or other numbers that are equal wherever they are. What is remembered of a prompt
  // beside its blocks is remembered by them.
  Result<Decision> choose(const RouteRequest& request, Clock::TimePoint now,
                          std::span<const tokens::LocalHash> identity);
  Result<Decision> choose(const RouteRequest& request, Clock::TimePoint now) {
    return choose(request, now, request.locals);
  }
  void first_byte(DecisionId decision);
  void release(DecisionId decision);

  std::vector<Candidate> look_up(std::string_view group, std::span<const tokens::LocalHash> locals) const;
  std::vector<WorkerLoad> loads() const;
  WorkerChanges changes(const events::Worker& worker) const;
  bool is_running(DecisionId decision) const { return running_.contains(decision.value()); }
  std::size_t running() const noexcept { return running_.size(); }
  std::uint64_t next_decision() const noexcept { return next_decision_; }
  // What the workers of a group report; null: no such group. Thread-safe by itself, and never destroyed
  // before the core.
  const index::FlashIndex* reported(std::string_view group) const;
  std::size_t predicted(std::string_view group) const;
  // Blocks that were not predicted, or no longer, for the limits: of one request, of all.
  std::pair<std::uint64_t, std::uint64_t> left_out(std::string_view group) const;

  RouteCheckpoint save() const;
  // Into a core that has heard nothing else: the state without its groups, then each group, then its blocks.
  // False: the group is not known, or the index refuses.
  void load(const RouteCheckpoint& state);
  void load(const RouteCheckpoint::GroupPart& group);
  bool load_store(std::string_view group, const events::BlocksStored& event);
  bool load_removal(std::string_view group, const events::Worker& worker, events::StorageTier tier,
                    std::span<const events::BlockName> names);

 private:
  // Follows the times of the calls.
  class CallClock;
  struct Group;
  using Rank = RouteCheckpoint::RankPart;
  struct WorkerRecord {
    WorkerSpec spec;
    Group* group = nullptr;
    bool is_up = true;
    std::vector<Rank> ranks;
  };
  struct Reservation {
    events::Worker worker;
    std::uint64_t rank_number = 0;
    std::uint64_t prefill_tokens = 0;  // 0 after the first byte
    std::uint64_t decode_blocks = 0;
  };
  // An expectation.
  struct PutOff {
    index::ApproximateIndex<index::FlashIndex>* predictions = nullptr;  // null: none
    events::Worker worker;
    std::vector<tokens::LocalHash> locals;
  };
  struct Session {
    events::Worker worker;
    std::list<std::uint64_t>::iterator use;
  };

  Group& group_of(std::string_view name);
  Rank* rank_of(const events::Worker& worker);
  // The rank that still carries the reservation's load.
  Rank* rank_of(const Reservation& reservation);
  void fill_candidates(const Group& group, const RouteRequest& request, Decision& decision) const;
  void add_costs(const RouteRequest& request, Candidate& candidate) const;
  Result<std::size_t> pick(Group& group, const RouteRequest& request, Decision& decision) const;
  // Expects what was put off. Before anything else that reads or changes expectations, or moves the clock:
  // so it is as if nothing was put off.
  void settle() const;
  // Expects the blocks of a prompt at the worker that was chosen for it: put off until its first byte, since
  // this takes longer than the choice and its request need not wait for it.
  void expect(Group& group, bool has_events, const events::Worker& worker,
              std::span<const tokens::LocalHash> locals, std::span<const tokens::LocalHash> identity,
              Clock::TimePoint now);
  void explain_misses(Group& group, const RouteRequest& request, std::span<const tokens::LocalHash> identity,
                      Decision& decision);
  // Where the blocks of a store in a slower tier come from, into sources_.
  void find_sources(const Group& group, const events::BlocksStored& event);
  void remember_session(std::uint64_t session, const events::Worker& worker);

  const RouterOptions options_;
  const bool explains_misses_;
  std::unique_ptr<CallClock> clock_;
  std::map<std::string, std::unique_ptr<Group>, std::less<>> groups_;
  std::map<events::WorkerId, WorkerRecord> workers_;
  std::unordered_map<std::uint64_t, Reservation> running_;  // by decision
  std::unordered_map<std::uint64_t, Session> sessions_;
  std::list<std::uint64_t> session_uses_;  // the oldest first
  std::uint64_t next_decision_ = 1;
  std::uint64_t next_rank_ = 1;
  mutable PutOff put_off_;
  mutable index::MatchScores reported_scores_;
  mutable index::MatchScores predicted_scores_;
  std::vector<events::BlockName> names_;  // for find_sources()
  std::vector<events::BlockPresence> presence_;
  std::array<std::uint64_t, events::kStorageTiers> sources_{};  // blocks
  std::vector<index::BlockPlace> places_;                       // for explain_misses(),
  std::vector<std::uint64_t> missing_;                          // names
};

}  // namespace ashlar::service
