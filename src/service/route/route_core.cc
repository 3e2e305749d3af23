#include "service/route/route_core.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <unordered_map>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "service/route/route_group.h"

namespace ashlar::service {

using events::Worker;
using events::WorkerId;
using index::ApproximateIndex;
using index::FlashIndex;
using tokens::LocalHash;

namespace {

constexpr std::int64_t kThousand = 1000;
// What an engine finds of a prompt: whole blocks, never the last token, which it must compute.
std::uint64_t usable_tokens(std::uint64_t blocks, std::uint64_t prompt_tokens, std::uint32_t block_size) {
  if (prompt_tokens == 0) return 0;
  return std::min(blocks, (prompt_tokens - 1) / block_size) * block_size;
}

std::uint64_t claim_of(const Candidate& candidate, const RouteRequest& request) {
  if (request.is_estimate) return 0;
  const std::uint32_t blocks =
      candidate.state == WorkerState::kFallback ? candidate.predicted : candidate.depth;
  return usable_tokens(blocks, request.prompt_tokens, request.block_size);
}

// The order of candidates of equal cost: fewer requests, then fewer choices so far, then the lower number.
// The last is the order in which they are listed.
bool comes_before(const Candidate& a, std::uint64_t a_chosen, const Candidate& b, std::uint64_t b_chosen) {
  if (a.cost != b.cost) return a.cost < b.cost;
  if (a.requests != b.requests) return a.requests < b.requests;
  return a_chosen < b_chosen;
}

}  // namespace

Result<void> RouterOptions::validate() const {
  for (const Clock::Duration ttl : {prediction_ttl, fallback_ttl})
    if (ttl <= Clock::Duration::zero() || ttl > index::ApproximateOptions::kMaxTtl)
      return make_error(ErrorCode::kInvalidArgument,
                        "predictions last longer than nothing and at most a year, not %lld ns",
                        static_cast<long long>(ttl.count()));
  if (max_sessions == 0)
    return Error(ErrorCode::kInvalidArgument, "max_sessions is 0; at least one session is remembered");
  if (max_predicted_blocks > max_predictions)
    return make_error(
        ErrorCode::kInvalidArgument,
        "max_predicted_blocks is %zu, of one request, and max_predictions %zu, of all: it should "
        "not be smaller",
        max_predicted_blocks, max_predictions);
  return {};
}

std::string_view to_string(Exclusion exclusion) noexcept {
  switch (exclusion) {
    case Exclusion::kNone:
      return "none";
    case Exclusion::kDown:
      return "down";
    case Exclusion::kFull:
      return "full";
    case Exclusion::kTried:
      return "tried";
    case Exclusion::kOtherRank:
      return "other_rank";
    case Exclusion::kOtherModel:
      return "other_model";
    case Exclusion::kNotHome:
      return "not_home";
  }
  return "unknown";
}

std::string_view to_string(MissReason reason) noexcept {
  switch (reason) {
    case MissReason::kNeverSeen:
      return "never_seen";
    case MissReason::kEvicted:
      return "evicted";
    case MissReason::kElsewhere:
      return "elsewhere";
    case MissReason::kBrokenPrefix:
      return "broken_prefix";
  }
  return "unknown";
}

RouteCore::RouteCore(const RouterOptions& options, bool explains_misses)
    : options_(options), explains_misses_(explains_misses), clock_(std::make_unique<CallClock>()) {}

RouteCore::~RouteCore() = default;

RouteCore::Group& RouteCore::group_of(std::string_view name) {
  auto found = groups_.find(name);
  if (found == groups_.end())
    found = groups_.emplace(std::string(name), std::make_unique<Group>(options_, *clock_)).first;
  return *found->second;
}

RouteCore::Rank* RouteCore::rank_of(const Worker& worker) {
  const auto found = workers_.find(worker.id);
  if (found == workers_.end() || worker.rank >= found->second.ranks.size()) return nullptr;
  return &found->second.ranks[worker.rank];
}

RouteCore::Rank* RouteCore::rank_of(const Reservation& reservation) {
  Rank* rank = rank_of(reservation.worker);
  return rank != nullptr && rank->number == reservation.rank_number ? rank : nullptr;
}

void RouteCore::add_worker(const WorkerSpec& spec) {
  ASHLAR_CHECK(spec.ranks > 0, "a worker has at least one rank");
  Group& group = group_of(spec.group);
  auto [record, is_new] = workers_.try_emplace(spec.id);
  if (!is_new && record->second.group != &group) {
    remove_worker(spec.id);
    record = workers_.try_emplace(spec.id).first;
  }
  record->second.spec = spec;
  record->second.group = &group;
  record->second.ranks.resize(spec.ranks);
  for (Rank& rank : record->second.ranks)
    if (rank.number == 0) rank.number = next_rank_++;
}

void RouteCore::remove_worker(WorkerId worker) {
  settle();
  const auto found = workers_.find(worker);
  if (found == workers_.end()) return;
  found->second.group->reported.remove_worker(worker);
  found->second.group->soon.remove_worker(worker);
  found->second.group->lasting.remove_worker(worker);
  found->second.group->expected.clear();
  workers_.erase(found);
}

bool RouteCore::set_state(const Worker& worker, WorkerState state) {
  settle();
  Rank* rank = rank_of(worker);
  if (rank == nullptr || rank->state == state) return false;
  rank->state = state;
  // What it holds is known now.
  const WorkerRecord& record = workers_.at(worker.id);
  if (state == WorkerState::kExact && record.spec.has_events) record.group->lasting.clear(worker);
  return true;
}

std::optional<WorkerState> RouteCore::state(const Worker& worker) const {
  const auto found = workers_.find(worker.id);
  if (found == workers_.end() || worker.rank >= found->second.ranks.size()) return std::nullopt;
  return found->second.ranks[worker.rank].state;
}

bool RouteCore::set_up(WorkerId worker, bool is_up) {
  const auto found = workers_.find(worker);
  if (found == workers_.end() || found->second.is_up == is_up) return false;
  found->second.is_up = is_up;
  return true;
}

events::StoreVerdict RouteCore::store(const events::BlocksStored& event) {
  const auto found = workers_.find(event.worker.id);
  if (found == workers_.end()) return events::StoreVerdict::kFull;
  find_sources(*found->second.group, event);
  const events::StoreVerdict verdict = found->second.group->reported.store(event);
  if (Rank* rank = rank_of(event.worker); rank != nullptr && verdict == events::StoreVerdict::kApplied) {
    rank->changes.stored += event.blocks.size();
    TierChanges& tier = rank->tiers[static_cast<std::size_t>(event.tier)];
    tier.stored += event.blocks.size();
    tier.held += event.blocks.size();
    tier.most = std::max(tier.most, tier.held);
    for (std::size_t i = 0; i < sources_.size(); ++i) tier.offloaded[i] += sources_[i];
  }
  return verdict;
}

void RouteCore::find_sources(const Group& group, const events::BlocksStored& event) {
  sources_ = {};
  if (event.tier == events::StorageTier::kDevice || !events::is_known(event.tier)) return;
  names_.clear();
  for (const events::StoredBlock& block : event.blocks) names_.push_back(block.name);
  presence_.resize(names_.size());
  group.reported.presence(event.worker, names_, presence_);
  for (const events::BlockPresence& block : presence_) {
    if (!block.is_held() || block.in_tier(event.tier)) continue;
    std::optional<events::StorageTier> source;
    for (const events::StorageTier tier : events::kAllStorageTiers) {
      if (tier == event.tier) break;
      if (block.in_tier(tier)) source = tier;
    }
    if (source) ++sources_[static_cast<std::size_t>(*source)];
  }
}

std::size_t RouteCore::remove(const Worker& worker, events::StorageTier tier,
                              std::span<const events::BlockName> names) {
  const auto found = workers_.find(worker.id);
  if (found == workers_.end()) return 0;
  const std::size_t removed = found->second.group->reported.remove(worker, tier, names);
  if (Rank* rank = rank_of(worker); rank != nullptr && removed > 0) {
    rank->changes.removed += removed;
    TierChanges& changes = rank->tiers[static_cast<std::size_t>(tier)];
    changes.removed += removed;
    // A rank that left and came back starts at 0, whatever the index kept of it.
    changes.held -= std::min<std::uint64_t>(changes.held, removed);
  }
  return removed;
}

void RouteCore::clear(const Worker& worker) {
  settle();
  const auto found = workers_.find(worker.id);
  if (found == workers_.end()) return;
  found->second.group->reported.clear(worker);
  // What it was expected to hold is gone with the rest.
  found->second.group->soon.clear(worker);
  if (!found->second.spec.has_events) found->second.group->lasting.clear(worker);
  found->second.group->expected.clear();
  if (Rank* rank = rank_of(worker)) {
    rank->changes.cleared += 1;
    for (TierChanges& tier : rank->tiers) tier.held = 0;
  }
}

bool RouteCore::presence(const Worker& worker, std::span<const events::BlockName> names,
                         std::span<events::BlockPresence> out) const {
  const auto found = workers_.find(worker.id);
  if (found != workers_.end()) return found->second.group->reported.presence(worker, names, out);
  for (std::size_t i = 0; i < names.size(); ++i) out[i] = {.name = names[i]};
  return true;
}

bool RouteCore::list(const Worker& worker, std::vector<events::BlockPresence>& out) const {
  const auto found = workers_.find(worker.id);
  return found == workers_.end() || found->second.group->reported.list(worker, out);
}

bool RouteCore::holds_nothing(const Worker& worker) const {
  const auto found = workers_.find(worker.id);
  return found != workers_.end() && found->second.group->reported.holds_nothing(worker);
}

void RouteCore::fill_candidates(const Group& group, const RouteRequest& request, Decision& decision) const {
  decision.candidates.reserve(workers_.size());
  for (const auto& [id, record] : workers_) {
    if (record.group != &group || (record.spec.is_asked_about && request.block_size != 0)) continue;
    for (std::uint32_t number = 0; number < record.ranks.size(); ++number) {
      const Rank& rank = record.ranks[number];
      Candidate candidate;
      candidate.worker = {.id = id, .rank = number};
      candidate.state = rank.state;
      candidate.requests = rank.requests;
      candidate.prefill_tokens = rank.prefill_tokens;
      candidate.decode_blocks = rank.decode_blocks;
      if (request.rank && record.ranks.size() > 1 && *request.rank != number) {
        candidate.exclusion = Exclusion::kOtherRank;
      } else if (std::ranges::find(request.tried, candidate.worker) != request.tried.end()) {
        candidate.exclusion = Exclusion::kTried;
      } else if (!record.is_up) {
        candidate.exclusion = Exclusion::kDown;
      } else if (record.spec.max_running != 0 && rank.requests >= record.spec.max_running) {
        candidate.exclusion = Exclusion::kFull;
      }
      decision.candidates.push_back(candidate);
    }
  }
  ASHLAR_DCHECK(std::ranges::is_sorted(decision.candidates, {}, &Candidate::worker),
                "candidates are found by their order");
  const auto candidate_of = [&](const Worker& worker) {
    return std::ranges::lower_bound(decision.candidates, worker, {}, &Candidate::worker);
  };
  group.reported.find_matches(request.locals, reported_scores_);
  reported_scores_.for_each([&](const Worker& worker, const index::Score& score) {
    const auto candidate = candidate_of(worker);
    if (candidate == decision.candidates.end() || candidate->worker != worker) return;
    candidate->blocks = score.blocks;
    candidate->depth = score.depth;
    candidate->device_depth = score.device_depth;
    candidate->predicted = score.depth;
  });
  for (const ApproximateIndex<FlashIndex>* predictions : {&group.soon, &group.lasting}) {
    predictions->find_matches(request.locals, predicted_scores_);
    predicted_scores_.for_each([&](const Worker& worker, const index::Score& score) {
      const auto candidate = candidate_of(worker);
      if (candidate == decision.candidates.end() || candidate->worker != worker) return;
      candidate->predicted = std::max(candidate->predicted, score.depth);
    });
  }
}

void RouteCore::add_costs(const RouteRequest& request, Candidate& candidate) const {
  const CostWeights& weights = request.weights;
  ASHLAR_DCHECK(candidate.predicted >= candidate.depth, "%u blocks expected, %u reported",
                candidate.predicted, candidate.depth);
  ASHLAR_DCHECK(candidate.device_depth <= candidate.depth, "%u blocks in the device tier of %u",
                candidate.device_depth, candidate.depth);
  const auto block_size = static_cast<std::int64_t>(request.block_size);
  std::int64_t credit = 0;
  for (std::size_t tier = 0; tier < candidate.blocks.size(); ++tier)
    credit += std::int64_t{candidate.blocks[tier]} * weights.credit[tier];
  credit += std::int64_t{candidate.predicted - candidate.depth} * weights.credit[0];
  const auto tokens = static_cast<std::int64_t>(candidate.prefill_tokens + request.prompt_tokens);
  const std::int64_t left = std::max<std::int64_t>(0, tokens * kThousand / block_size - credit);
  const auto blocks = static_cast<std::int64_t>(
      candidate.decode_blocks + (request.prompt_tokens + request.block_size - 1) / request.block_size);
  candidate.prefill_cost = left * weights.prefill / kThousand;
  candidate.decode_cost = blocks * weights.decode;
  candidate.request_cost = std::int64_t{candidate.requests} * weights.request;
  if (request.session != 0) {
    const auto session = sessions_.find(request.session);
    if (session != sessions_.end() && session->second.worker == candidate.worker)
      candidate.session_cost = -std::int64_t{weights.session};
  }
  candidate.cost =
      candidate.prefill_cost + candidate.decode_cost + candidate.request_cost + candidate.session_cost;
}

Result<std::size_t> RouteCore::pick(Group& group, const RouteRequest& request, Decision& decision) const {
  std::vector<std::size_t> open;
  open.reserve(decision.candidates.size());
  bool is_full = false;
  for (std::size_t i = 0; i < decision.candidates.size(); ++i) {
    if (decision.candidates[i].exclusion == Exclusion::kNone) open.push_back(i);
    is_full |= decision.candidates[i].exclusion == Exclusion::kFull;
  }
  if (open.empty() && is_full)
    return Error(ErrorCode::kCapacity, "every worker of '" + std::string(request.group) + "' is full");
  if (open.empty())
    return Error(ErrorCode::kUnavailable,
                 "no worker of '" + std::string(request.group) + "' can be reached now");
  const auto chosen_so_far = [&](std::size_t i) {
    const Worker& worker = decision.candidates[i].worker;
    return workers_.at(worker.id).ranks[worker.rank].chosen;
  };
  const auto draw = [&](std::uint64_t n) {
    Random random(options_.seed ^ spread_bits(decision.id.value()));
    decision.draw = random.next();
    return decision.draw % n;
  };
  switch (request.policy) {
    case Policy::kRoundRobin:
      return open[group.turn++ % open.size()];
    case Policy::kRandom:
      return open[draw(open.size())];
    case Policy::kLeastLoaded:
    case Policy::kPrefix:
      break;
  }
  std::size_t best = open.front();
  std::int64_t most = std::numeric_limits<std::int64_t>::min();
  for (const std::size_t i : open) {
    const Candidate& candidate = decision.candidates[i];
    most = std::max(most, candidate.cost);
    if (comes_before(candidate, chosen_so_far(i), decision.candidates[best], chosen_so_far(best))) best = i;
  }
  const std::int64_t least = decision.candidates[best].cost;
  if (request.weights.temperature <= 0 || most == least) return best;
  // Softmax over the costs, scaled to their spread.
  const double scale =
      static_cast<double>(most - least) * static_cast<double>(request.weights.temperature) / kThousand;
  double sum = 0;
  std::vector<double> ends;
  for (const std::size_t i : open) {
    sum += std::exp(-static_cast<double>(decision.candidates[i].cost - least) / scale);
    ends.push_back(sum);
  }
  constexpr std::uint64_t kSteps = std::uint64_t{1} << 53;
  const double at = static_cast<double>(draw(kSteps)) / static_cast<double>(kSteps) * sum;
  const auto end = std::ranges::upper_bound(ends, at);
  return open[std::min<std::size_t>(static_cast<std::size_t>(end - ends.begin()), open.size() - 1)];
}

Result<Decision> RouteCore::choose(const RouteRequest& request, Clock::TimePoint now,
                                   std::span<const LocalHash> identity) {
  ASHLAR_CHECK(request.block_size > 0, "a request needs the block size of its group");
  settle();
  clock_->set(now);
  const auto found = groups_.find(request.group);
  if (found == groups_.end())
    return Error(ErrorCode::kNotFound, "no worker serves '" + std::string(request.group) + "'");
  Group& group = *found->second;
  group.soon.expire();
  group.lasting.expire();

  Decision decision;
  decision.id = DecisionId(next_decision_++);
  decision.time = now;
  decision.policy = request.policy;
  decision.prompt_tokens = request.prompt_tokens;
  decision.is_estimate = request.is_estimate;
  decision.block_size = request.block_size;
  fill_candidates(group, request, decision);
  if (decision.candidates.empty())
    return Error(ErrorCode::kNotFound, "no worker serves '" + std::string(request.group) + "'");
  RouteRequest weighed = request;
  if (request.policy == Policy::kLeastLoaded) {
    weighed.weights.credit = {};
    weighed.weights.session = 0;
  }
  for (Candidate& candidate : decision.candidates) {
    add_costs(weighed, candidate);
    decision.available_tokens = std::max(decision.available_tokens, claim_of(candidate, request));
  }
  ASHLAR_TRY(decision.chosen, pick(group, weighed, decision));
  const Candidate& choice = decision.choice();
  if (request.hesitates && choice.state == WorkerState::kExact && choice.predicted > choice.depth)
    return Error(ErrorCode::kNotReady, "events of blocks that were just computed are on their way");
  decision.cached_tokens = claim_of(choice, request);

  ASHLAR_DCHECK(choice.exclusion == Exclusion::kNone, "a worker that is left out was chosen");
  ASHLAR_DCHECK(decision.cached_tokens <= decision.available_tokens, "%llu tokens of %llu",
                static_cast<unsigned long long>(decision.cached_tokens),
                static_cast<unsigned long long>(decision.available_tokens));
  WorkerRecord& record = workers_.at(choice.worker.id);
  Rank& rank = record.ranks[choice.worker.rank];
  const std::uint64_t expected = usable_tokens(choice.predicted, request.prompt_tokens, request.block_size);
  Reservation reservation{.worker = choice.worker, .rank_number = rank.number};
  reservation.prefill_tokens = request.prompt_tokens - std::min(expected, request.prompt_tokens);
  reservation.decode_blocks = (request.prompt_tokens + request.block_size - 1) / request.block_size;
  rank.requests += 1;
  rank.prefill_tokens += reservation.prefill_tokens;
  rank.decode_blocks += reservation.decode_blocks;
  rank.chosen += 1;
  decision.changes = rank.changes;
  running_.emplace(decision.id.value(), reservation);
  if (explains_misses_) explain_misses(group, request, identity, decision);
  if (!request.locals.empty())
    expect(group, record.spec.has_events, choice.worker, request.locals, identity, now);
  if (request.session != 0) remember_session(request.session, choice.worker);
  return decision;
}

// A block is named by the blocks before it and itself. Those that are found need no name: they had one when
// they were missing.
void RouteCore::explain_misses(Group& group, const RouteRequest& request, std::span<const LocalHash> identity,
                               Decision& decision) {
  const Candidate& choice = decision.choice();
  const std::size_t blocks = request.locals.size();
  ASHLAR_DCHECK(identity.size() == blocks, "%zu names of %zu blocks", identity.size(), blocks);
  if (choice.state == WorkerState::kFallback || choice.depth >= blocks) return;
  places_.resize(blocks - choice.depth);
  group.reported.places(request.locals, choice.depth, choice.worker, places_);
  // Names are asked for when all of them are on their way into the cache.
  missing_.clear();
  std::uint64_t name = 0;
  for (std::size_t i = 0; i < blocks; ++i) {
    name = (std::rotl(name, 23) ^ identity[i].value()) * 0x9E37'79B9'7F4A'7C15u;
    if (i < choice.depth) continue;
    missing_.push_back(spread_bits(name));
    group.seen.prefetch(missing_.back());
  }
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const bool is_new = group.seen.add(missing_[i]);
    const index::BlockPlace place = places_[i];
    const MissReason reason = place == index::BlockPlace::kHere        ? MissReason::kBrokenPrefix
                              : place == index::BlockPlace::kElsewhere ? MissReason::kElsewhere
                              : is_new                                 ? MissReason::kNeverSeen
                                                                       : MissReason::kEvicted;
    ++decision.missed[static_cast<std::size_t>(reason)];
  }
}

void RouteCore::remember_session(std::uint64_t session, const Worker& worker) {
  ASHLAR_DCHECK(sessions_.size() == session_uses_.size(), "%zu sessions, %zu uses", sessions_.size(),
                session_uses_.size());
  const auto found = sessions_.find(session);
  if (found != sessions_.end()) {
    found->second.worker = worker;
    session_uses_.splice(session_uses_.end(), session_uses_, found->second.use);
    return;
  }
  if (sessions_.size() >= options_.max_sessions) {
    sessions_.erase(session_uses_.front());
    session_uses_.pop_front();
  }
  session_uses_.push_back(session);
  sessions_.emplace(session, Session{.worker = worker, .use = std::prev(session_uses_.end())});
}

void RouteCore::first_byte(DecisionId decision) {
  settle();
  const auto found = running_.find(decision.value());
  if (found == running_.end()) return;
  if (Rank* rank = rank_of(found->second)) rank->prefill_tokens -= found->second.prefill_tokens;
  found->second.prefill_tokens = 0;
}

void RouteCore::release(DecisionId decision) {
  settle();
  const auto found = running_.find(decision.value());
  ASHLAR_CHECK(found != running_.end(), "decision %llu was released twice or never made",
               static_cast<unsigned long long>(decision.value()));
  if (Rank* rank = rank_of(found->second)) {
    ASHLAR_DCHECK(rank->requests > 0, "a load below nothing");
    ASHLAR_DCHECK(rank->prefill_tokens >= found->second.prefill_tokens, "a prefill below nothing");
    ASHLAR_DCHECK(rank->decode_blocks >= found->second.decode_blocks, "blocks below nothing");
    rank->requests -= 1;
    rank->prefill_tokens -= found->second.prefill_tokens;
    rank->decode_blocks -= found->second.decode_blocks;
  }
  running_.erase(found);
}

std::vector<Candidate> RouteCore::look_up(std::string_view group, std::span<const LocalHash> locals) const {
  const auto found = groups_.find(group);
  if (found == groups_.end()) return {};
  Decision decision;
  fill_candidates(*found->second, {.group = group, .locals = locals}, decision);
  for (Candidate& candidate : decision.candidates) candidate.predicted = candidate.depth;
  return std::move(decision.candidates);
}

std::vector<WorkerLoad> RouteCore::loads() const {
  std::vector<WorkerLoad> loads;
  for (const auto& [id, record] : workers_)
    for (std::uint32_t number = 0; number < record.ranks.size(); ++number) {
      const Rank& rank = record.ranks[number];
      loads.push_back({.worker = {.id = id, .rank = number},
                       .group = record.spec.group,
                       .state = rank.state,
                       .is_up = record.is_up,
                       .requests = rank.requests,
                       .prefill_tokens = rank.prefill_tokens,
                       .decode_blocks = rank.decode_blocks,
                       .chosen = rank.chosen,
                       .tiers = rank.tiers});
    }
  return loads;
}

WorkerChanges RouteCore::changes(const Worker& worker) const {
  const auto found = workers_.find(worker.id);
  if (found == workers_.end() || worker.rank >= found->second.ranks.size()) return {};
  return found->second.ranks[worker.rank].changes;
}

const FlashIndex* RouteCore::reported(std::string_view group) const {
  const auto found = groups_.find(group);
  return found == groups_.end() ? nullptr : &found->second->reported;
}

}  // namespace ashlar::service
