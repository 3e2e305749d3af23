// How the blocks of each model are hashed.
#include <algorithm>
#include <set>
#include <utility>

#include "ashlar/base/log.h"
#include "service/gateway/fleet_member.h"

namespace ashlar::service {

namespace {

using HashingByModel = std::map<std::string, ModelHashing, std::less<>>;

// Of the models whose workers say how. Errors: kInvalidArgument: two differ.
Result<HashingByModel> wanted_hashing(std::span<const WorkerOptions> workers) {
  HashingByModel wanted;
  for (const WorkerOptions& worker : workers) {
    if (worker.scheme.empty() && worker.salt.empty()) continue;
    ModelHashing hashing{.salt = worker.salt};
    if (!worker.scheme.empty()) {
      ASHLAR_TRY(hashing.scheme, tokens::HashScheme::by_name(worker.scheme));
    }
    if (wanted.try_emplace(worker.model, hashing).first->second != hashing)
      return Error(ErrorCode::kInvalidArgument,
                   "workers of the model '" + printable(worker.model) + "' have different schemes or salts");
  }
  return wanted;
}

}  // namespace

Result<void> check_workers(std::span<const WorkerOptions> workers, bool hears_events) {
  std::set<std::string_view> names;
  for (const WorkerOptions& worker : workers) {
    if (!names.insert(worker.name).second)
      return Error(ErrorCode::kInvalidArgument, "two workers are called '" + printable(worker.name) + "'");
    if (worker.events.empty()) continue;
    const std::string which = "worker '" + printable(worker.name) + "'";
    if (!hears_events)
      return Error(ErrorCode::kUnsupported, which + " has events, and this build has no ZeroMQ to hear them");
    for (const std::string* endpoint : {&worker.events, &worker.replay})
      if (const auto last = endpoint_of_rank(*endpoint, endpoint->empty() ? 0 : worker.dp - 1); !last)
        return Error(last.error().code(), which + ": " + last.error().message());
  }
  ASHLAR_RETURN_IF_ERROR(wanted_hashing(workers));
  return {};
}

bool Fleet::has_group(std::string_view group) const {
  return std::ranges::any_of(members_, [&](const auto& entry) { return entry.second->group == group; });
}

ModelHashing Fleet::known_hashing(std::string_view group) const {
  const auto known = hashings_.find(group);
  return known == hashings_.end() ? ModelHashing() : known->second;
}

ModelHashing Fleet::hashing_of(std::string_view group) const {
  MutexLock lock(mu_);
  return known_hashing(group);
}

void Fleet::note_leave(const std::string& group) {
  if (group.empty()) return;
  forget_hashing_of(group);
  // A size that is configured binds, though nobody has reported it.
  for (const auto& [id, member] : members_)
    if (member->group == group && member->options.block_size != 0)
      block_sizes_.try_emplace(group, member->options.block_size);
  tell_block_size(group);
}

// Blocks that are in the index were hashed as they were stored. So the hashing of a model changes only with
// all of its workers.
Result<void> Fleet::set_hashing(std::span<const WorkerOptions> workers) {
  ASHLAR_TRY(HashingByModel wanted, wanted_hashing(workers));
  // A salt of a registration is in no settings, and is not missed there.
  std::set<std::string, std::less<>> configured;
  for (const auto& [id, member] : members_)
    if (!member->options.scheme.empty() || !member->options.salt.empty())
      configured.insert(member->options.model);
  HashingByModel kept;
  for (const auto& [id, member] : members_) {
    if (!member->is_registered && std::ranges::find(workers, member->options) == workers.end()) continue;
    const ModelHashing now = known_hashing(member->group);
    const auto asked = wanted.find(member->group);
    const bool is_taken_out =
        !member->is_registered && asked == wanted.end() && configured.contains(member->group);
    if (is_taken_out || (asked != wanted.end() && asked->second != now))
      return Error(ErrorCode::kInvalidArgument, "the scheme and salt of the model '" +
                                                    printable(member->group) +
                                                    "' cannot change while a worker of it stays");
    if (now != ModelHashing()) kept.try_emplace(member->group, now);
  }
  kept.merge(wanted);
  hashings_ = std::move(kept);
  return {};
}

}  // namespace ashlar::service
