// Workers that are registered through the API, to be asked about.
#include <algorithm>
#include <set>
#include <utility>

#include "ashlar/base/check.h"
#include "service/gateway/fleet_member.h"

namespace ashlar::service {

namespace {

// Each rank of one is a thread with sockets.
constexpr std::ptrdiff_t kMostRegistered = 1024;

}  // namespace

Result<void> Fleet::register_worker(const Registration& registration) {
  if (registration.endpoint.empty() || registration.model.empty() || registration.block_size == 0)
    return Error(ErrorCode::kInvalidArgument,
                 "endpoint, model_name and a block_size above 0 are needed to register a worker");
  const events::WorkerId id(registration.instance);
  const std::string group = group_name(registration.model, registration.routing_group);
  std::shared_ptr<Member> member;
  {
    MutexLock lock(mu_);
    member = find(id);
    const auto known = block_sizes_.find(group);
    if (known != block_sizes_.end() && known->second != registration.block_size)
      return make_error(ErrorCode::kAlreadyExists, "blocks of this model have %u tokens, not %u",
                        known->second, registration.block_size);
    const bool is_new_group = !has_group(group);
    if (!is_new_group && !registration.salt.empty() && known_hashing(group).salt != registration.salt)
      return Error(ErrorCode::kAlreadyExists, "blocks of this model have another salt");
    if (member == nullptr && std::ranges::count_if(members_, [](const auto& entry) {
                               return entry.second->is_registered;
                             }) >= kMostRegistered)
      return make_error(ErrorCode::kCapacity, "%td workers are registered already", kMostRegistered);
    if (!groups_.contains(group) && groups_.size() >= kMostGroups)
      return make_error(ErrorCode::kCapacity,
                        "this router has had %zu groups, which is as many as it keeps until it is restarted; "
                        "register the worker for one of them",
                        kMostGroups);
    if (member != nullptr && !member->is_registered)
      return make_error(ErrorCode::kAlreadyExists, "worker %llu is one of this router's own",
                        static_cast<unsigned long long>(registration.instance));
    if (member != nullptr && member->group != group)
      return make_error(ErrorCode::kAlreadyExists, "worker %llu is registered for another model",
                        static_cast<unsigned long long>(registration.instance));
    if (member != nullptr && member->endpoints.contains(registration.rank))
      return make_error(ErrorCode::kAlreadyExists, "rank %u of worker %llu is registered already%s",
                        registration.rank, static_cast<unsigned long long>(registration.instance),
                        member->leaving.contains(registration.rank) ? ", and leaves; try again" : "");
    if (member == nullptr) {
      member = std::make_shared<Member>();
      member->id = id;
      member->is_registered = true;
      member->options.name = registration.name;
      member->options.block_size = registration.block_size;
      member->routing_group = registration.routing_group;
      member->group = group;
      member->problem = "registered for queries only";
      members_.emplace(id, member);
      if (is_new_group && !registration.salt.empty()) hashings_[group].salt = registration.salt;
    }
    member->ranks = std::max(member->ranks, registration.rank + 1);
    member->endpoints[registration.rank] = registration.endpoint;
  }
  // What most often fails comes before the router hears of the group, which it keeps.
  const EngineEndpoint endpoint{.events = registration.endpoint, .replay = registration.replay, .topic = {}};
  Result<std::unique_ptr<feed::EngineSource>> source = make_source(endpoint);
  if (!source) {
    take_back(member, registration.rank);
    return source.error();
  }
  settle(member);
  const Result<void> followed = follow(member, registration.rank, endpoint, *std::move(source));
  if (!followed) take_back(member, registration.rank);
  return followed;
}

// Nothing stays of a registration whose rank could not be followed.
void Fleet::take_back(const std::shared_ptr<Member>& member, std::uint32_t rank) {
  bool is_empty = false;
  {
    MutexLock lock(mu_);
    if (member->is_gone || member->leaving.contains(rank)) return;
    if (!member->followers.contains(rank)) member->endpoints.erase(rank);
    is_empty = member->endpoints.empty();
    if (is_empty) {
      forget(*member);
    } else {
      member->ranks = member->endpoints.rbegin()->first + 1;
    }
  }
  if (!is_empty) settle(member);
}

// The last rank of a registered worker has gone.
void Fleet::forget(Member& member) {
  ASHLAR_DCHECK(member.endpoints.empty() && member.followers.empty(), "something of it is left");
  member.is_gone = true;
  router_.remove_worker(member.id);
  const std::string group = member.group;
  members_.erase(member.id);
  forget_hashing_of(group);
}

// A worker of the group has gone: what only it said of its blocks does not bind the next one.
void Fleet::forget_hashing_of(const std::string& group) {
  const auto known = block_sizes_.find(group);
  if (!has_group(group)) hashings_.erase(group);
  if (known == block_sizes_.end()) return;
  std::uint32_t heard = 0;
  for (const auto& [id, member] : members_) {
    if (member->group != group) continue;
    if (member->options.block_size == known->second) return;
    for (const auto& [rank, follower] : member->followers) {
      const std::uint32_t size = follower->status().block_size;
      if (size == known->second) return;
      if (size != 0) heard = size;
    }
  }
  block_sizes_.erase(known);
  if (heard != 0) block_sizes_.emplace(group, heard);
  tell_block_size(group);
}

// A rank stays in the fleet until its follower has ended and the router has forgotten its blocks: who
// registers it again before that would lose what it tells.
Result<void> Fleet::unregister_worker(std::uint64_t instance, std::string_view group,
                                      std::optional<std::uint32_t> rank) {
  const events::WorkerId id(instance);
  std::shared_ptr<Member> member;
  std::set<std::uint32_t> leaving;
  std::map<std::uint32_t, std::shared_ptr<EngineFollower>> ended;
  {
    MutexLock lock(mu_);
    member = find(id);
    if (member != nullptr && member->is_registered && member->group == group)
      for (const auto& [of, endpoint] : member->endpoints)
        if ((!rank || of == *rank) && member->leaving.insert(of).second) leaving.insert(of);
    if (leaving.empty())
      return make_error(ErrorCode::kNotFound, "no worker %llu is registered there",
                        static_cast<unsigned long long>(instance));
    for (const std::uint32_t of : leaving)
      if (auto follower = member->followers.extract(of)) ended.insert(std::move(follower));
  }
  ended.clear();
  MutexLock lock(mu_);
  for (const std::uint32_t of : leaving) {
    member->endpoints.erase(of);
    member->leaving.erase(of);
    router_.sink().clear({.id = id, .rank = of});
  }
  if (member->endpoints.empty() && !member->is_gone) forget(*member);
  return {};
}

}  // namespace ashlar::service
