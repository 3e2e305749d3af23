// What the fleet hears of its workers' caches: their events, and what another router knew.
#include <chrono>
#include <future>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "service/gateway/fleet_member.h"

namespace ashlar::service {

namespace {

// Kept where a snapshot may be joined to them.
constexpr std::size_t kMostKeptMessages = 4096;
// A follower that repairs a gap answers later than others.
constexpr std::chrono::seconds kLongestSave{2};

}  // namespace

void Fleet::set_snapshot(Snapshot snapshot) {
  std::vector<std::shared_ptr<Member>> settled;
  bool is_again = false;
  {
    MutexLock lock(mu_);
    std::swap(snapshot_, snapshot);  // the old one ends without the lock
    is_again = std::exchange(has_snapshot_, true);
    for (const auto& [id, member] : members_)
      if (!member->group.empty()) settled.push_back(member);
  }
  for (const auto& member : settled) expect_snapshot(member, is_again);
}

bool Fleet::wants_snapshot() {
  // A worker that loses events again and again must not ask for a whole dump each time: what was expected
  // before the loss still is.
  const Clock::Duration pause = options_.fallback_ttl / 4;
  MutexLock lock(mu_);
  bool is_incomplete = false;
  std::uint64_t losses = 0;
  for (const auto& [id, member] : members_)
    for (const auto& [rank, follower] : member->followers) {
      const FollowerStatus status = follower->status();
      is_incomplete |= status.is_incomplete;
      losses += status.losses;
    }
  const Clock::TimePoint now = clock_.now();
  if (!is_incomplete || (wanted_at_ != Clock::TimePoint{} && now < wanted_at_ + pause)) return false;
  if (losses == answered_losses_ && now < wanted_at_ + options_.fallback_ttl) return false;
  answered_losses_ = losses;
  wanted_at_ = now;
  return true;
}

std::map<events::WorkerId, SavedRanks> Fleet::save() {
  std::map<events::WorkerId, std::map<std::uint32_t, std::shared_ptr<EngineFollower>>> followers;
  {
    MutexLock lock(mu_);
    for (const auto& [id, member] : members_) followers[id] = member->followers;
  }
  // All at once: each answers when its step is over.
  std::map<events::WorkerId, std::map<std::uint32_t, std::future<SavedEngine>>> asked;
  for (const auto& [id, ranks] : followers)
    for (const auto& [rank, follower] : ranks) asked[id].emplace(rank, follower->save());
  const auto last = std::chrono::steady_clock::now() + kLongestSave;
  std::map<events::WorkerId, SavedRanks> saved;
  for (auto& [id, ranks] : asked)
    for (auto& [rank, answer] : ranks)
      saved[id].emplace(rank,
                        answer.wait_until(last) == std::future_status::ready
                            ? answer.get()
                            : SavedEngine(Error(ErrorCode::kTimeout, "its events were being replayed")));
  return saved;
}

// The first snapshot says something of every rank that does not tell everything itself, a later one only of
// those that have lost events: what others were expected to hold then is not made to last.
void Fleet::expect_snapshot(const std::shared_ptr<Member>& member, bool is_again) {
  std::vector<HeldPrefix> held;
  std::vector<bool> is_expected;  // by rank
  {
    MutexLock lock(mu_);
    if (auto found = snapshot_.workers.extract(member->options.name)) held = std::move(found.mapped());
    auto saved = snapshot_.saved.extract(member->options.name);
    is_expected.resize(member->ranks, !is_again);
    for (const auto& [rank, follower] : member->followers) {
      const FollowerStatus status = follower->status();
      if (rank < is_expected.size())
        is_expected[rank] = is_again ? status.is_incomplete : status.state != WorkerState::kExact;
    }
    for (std::uint32_t rank = 0; saved && rank < is_expected.size(); ++rank) {
      if (!is_expected[rank]) continue;
      const auto found = saved.mapped().find(rank);
      SavedEngine state =
          found != saved.mapped().end()
              ? std::move(found->second)
              : SavedEngine(Error(ErrorCode::kNotFound, "it does not say at which message it was taken"));
      if (const auto follower = member->followers.find(rank); follower != member->followers.end())
        follower->second->offer(std::move(state));
      else
        member->offers.insert_or_assign(rank, std::move(state));
    }
  }
  for (const HeldPrefix& prefix : held)
    if (prefix.rank < is_expected.size() && is_expected[prefix.rank])
      router_.expect({.id = member->id, .rank = prefix.rank}, prefix.locals);
}

Result<std::unique_ptr<feed::EngineSource>> Fleet::make_source(const EngineEndpoint& endpoint) const {
  if (!make_source_) return Error(ErrorCode::kUnsupported, "this build has no ZeroMQ to hear events with");
  return make_source_(endpoint);
}

Result<void> Fleet::follow(const std::shared_ptr<Member>& member, std::uint32_t rank,
                           const EngineEndpoint& endpoint, std::unique_ptr<feed::EngineSource> source) {
  std::string group;
  {
    MutexLock lock(mu_);
    if (member->followers.contains(rank)) return {};
    group = member->group;
  }
  Result<std::unique_ptr<EngineFollower>> made = make_follower(member, rank, endpoint, std::move(source));
  std::shared_ptr<EngineFollower> follower;  // one that is not kept ends after the lock
  if (made) follower = *std::move(made);
  if (!made) return made.error();
  MutexLock lock(mu_);
  if (member->is_gone || member->leaving.contains(rank) || member->group != group) return {};
  member->endpoints[rank] = endpoint.events;
  if (auto offer = member->offers.extract(rank)) follower->offer(std::move(offer.mapped()));
  member->followers.try_emplace(rank, std::move(follower));
  tell_block_size(member->group);  // it may have been learned meanwhile
  return {};
}

Result<std::unique_ptr<EngineFollower>> Fleet::make_follower(const std::shared_ptr<Member>& member,
                                                             std::uint32_t rank,
                                                             const EngineEndpoint& endpoint,
                                                             std::unique_ptr<feed::EngineSource> source) {
  EngineFollower::Options options{.worker = {.id = member->id, .rank = rank},
                                  .block_size = member->options.block_size,
                                  .full_reports_asked = full_reports_asked_,
                                  .late_after = options_.late_after,
                                  .unread_after = options_.late_after,
                                  .most_kept = options_.snapshot.empty() ? 0 : kMostKeptMessages};
  std::string group;
  {
    MutexLock lock(mu_);
    group = member->group;
    const ModelHashing hashing = known_hashing(group);
    options.scheme = hashing.scheme;
    options.salt = tokens::Salt({}, hashing.salt);
    if (const auto known = block_sizes_.find(group); known != block_sizes_.end())
      options.model_block_size = known->second;
  }
  ASHLAR_DCHECK(!group.empty(), "events of a worker without a group");
  if (source == nullptr) {
    ASHLAR_TRY(source, make_source(endpoint));
  }
  const auto on_change = [this, group, rank, id = member->id,
                          name = member->options.name](const FollowerStatus& status) {
    learn_block_size(group, {.id = id, .rank = rank}, status.block_size);
    ASHLAR_LOG(LogLevel::kInfo, "serve", "worker %s, rank %u: %s%s%s", name.c_str(), rank,
               std::string(to_string(status.state)).c_str(), status.reason.empty() ? "" : ": ",
               printable(status.reason).c_str());
  };
  return EngineFollower::create(options, router_, std::move(source),
                                {.on_change = on_change, .on_news = [this] { hesitating_.wake_all(); }});
}

// The first size that is configured or heard is the model's. An engine that was restarted with another one
// changes it, if no worker has the old one any more.
void Fleet::learn_block_size(const std::string& group, const events::Worker& worker,
                             std::uint32_t block_size) {
  if (block_size == 0) return;
  MutexLock lock(mu_);
  const std::shared_ptr<Member> teller = find(worker.id);
  if (teller == nullptr || teller->group != group) return;  // it has gone, and its follower ends
  const auto [known, is_new] = block_sizes_.try_emplace(group, block_size);
  if (!is_new && known->second == block_size) return;
  if (!is_new) {
    for (const auto& [id, member] : members_) {
      if (member->group != group) continue;
      if (member->options.block_size == known->second) return;
      for (const auto& [rank, follower] : member->followers)
        if (events::Worker{.id = id, .rank = rank} != worker &&
            follower->status().block_size == known->second)
          return;
    }
    known->second = block_size;
  }
  tell_block_size(group);
}

void Fleet::tell_block_size(std::string_view group) {
  // release: pairs with block_size_changes().
  block_size_changes_.fetch_add(1, std::memory_order_release);
  const auto known = block_sizes_.find(group);
  if (known == block_sizes_.end()) return;
  for (const auto& [id, member] : members_) {
    if (member->group != group) continue;
    for (const auto& [rank, follower] : member->followers) follower->set_model_block_size(known->second);
  }
}

void Fleet::check_answer(const events::Worker& worker, std::uint64_t cached_tokens,
                         std::uint64_t prompt_tokens) {
  MutexLock lock(mu_);
  const std::shared_ptr<Member> member = find(worker.id);
  if (member == nullptr) return;
  const auto follower = member->followers.find(worker.rank);
  const auto size = block_sizes_.find(member->group);
  if (follower == member->followers.end() || size == block_sizes_.end()) return;
  // Some report all but the last token, which they compute.
  if (cached_tokens % size->second == 0 || cached_tokens + 1 == prompt_tokens) return;
  follower->second->note_odd_answer(cached_tokens);
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
