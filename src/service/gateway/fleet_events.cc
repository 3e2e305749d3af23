// What the fleet hears of its workers' caches: their events, and what another router knew.
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "service/gateway/fleet_member.h"

namespace ashlar::service {

void Fleet::set_snapshot(Snapshot snapshot) {
  std::vector<std::shared_ptr<Member>> settled;
  {
    MutexLock lock(mu_);
    snapshot_ = std::move(snapshot);
    for (const auto& [id, member] : members_)
      if (!member->group.empty()) settled.push_back(member);
  }
  for (const auto& member : settled) expect_snapshot(member);
}

void Fleet::expect_snapshot(const std::shared_ptr<Member>& member) {
  std::vector<HeldPrefix> held;
  {
    MutexLock lock(mu_);
    if (auto found = snapshot_.workers.extract(member->options.name)) held = std::move(found.mapped());
  }
  for (const HeldPrefix& prefix : held)
    router_.expect({.id = member->id, .rank = prefix.rank}, prefix.locals);
}

Result<void> Fleet::follow(const std::shared_ptr<Member>& member, std::uint32_t rank,
                           const EngineEndpoint& endpoint) {
  std::string group;
  std::uint32_t block_size = member->options.block_size;
  {
    MutexLock lock(mu_);
    if (member->followers.contains(rank)) return {};
    group = member->group;
    if (const auto known = block_sizes_.find(group); block_size == 0 && known != block_sizes_.end())
      block_size = known->second;
    member->endpoints[rank] = endpoint.events;
  }
  ASHLAR_DCHECK(!group.empty(), "events of a worker without a group");
  if (!make_source_) return Error(ErrorCode::kUnsupported, "this build has no ZeroMQ to hear events with");
  ASHLAR_TRY(auto source, make_source_(endpoint));
  ASHLAR_TRY(
      std::unique_ptr<EngineFollower> made,
      EngineFollower::create(
          {.worker = {.id = member->id, .rank = rank}, .block_size = block_size}, router_, std::move(source),
          {.on_change =
               [this, group, rank, name = member->options.name](const FollowerStatus& status) {
                 learn_block_size(group, status.block_size);
                 ASHLAR_LOG(LogLevel::kInfo, "serve", "worker %s, rank %u: %s%s%s", name.c_str(), rank,
                            std::string(to_string(status.state)).c_str(), status.reason.empty() ? "" : ": ",
                            printable(status.reason).c_str());
               },
           .on_events = [this] { hesitating_.wake_all(); }}));
  std::shared_ptr<EngineFollower> follower = std::move(made);
  MutexLock lock(mu_);
  if (!member->is_gone) member->followers.emplace(rank, std::move(follower));
  return {};
}

void Fleet::learn_block_size(const std::string& group, std::uint32_t block_size) {
  if (block_size == 0) return;
  MutexLock lock(mu_);
  block_sizes_.try_emplace(group, block_size);
}

void Fleet::expect_event(const events::Worker& worker, const WorkerChanges& before) {
  std::shared_ptr<EngineFollower> follower;
  {
    MutexLock lock(mu_);
    const std::shared_ptr<Member> member = find(worker.id);
    if (member == nullptr) return;
    const auto found = member->followers.find(worker.rank);
    if (found == member->followers.end()) return;
    follower = found->second;
  }
  follower->expect_event(before);
}

std::string Fleet::state_reason(const events::Worker& worker) const {
  MutexLock lock(mu_);
  const std::shared_ptr<Member> member = find(worker.id);
  if (member == nullptr) return "it is gone";
  const auto found = member->followers.find(worker.rank);
  return found == member->followers.end() ? "it has no events" : found->second->status().reason;
}

}  // namespace ashlar::service
