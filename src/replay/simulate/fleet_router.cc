#include "replay/simulate/fleet_router.h"

#include <algorithm>
#include <chrono>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"

namespace ashlar::replay {
namespace {

constexpr std::string_view kFleetGroup = "replay";

service::Policy policy_of(Routing routing) {
  switch (routing) {
    case Routing::kRoundRobin:
      return service::Policy::kRoundRobin;
    case Routing::kRandom:
      return service::Policy::kRandom;
    case Routing::kLeastLoaded:
      return service::Policy::kLeastLoaded;
    case Routing::kPrefix:
    case Routing::kSticky:
      break;
  }
  return service::Policy::kPrefix;
}

events::Worker worker_of(std::uint32_t number) {
  return {.id = events::WorkerId(number + 1)};
}

}  // namespace

FleetRouter::FleetRouter(const TraceTable& trace, const ReplayConfig& config, service::RouteLog* log)
    : trace_(trace),
      routing_(config.routing),
      workers_(config.workers),
      log_(log),
      // The load of a request is what it does not find: also a router that only weighs loads asks for that.
      knows_prefixes_(log != nullptr || routing_ == Routing::kPrefix || routing_ == Routing::kLeastLoaded) {
  if (log_ == nullptr && (workers_ == 1 || routing_ == Routing::kSticky)) return;
  core_ = std::make_unique<service::RouteCore>(service::RouterOptions{.seed = config.seed}, false);
  for (std::uint32_t i = 0; i < workers_; ++i) {
    const service::WorkerSpec spec{.id = worker_of(i).id,
                                   .group = std::string(kFleetGroup),
                                   .has_events = true,
                                   .name = "worker " + std::to_string(i)};
    if (log_ != nullptr) log_->worker_added(spec);
    core_->add_worker(spec);
    if (core_->set_state(worker_of(i), service::WorkerState::kExact) && log_ != nullptr)
      log_->state_changed(worker_of(i), service::WorkerState::kExact);
  }
}

void FleetRouter::end_until(double at_ms) {
  while (!ends_.empty() && ends_.top().at_ms <= at_ms) {
    const End end = ends_.top();
    ends_.pop();
    const Clock::TimePoint now(std::chrono::nanoseconds(static_cast<std::int64_t>(end.at_ms * 1e6)));
    if (end.is_first_token) {
      if (log_ != nullptr) log_->first_byte(end.decision, now);
      core_->first_byte(end.decision);
    } else {
      if (log_ != nullptr) log_->released(end.decision, now);
      core_->release(end.decision);
    }
  }
}

std::uint32_t FleetRouter::choose(const TraceTable::Request& request) {
  const bool is_given = workers_ == 1 || routing_ == Routing::kSticky;
  if (is_given)
    chosen_ = static_cast<std::uint32_t>(
        workers_ == 1 ? 0 : (request.session == 0 ? turn_++ : spread_bits(request.session)) % workers_);
  if (core_ == nullptr) return chosen_;
  others_.clear();
  if (is_given)
    for (std::uint32_t i = 0; i < workers_; ++i)
      if (i != chosen_) others_.push_back(worker_of(i));
  end_until(static_cast<double>(request.arrival_ms));
  locals_.clear();
  if (knows_prefixes_)
    for (const std::uint32_t number : trace_.blocks_of(request))
      locals_.emplace_back(std::uint64_t{number} + 1);
  const service::RouteRequest asked{.group = kFleetGroup,
                                    .locals = locals_,
                                    .prompt_tokens = request.input_tokens,
                                    .block_size = request.block_size == 0 ? 1 : request.block_size,
                                    .session = request.session,
                                    .policy = policy_of(routing_),
                                    .tried = others_};
  const Clock::TimePoint now(std::chrono::milliseconds(request.arrival_ms));
  const auto decision = core_->choose(asked, now);
  ASHLAR_CHECK(decision.has_value(), "every worker is up and has room");
  if (log_ != nullptr) log_->chosen(asked, now, decision);
  decision_ = decision->id;
  chosen_ = static_cast<std::uint32_t>(decision->choice().worker.id.value() - 1);
  return chosen_;
}

void FleetRouter::served(const TraceTable::Request& request, const CacheChange& change, double first_token_ms,
                         double end_ms) {
  if (core_ == nullptr) return;
  ASHLAR_CHECK(end_ms >= first_token_ms, "an answer begins before it ends");
  ends_.push({.at_ms = first_token_ms, .decision = decision_, .is_first_token = true});
  ends_.push({.at_ms = end_ms, .decision = decision_});
  if (!knows_prefixes_) return;
  const events::Worker worker = worker_of(chosen_);
  const std::span<const std::uint32_t> blocks = trace_.blocks_of(request);
  const auto name_of = [](std::uint32_t block) { return events::BlockName(std::uint64_t{block} + 1); };
  std::size_t at = 0;  // of the prompt
  for (std::size_t i = 0; i < change.moves.size();) {
    const BlockMove& first = change.moves[i];
    const auto is_alike = [&](const BlockMove& move) {
      return move.tier == first.tier && move.is_stored == first.is_stored;
    };
    const auto tier = static_cast<events::StorageTier>(first.tier);
    if (!first.is_stored) {
      names_.clear();
      for (; i < change.moves.size() && is_alike(change.moves[i]); ++i)
        names_.push_back(name_of(change.moves[i].block));
      if (log_ != nullptr) log_->removed(worker, tier, names_);
      core_->remove(worker, tier, names_);
      continue;
    }
    // A run as it stands in the prompt. The next one is usually further on.
    auto place = std::find(blocks.begin() + static_cast<std::ptrdiff_t>(at), blocks.end(), first.block);
    if (place == blocks.end()) place = std::find(blocks.begin(), blocks.end(), first.block);
    ASHLAR_CHECK(place != blocks.end(), "block %u was stored for a request that does not name it",
                 first.block);
    at = static_cast<std::size_t>(place - blocks.begin());
    events::BlocksStored event;
    event.worker = worker;
    event.tier = tier;
    if (at > 0) event.parent = name_of(blocks[at - 1]);
    run_.clear();
    for (; i < change.moves.size() && at < blocks.size() && is_alike(change.moves[i]) &&
           change.moves[i].block == blocks[at];
         ++i, ++at)
      run_.push_back(
          {.local = tokens::LocalHash(std::uint64_t{blocks[at]} + 1), .name = name_of(blocks[at])});
    event.blocks = run_;
    if (log_ != nullptr) log_->stored(event);
    core_->store(event);
  }
}

}  // namespace ashlar::replay
