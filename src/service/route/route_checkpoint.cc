#include "service/route/route_checkpoint.h"

#include <utility>

#include "service/route/route_group.h"

namespace ashlar::service {

RouteCheckpoint RouteCore::save() const {
  settle();
  RouteCheckpoint state;
  state.now = clock_->now();
  state.next_decision = next_decision_;
  state.next_rank = next_rank_;
  for (const auto& [id, record] : workers_)
    state.workers.push_back({.spec = record.spec, .is_up = record.is_up, .ranks = record.ranks});
  for (const auto& [decision, reservation] : running_)
    state.running.push_back({.decision = DecisionId(decision),
                             .worker = reservation.worker,
                             .rank_number = reservation.rank_number,
                             .prefill_tokens = reservation.prefill_tokens,
                             .decode_blocks = reservation.decode_blocks});
  for (const std::uint64_t session : session_uses_)
    state.sessions.push_back({.session = session, .worker = sessions_.at(session).worker});
  for (const auto& [name, group] : groups_)
    state.groups.push_back({.name = name,
                            .turn = group->turn,
                            .expected = {group->expected.begin(), group->expected.end()},
                            .soon = group->soon.predictions(),
                            .lasting = group->lasting.predictions()});
  return state;
}

void RouteCore::load(const RouteCheckpoint& state) {
  settle();
  clock_->set(state.now);
  next_decision_ = state.next_decision;
  next_rank_ = state.next_rank;
  for (const RouteCheckpoint::WorkerPart& part : state.workers) {
    WorkerRecord& record = workers_[part.spec.id];
    record.spec = part.spec;
    record.group = &group_of(part.spec.group);
    record.is_up = part.is_up;
    record.ranks = part.ranks;
  }
  for (const RouteCheckpoint::RunningPart& part : state.running)
    running_.emplace(part.decision.value(), Reservation{.worker = part.worker,
                                                        .rank_number = part.rank_number,
                                                        .prefill_tokens = part.prefill_tokens,
                                                        .decode_blocks = part.decode_blocks});
  for (const RouteCheckpoint::SessionPart& part : state.sessions) remember_session(part.session, part.worker);
}

void RouteCore::load(const RouteCheckpoint::GroupPart& part) {
  Group& group = group_of(part.name);
  group.turn = part.turn;
  group.expected.insert(part.expected.begin(), part.expected.end());
  group.soon.restore(part.soon);
  group.lasting.restore(part.lasting);
}

bool RouteCore::load_store(std::string_view group, const events::BlocksStored& event) {
  const auto found = groups_.find(group);
  return found != groups_.end() && found->second->reported.store(event) == events::StoreVerdict::kApplied;
}

bool RouteCore::load_removal(std::string_view group, const events::Worker& worker, events::StorageTier tier,
                             std::span<const events::BlockName> names) {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return false;
  found->second->reported.remove(worker, tier, names);
  return true;
}

}  // namespace ashlar::service
