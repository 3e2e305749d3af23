#include "service/gateway/fleet.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "service/gateway/fleet_member.h"

namespace ashlar::service {

namespace {

constexpr Clock::Duration kModelsInterval = std::chrono::seconds(30);
// Of questions about health and models.
constexpr Clock::Duration kErrandTimeout = std::chrono::seconds(5);
// A question that was not even answered with an error is asked again.
constexpr Clock::Duration kLostErrand = 6 * kErrandTimeout;
// Group of workers that do not tell what they serve.
constexpr std::string_view kUnnamedGroup = "default";

}  // namespace

Fleet::Fleet(const ServeOptions& options, Router& router, EngineSourceFactory make_source, Clock& clock)
    : options_(options),
      router_(router),
      make_source_(std::move(make_source)),
      clock_(clock),
      hesitating_(options.max_queued) {}

Fleet::~Fleet() {
  std::map<events::WorkerId, std::shared_ptr<Member>> members;
  {
    MutexLock lock(mu_);
    members.swap(members_);
  }
  for (const auto& [id, member] : members) member->followers.clear();
}

std::shared_ptr<Fleet::Member> Fleet::find(events::WorkerId worker) const {
  const auto found = members_.find(worker);
  return found == members_.end() ? nullptr : found->second;
}

events::WorkerId Fleet::free_id() {
  while (members_.contains(events::WorkerId(next_id_))) ++next_id_;
  return events::WorkerId(next_id_++);
}

Result<void> Fleet::set_workers(std::span<const WorkerOptions> workers) {
  ASHLAR_RETURN_IF_ERROR(check_workers(workers, make_source_ != nullptr));
  token_workers_.forget_all();
  std::vector<std::shared_ptr<Member>> gone;
  std::vector<std::shared_ptr<Member>> fresh;
  {
    MutexLock lock(mu_);
    ASHLAR_RETURN_IF_ERROR(set_hashing(workers));
    for (auto at = members_.begin(); at != members_.end();) {
      const Member& member = *at->second;
      const auto same = std::ranges::find(workers, member.options);
      if (member.is_registered || same != workers.end()) {
        if (!member.is_registered) at->second->key = same->key;
        ++at;
        continue;
      }
      at->second->is_gone = true;
      gone.push_back(at->second);
      at = members_.erase(at);
    }
    for (const WorkerOptions& worker : workers) {
      if (std::ranges::any_of(members_, [&](const auto& entry) { return entry.second->options == worker; }))
        continue;
      auto member = std::make_shared<Member>();
      member->id = free_id();
      member->options = worker;
      member->key = worker.key;
      member->group = worker.model;
      member->ranks = worker.dp;
      members_.emplace(member->id, member);
      fresh.push_back(std::move(member));
    }
    for (const auto& member : gone) note_leave(member->group);
  }
  for (const auto& member : gone) {
    router_.remove_worker(member->id);
    std::map<std::uint32_t, std::shared_ptr<EngineFollower>> followers;
    {
      MutexLock lock(mu_);
      followers.swap(member->followers);
    }
  }
  for (const auto& member : fresh) {
    ASHLAR_LOG(LogLevel::kInfo, "serve", "worker %s is %s", member->options.name.c_str(),
               member->options.address.authority().c_str());
    settle(member);
  }
  return {};
}

void Fleet::settle(const std::shared_ptr<Member>& member) {
  WorkerSpec spec;
  bool is_up = false;
  {
    MutexLock lock(mu_);
    if (member->group.empty() || member->is_gone) return;
    spec = {.id = member->id,
            .group = member->group,
            .ranks = member->ranks,
            .max_running = options_.max_running,
            .has_events = !member->options.events.empty() || member->is_registered,
            .is_asked_about = member->is_registered,
            .name = member->options.name};
    is_up = member->is_up;
    groups_.insert(member->group);
    if (const std::uint32_t own = member->options.block_size; own != 0) {
      const auto known = block_sizes_.try_emplace(member->group, own).first;
      if (known->second != own)
        ASHLAR_LOG(LogLevel::kError, "serve",
                   "worker %s has block_size %u, other workers of '%s' %u; configure all alike",
                   member->options.name.c_str(), own, printable(member->group).c_str(), known->second);
      tell_block_size(member->group);
    }
  }
  router_.add_worker(spec);
  router_.set_up(spec.id, is_up);
  {
    MutexLock lock(mu_);
    if (member->is_gone) {  // it left in between
      if (find(spec.id) == nullptr) router_.remove_worker(spec.id);
      return;
    }
  }
  expect_snapshot(member, false);
  if (member->options.events.empty()) return;
  for (std::uint32_t rank = 0; rank < spec.ranks; ++rank) {
    const auto events = endpoint_of_rank(member->options.events, rank);
    const auto replay = member->options.replay.empty() ? Result<std::string>(std::string())
                                                       : endpoint_of_rank(member->options.replay, rank);
    const Result<void> followed =
        !events ? Result<void>(events.error())
        : !replay
            ? Result<void>(replay.error())
            : follow(member, rank, {.events = *events, .replay = *replay, .topic = member->options.topic});
    if (!followed)
      ASHLAR_LOG(LogLevel::kError, "serve", "worker %s: %s", member->options.name.c_str(),
                 followed.error().message().c_str());
  }
}

Result<ResolvedModel> Fleet::resolve(std::string_view model) const {
  MutexLock lock(mu_);
  // Views of names that the lock keeps.
  std::set<std::string_view> groups;
  std::set<std::string_view> served;
  ResolvedModel resolved;
  for (const auto& [id, member] : members_) {
    if (member->is_registered || member->group.empty()) continue;
    for (const ModelEntry& entry : member->models) {
      if (entry.id != model) continue;
      resolved.group = member->group;
      if (entry.is_adapter) resolved.adapter = entry.id;
    }
    if (member->group == model) resolved.group = member->group;
    if (resolved.group.empty()) continue;
    if (resolved.group != model) add_unlisted(model, resolved);
    return with_block_size(std::move(resolved));
  }
  for (const auto& [id, member] : members_) {
    if (member->is_registered || member->group.empty()) continue;
    groups.insert(member->group);
    served.insert(member->group);
    for (const ModelEntry& entry : member->models) served.insert(entry.id);
  }
  if (groups.empty()) return Error(ErrorCode::kUnavailable, "no worker has said yet which model it serves");
  // A request without a model, or workers that do not tell, leave no choice where there is one group.
  if (resolved.group.empty() && groups.size() == 1 && (model.empty() || *groups.begin() == kUnnamedGroup))
    resolved.group = *groups.begin();
  if (resolved.group.empty()) {
    std::string list;
    for (const std::string_view name : served) list += (list.empty() ? "'" : ", '") + std::string(name) + "'";
    return Error(ErrorCode::kNotFound,
                 "the model '" + printable(model) + "' is not served here; there are " + list);
  }
  return with_block_size(std::move(resolved));
}

void Fleet::add_unlisted(std::string_view model, ResolvedModel& resolved) const {
  for (const auto& [id, member] : members_) {
    if (member->is_registered || member->group != resolved.group ||
        std::ranges::find(member->models, model, &ModelEntry::id) != member->models.end())
      continue;
    for (std::uint32_t rank = 0; rank < member->ranks; ++rank)
      resolved.unlisted.push_back({.id = id, .rank = rank});
  }
}

ResolvedModel Fleet::with_block_size(ResolvedModel resolved) const {
  resolved.sizes_then = block_size_changes();
  if (const auto known = block_sizes_.find(resolved.group); known != block_sizes_.end())
    resolved.block_size = known->second;
  resolved.hashing = known_hashing(resolved.group);
  resolved.has_ranks = std::ranges::any_of(members_, [&](const auto& entry) {
    return entry.second->group == resolved.group && entry.second->options.dp > 1;
  });
  return resolved;
}

std::optional<std::uint32_t> Fleet::block_size_of(std::string_view group) const {
  MutexLock lock(mu_);
  if (!has_group(group)) return std::nullopt;
  const auto known = block_sizes_.find(group);
  return known == block_sizes_.end() ? kGuessedBlockSize : known->second;
}

std::optional<RouteTarget> Fleet::target(const events::Worker& worker) const {
  MutexLock lock(mu_);
  const std::shared_ptr<Member> member = find(worker.id);
  if (member == nullptr || member->is_registered) return std::nullopt;
  return RouteTarget{
      .name = member->options.name, .address = member->options.address, .has_ranks = member->options.dp > 1};
}

Result<QuestionTarget> Fleet::target_for_question(const ResolvedModel& model,
                                                  std::span<const std::string_view> targets,
                                                  std::span<const events::WorkerId> left_out) const {
  const Clock::TimePoint now = clock_.now();
  const std::vector<WorkerLoad> loads = router_.loads();
  for (const std::string_view target : targets) {
    const WorkerLoad* best = nullptr;
    for (const WorkerLoad& load : loads)
      if (load.group == model.group && load.is_up &&
          std::ranges::find(model.unlisted, load.worker) == model.unlisted.end() &&
          std::ranges::find(left_out, load.worker.id) == left_out.end() &&
          (best == nullptr || load.requests < best->requests) &&
          token_workers_.may_ask(load.worker.id, target, now))
        best = &load;
    MutexLock lock(mu_);
    const std::shared_ptr<Member> member = best != nullptr ? find(best->worker.id) : nullptr;
    if (member != nullptr && !member->is_registered)
      return QuestionTarget{.worker = member->id,
                            .address = member->options.address,
                            .target = target,
                            .authorization = authorization_of(*member)};
  }
  return Error(ErrorCode::kUnavailable, "no worker can be asked now");
}

void Fleet::update_up(Member& member, bool is_up, std::string problem) {
  if (member.is_up != is_up)
    ASHLAR_LOG(is_up ? LogLevel::kInfo : LogLevel::kWarn, "serve", "worker %s is %s%s%s",
               member.options.name.c_str(), is_up ? "up" : "down", problem.empty() ? "" : ": ",
               problem.c_str());
  member.is_up = is_up;
  member.problem = std::move(problem);
}

void Fleet::note(events::WorkerId worker, bool is_failure, std::string_view detail) {
  bool went_down = false;
  {
    MutexLock lock(mu_);
    const std::shared_ptr<Member> member = find(worker);
    if (member == nullptr) return;
    if (!is_failure) {
      member->failures = 0;
      member->unanswered = 0;
      return;
    }
    ++member->failures;
    went_down = goes_down(*member, detail);
  }
  if (went_down) router_.set_up(worker, false);
}

void Fleet::note_unreachable(events::WorkerId worker, std::string_view detail) {
  bool went_down = false;
  {
    MutexLock lock(mu_);
    const std::shared_ptr<Member> member = find(worker);
    if (member == nullptr) return;
    ++member->unanswered;
    went_down = goes_down(*member, detail);
  }
  if (went_down) router_.set_up(worker, false);
}

bool Fleet::goes_down(Member& member, std::string_view detail) {
  const std::uint32_t failures = member.failures + member.unanswered;
  if (failures < options_.breaker_failures || !member.is_up) return false;
  member.rests_until = clock_.now() + options_.breaker_rest;
  member.health_at = member.rests_until;
  update_up(member, false, std::to_string(failures) + " failures in a row, the last: " + std::string(detail));
  return true;
}

std::string Fleet::authorization_of(const Member& member) const {
  return member.key.text.empty() ? std::string() : "Bearer " + member.key.text;
}

Errand Fleet::errand(const Member& member, bool is_health, std::string target) {
  asked_[next_errand_] = {.worker = member.id, .is_health = is_health};
  Errand made;
  made.number = next_errand_++;
  made.ask.address = member.options.address;
  made.ask.method = "GET";
  made.ask.target = std::move(target);
  made.ask.timeout = kErrandTimeout;
  made.ask.max_bytes = std::size_t{4} << 20;
  if (std::string authorization = authorization_of(member); !authorization.empty())
    made.ask.headers.emplace_back("Authorization", std::move(authorization));
  return made;
}

Gateway::Due Fleet::due() {
  Gateway::Due due;
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.now();
  for (const auto& [id, member] : members_) {
    if (member->is_registered) continue;
    if (now >= member->health_at) {
      member->health_at = now + kLostErrand;
      due.errands.push_back(errand(*member, true, "/health"));
    }
    if (member->is_up && now >= member->models_at) {
      member->models_at = now + kLostErrand;
      due.errands.push_back(errand(*member, false, "/v1/models"));
    }
  }
  return due;
}

void Fleet::told(std::uint64_t number, Result<Answer> answer) {
  std::shared_ptr<Member> member;
  bool is_health = false;
  bool is_up = false;
  bool came_back = false;
  bool went_down = false;
  {
    MutexLock lock(mu_);
    const auto asked = asked_.find(number);
    if (asked == asked_.end()) return;
    member = find(asked->second.worker);
    is_health = asked->second.is_health;
    asked_.erase(asked);
    if (member == nullptr) return;
    const Clock::TimePoint now = clock_.now();
    // Not asked, for want of something here: that says nothing about the worker.
    if (!answer && answer.error().code() == ErrorCode::kIo) {
      (is_health ? member->health_at : member->models_at) = now + options_.health_interval;
      return;
    }
    if (is_health) {
      member->health_at = now + options_.health_interval;
      is_up = answer && answer->status == 200;
      if (is_up && now < member->rests_until) return;
      if (is_up) member->unanswered = 0;
      // One that does not answer once may only be busy.
      if (!answer && member->is_up) {
        ++member->unanswered;
        // Nobody listens: between two answers it may be another engine, however short that was.
        member->may_be_another |= answer.error().code() == ErrorCode::kUnavailable;
        if (!goes_down(*member, "its /health cannot be reached: " + answer.error().message())) return;
        went_down = true;
        // It comes back as soon as it answers.
        member->rests_until = {};
        member->health_at = now + options_.health_interval;
      }
      if (is_up && (!member->is_up || member->may_be_another)) {
        member->may_be_another = false;
        member->failures = 0;
        member->models_at = now;  // it may be another engine now
        token_workers_.forget(member->id);
        came_back = true;
      }
      if (!went_down)
        update_up(*member, is_up,
                  is_up    ? std::string()
                  : answer ? "its /health answers " + std::to_string(answer->status)
                           : "its /health cannot be reached: " + answer.error().message());
    } else {
      member->models_at =
          now + (answer && answer->status == 200 ? kModelsInterval : options_.health_interval);
    }
  }
  ASHLAR_DCHECK(!came_back || is_up, "a worker comes back by answering that it is well");
  ASHLAR_DCHECK(!went_down || !is_up, "a worker goes down by not answering");
  if (is_health) {
    // Without events nobody else says that it lost what it held.
    if (came_back && member->options.events.empty())
      for (std::uint32_t rank = 0; rank < member->options.dp; ++rank)
        router_.sink().clear({.id = member->id, .rank = rank});
    router_.set_up(member->id, is_up);
  } else if (answer) {
    take_models(member, *answer);
  }
}

void Fleet::take_models(const std::shared_ptr<Member>& member, const Answer& answer) {
  auto entries = answer.status == 200
                     ? read_models(answer.body)
                     : Result<std::vector<ModelEntry>>(
                           make_error(ErrorCode::kNotFound, "its /v1/models answers %u", answer.status));
  std::map<std::uint32_t, std::shared_ptr<EngineFollower>> ended;
  {
    MutexLock lock(mu_);
    if (!entries)
      ASHLAR_LOG(LogLevel::kWarn, "serve", "worker %s: %s", member->options.name.c_str(),
                 entries.error().message().c_str());
    if (entries) member->models = *std::move(entries);
    if (!member->options.model.empty()) return;
    const auto base =
        std::ranges::find_if(member->models, [](const ModelEntry& entry) { return !entry.is_adapter; });
    std::string group = member->group;
    if (base != member->models.end()) {
      group = base->id;  // it may serve another one after a restart
    } else if (answer.status == 404) {
      group = kUnnamedGroup;  // an engine without this endpoint
    } else if (group.empty()) {
      member->problem = "its /v1/models answers " + std::to_string(answer.status) +
                        "; name its model with model= if it does not tell";
    }
    if (group == member->group) return;
    // They hash as the old model does, and what they have reported goes with it.
    ended.swap(member->followers);
    member->endpoints.clear();
    member->group.swap(group);
    note_leave(group);
  }
  ended.clear();
  settle(member);
}

WorkerPlace Fleet::place_of(events::WorkerId worker) const {
  MutexLock lock(mu_);
  const std::shared_ptr<Member> member = find(worker);
  if (member == nullptr) return {};
  return {.name = member->options.name,
          .address = member->is_registered ? std::string() : member->options.address.authority()};
}

std::string Fleet::group_of(events::WorkerId worker) const {
  MutexLock lock(mu_);
  const std::shared_ptr<Member> member = find(worker);
  return member == nullptr ? std::string() : member->group;
}

std::vector<MemberStatus> Fleet::status() const {
  std::vector<MemberStatus> all;
  MutexLock lock(mu_);
  for (const auto& [id, member] : members_) {
    if (member->is_registered && member->leaving.size() == member->endpoints.size()) continue;  // it leaves
    MemberStatus status{.id = id,
                        .name = member->options.name,
                        .group = member->group,
                        .routing_group = member->routing_group,
                        .address = member->options.address,
                        .is_registered = member->is_registered,
                        .is_up = member->is_up,
                        .problem = member->problem,
                        .models = {},
                        .ranks = {},
                        .tier_sizes = {member->options.g1, member->options.g2, member->options.g3}};
    for (const ModelEntry& entry : member->models) status.models.push_back(entry.id);
    for (std::uint32_t rank = 0; rank < member->ranks; ++rank) {
      RankStatus of_rank{.rank = rank, .endpoint = {}, .follower = {}};
      of_rank.follower.state = WorkerState::kFallback;
      of_rank.follower.why = StateReason::kNoEvents;
      of_rank.follower.reason = "it has no events";
      if (const auto endpoint = member->endpoints.find(rank); endpoint != member->endpoints.end())
        of_rank.endpoint = endpoint->second;
      if (const auto follower = member->followers.find(rank); follower != member->followers.end())
        of_rank.follower = follower->second->status();
      status.ranks.push_back(std::move(of_rank));
    }
    all.push_back(std::move(status));
  }
  return all;
}

std::vector<std::string> Fleet::model_entries() const {
  MutexLock lock(mu_);
  std::set<std::string> seen;
  std::vector<std::string> entries;
  for (const auto& [id, member] : members_)
    for (const ModelEntry& entry : member->models)
      if (seen.insert(entry.id).second) entries.push_back(entry.json);
  return entries;
}

std::optional<std::string> Fleet::model_entry(std::string_view id) const {
  MutexLock lock(mu_);
  for (const auto& [worker, member] : members_)
    for (const ModelEntry& entry : member->models)
      if (entry.id == id) return entry.json;
  return std::nullopt;
}

bool Fleet::is_ready() const {
  MutexLock lock(mu_);
  return std::ranges::any_of(
      members_, [](const auto& entry) { return entry.second->is_up && !entry.second->group.empty(); });
}

}  // namespace ashlar::service
