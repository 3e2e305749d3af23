#include "ashlar/service/router.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>

#include "service/route/dropped_blocks.h"
#include "service/route/route_core.h"

namespace ashlar::service {

// The index behind the router's lock; every call is told to the log first.
class Router::Sink final : public events::IndexSink {
 public:
  explicit Sink(Router& router) noexcept : router_(router) {}

  events::StoreVerdict store(const events::BlocksStored& event) override {
    MutexLock lock(router_.mu_);
    if (RouteLog* const log = router_.ready_log(); log != nullptr && router_.core_->knows(event.worker.id))
      log->stored(event);
    return router_.core_->store(event);
  }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override {
    MutexLock lock(router_.mu_);
    if (RouteLog* const log = router_.ready_log(); log != nullptr && router_.core_->knows(worker.id))
      log->removed(worker, tier, names);
    return router_.remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override {
    MutexLock lock(router_.mu_);
    if (RouteLog* const log = router_.ready_log(); log != nullptr && router_.core_->knows(worker.id))
      log->cleared(worker);
    router_.core_->clear(worker);
  }
  // Feeders clear rank by rank; whether a worker belongs here is not theirs to say.
  void remove_worker(events::WorkerId worker) override {
    for (const WorkerLoad& load : router_.loads())
      if (load.worker.id == worker) clear(load.worker);
  }
  bool presence(const events::Worker& worker, std::span<const events::BlockName> names,
                std::span<events::BlockPresence> out) const override {
    MutexLock lock(router_.mu_);
    return router_.core_->presence(worker, names, out);
  }
  bool list(const events::Worker& worker, std::vector<events::BlockPresence>& out) const override {
    MutexLock lock(router_.mu_);
    return router_.core_->list(worker, out);
  }
  bool holds_nothing(const events::Worker& worker) const override {
    MutexLock lock(router_.mu_);
    return router_.core_->holds_nothing(worker);
  }

 private:
  Router& router_;
};

Router::Router(const RouterOptions& options, RouteLog* log, Clock& clock)
    : clock_(clock),
      log_(log),
      core_(std::make_unique<RouteCore>(options)),
      sink_(std::make_unique<Sink>(*this)) {}

Router::~Router() = default;

// A block is dropped with the last tier that had it.
std::size_t Router::remove(const events::Worker& worker, events::StorageTier tier,
                           std::span<const events::BlockName> names) {
  if (!core_->state(worker) || !events::is_known(tier)) return core_->remove(worker, tier, names);
  const auto last = names.last(std::min(names.size(), DroppedBlocks::kMost));
  before_.resize(last.size());
  core_->presence(worker, last, before_);
  const std::size_t removed = core_->remove(worker, tier, names);
  const std::uint64_t mark = core_->changes(worker).removed;
  const auto only_here = static_cast<std::uint8_t>(1u << static_cast<unsigned>(tier));
  std::unique_ptr<DroppedBlocks>& dropped = dropped_[worker];
  if (!dropped) dropped = std::make_unique<DroppedBlocks>();
  if (last.size() < names.size()) dropped->forget(mark);
  for (const events::BlockPresence& block : before_)
    if (block.tiers == only_here) dropped->add(block.local, block.position, mark);
  return removed;
}

RouteLog* Router::ready_log() {
  if (log_ != nullptr && log_->wants_checkpoint()) log_->checkpoint(*core_);
  return log_;
}

void Router::add_worker(const WorkerSpec& spec) {
  MutexLock lock(mu_);
  if (RouteLog* const log = ready_log()) log->worker_added(spec);
  core_->add_worker(spec);
  // Ranks that are new, or of another group now, count from 0.
  const RouteCore& core = *core_;
  std::erase_if(dropped_, [&](const auto& dropped) {
    return dropped.first.id == spec.id && core.changes(dropped.first).removed == 0;
  });
}

void Router::remove_worker(events::WorkerId worker) {
  MutexLock lock(mu_);
  if (RouteLog* const log = ready_log()) log->worker_removed(worker);
  core_->remove_worker(worker);
  std::erase_if(beats_, [&](const auto& beat) { return beat.first.id == worker; });
  std::erase_if(dropped_, [&](const auto& dropped) { return dropped.first.id == worker; });
}

void Router::set_state(const events::Worker& worker, WorkerState state) {
  MutexLock lock(mu_);
  RouteLog* const log = ready_log();
  if (core_->set_state(worker, state) && log != nullptr) log->state_changed(worker, state);
}

void Router::set_up(events::WorkerId worker, bool is_up) {
  MutexLock lock(mu_);
  RouteLog* const log = ready_log();
  if (core_->set_up(worker, is_up) && log != nullptr) log->availability_changed(worker, is_up);
}

bool Router::beat(const events::Worker& worker, Clock::Duration lasts) {
  MutexLock lock(mu_);
  if (!core_->state(worker)) return true;
  const Clock::TimePoint now = clock_.now();
  const auto [beat, is_new] = beats_.try_emplace(worker, now + lasts);
  const bool is_in_time = is_new || now < beat->second;
  beat->second = now + lasts;
  next_end_ = std::min(next_end_, beat->second);
  // Nobody may choose it as EXACT before its follower says what it missed.
  if (!is_in_time && core_->state(worker) == WorkerState::kExact) degrade(worker);
  return is_in_time;
}

bool Router::is_late(const events::Worker& worker) const {
  MutexLock lock(mu_);
  return is_late(worker, clock_.now());
}

bool Router::is_late(const events::Worker& worker, Clock::TimePoint now) const {
  const auto beat = beats_.find(worker);
  return beat != beats_.end() && beat->second <= now;
}

// Ends only move on, so that there is nothing to see before the first of them.
void Router::end_beats(Clock::TimePoint now) {
  if (now < next_end_) return;
  next_end_ = Clock::TimePoint::max();
  for (const auto& [worker, end] : beats_) {
    if (now < end) {
      next_end_ = std::min(next_end_, end);
    } else if (core_->state(worker) == WorkerState::kExact) {
      degrade(worker);
    }
  }
}

void Router::degrade(const events::Worker& worker) {
  if (RouteLog* const log = ready_log()) log->state_changed(worker, WorkerState::kDegraded);
  core_->set_state(worker, WorkerState::kDegraded);
}

void Router::expect(const events::Worker& worker, std::span<const tokens::LocalHash> locals) {
  MutexLock lock(mu_);
  const std::optional<WorkerState> state = core_->state(worker);
  if (!state || *state == WorkerState::kExact || locals.empty()) return;  // not worth a record
  const Clock::TimePoint now = clock_.now();
  if (RouteLog* const log = ready_log()) log->expected(worker, locals, now);
  core_->expect(worker, locals, now);
}

void Router::tidy() {
  constexpr std::size_t kStep = 256;
  constexpr auto kPause = std::chrono::microseconds(50);
  for (;;) {
    {
      MutexLock lock(mu_);
      if (core_->end_predictions(clock_.now(), kStep) < kStep) return;
    }
    std::this_thread::sleep_for(kPause);  // a mutex is not fair: yielding alone seldom lets a choice in
  }
}

events::IndexSink& Router::sink() noexcept {
  return *sink_;
}

Result<Decision> Router::choose(const RouteRequest& asked) {
  // Other policies do not go by what is reported, and round robin would lose its turn.
  RouteRequest request = asked;
  request.hesitates = asked.hesitates && asked.policy == Policy::kPrefix;
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.now();
  end_beats(now);
  RouteLog* const log = ready_log();
  if (log == nullptr) return core_->choose(request, now);
  Result<Decision> decision = core_->choose(request, now, log->keyed(request.locals));
  log->chosen(request, now, decision);
  return decision;
}

void Router::first_byte(DecisionId decision) {
  MutexLock lock(mu_);
  if (RouteLog* const log = ready_log()) log->first_byte(decision, clock_.now());
  core_->first_byte(decision);
}

void Router::release(DecisionId decision) {
  MutexLock lock(mu_);
  if (RouteLog* const log = ready_log()) log->released(decision, clock_.now());
  core_->release(decision);
}

std::vector<Candidate> Router::look_up(std::string_view group,
                                       std::span<const tokens::LocalHash> locals) const {
  MutexLock lock(mu_);
  return core_->look_up(group, locals);
}

std::vector<WorkerLoad> Router::loads() const {
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.now();
  std::vector<WorkerLoad> loads = core_->loads();
  for (WorkerLoad& load : loads)
    if (load.state == WorkerState::kExact && is_late(load.worker, now)) load.state = WorkerState::kDegraded;
  return loads;
}

WorkerChanges Router::changes(const events::Worker& worker) const {
  MutexLock lock(mu_);
  return core_->changes(worker);
}

BlockFate Router::fate_of(const events::Worker& worker, std::span<const tokens::LocalHash> locals,
                          std::size_t first, const WorkerChanges& since) const {
  MutexLock lock(mu_);
  const auto dropped = dropped_.find(worker);
  return dropped == dropped_.end() ? BlockFate::kKept
                                   : dropped->second->fate_of(locals, first, since.removed);
}

std::size_t Router::running() const {
  MutexLock lock(mu_);
  return core_->running();
}

// These walk the whole index, which has a lock of its own: requests go on meanwhile, unless an event waits.
void Router::dump(std::string_view group, events::IndexSink& sink) const {
  const index::FlashIndex* reported = nullptr;
  {
    MutexLock lock(mu_);
    reported = core_->reported(group);
  }
  if (reported != nullptr) reported->dump(sink);
}

index::IndexOutline Router::outline(std::string_view group) const {
  const index::FlashIndex* reported = nullptr;
  {
    MutexLock lock(mu_);
    reported = core_->reported(group);
  }
  index::IndexOutline outline;
  if (reported != nullptr) reported->outline(outline);
  return outline;
}

Router::Sizes Router::sizes(std::string_view group) const {
  const index::FlashIndex* reported = nullptr;
  Sizes sizes;
  {
    MutexLock lock(mu_);
    reported = core_->reported(group);
    sizes.predicted = core_->predicted(group);
    std::tie(sizes.predictions_cut, sizes.predictions_evicted) = core_->left_out(group);
  }
  if (reported == nullptr) return sizes;
  const index::IndexSizes held = reported->sizes();
  sizes.blocks = held.blocks;
  sizes.contents = held.contents;
  sizes.bytes = held.bytes;
  return sizes;
}

}  // namespace ashlar::service
