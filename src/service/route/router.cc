#include "ashlar/service/router.h"

#include "service/route/route_core.h"

namespace ashlar::service {

// The index behind the router's lock; every call is told to the log first.
class Router::Sink final : public events::IndexSink {
 public:
  explicit Sink(Router& router) noexcept : router_(router) {}

  events::StoreVerdict store(const events::BlocksStored& event) override {
    MutexLock lock(router_.mu_);
    if (router_.log_ != nullptr && router_.core_->knows(event.worker.id)) router_.log_->stored(event);
    return router_.core_->store(event);
  }
  std::size_t remove(const events::Worker& worker, events::StorageTier tier,
                     std::span<const events::BlockName> names) override {
    MutexLock lock(router_.mu_);
    if (router_.log_ != nullptr && router_.core_->knows(worker.id))
      router_.log_->removed(worker, tier, names);
    return router_.core_->remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override {
    MutexLock lock(router_.mu_);
    if (router_.log_ != nullptr && router_.core_->knows(worker.id)) router_.log_->cleared(worker);
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

 private:
  Router& router_;
};

Router::Router(const RouterOptions& options, RouteLog* log, Clock& clock)
    : clock_(clock),
      log_(log),
      core_(std::make_unique<RouteCore>(options)),
      sink_(std::make_unique<Sink>(*this)) {}

Router::~Router() = default;

void Router::add_worker(const WorkerSpec& spec) {
  MutexLock lock(mu_);
  if (log_ != nullptr) log_->worker_added(spec);
  core_->add_worker(spec);
}

void Router::remove_worker(events::WorkerId worker) {
  MutexLock lock(mu_);
  if (log_ != nullptr) log_->worker_removed(worker);
  core_->remove_worker(worker);
}

void Router::set_state(const events::Worker& worker, WorkerState state) {
  MutexLock lock(mu_);
  if (core_->set_state(worker, state) && log_ != nullptr) log_->state_changed(worker, state);
}

void Router::set_up(events::WorkerId worker, bool is_up) {
  MutexLock lock(mu_);
  if (core_->set_up(worker, is_up) && log_ != nullptr) log_->availability_changed(worker, is_up);
}

void Router::expect(const events::Worker& worker, std::span<const tokens::LocalHash> locals) {
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.now();
  if (log_ != nullptr) log_->expected(worker, locals, now);
  core_->expect(worker, locals, now);
}

events::IndexSink& Router::sink() noexcept {
  return *sink_;
}

Result<Decision> Router::choose(const RouteRequest& request) {
  MutexLock lock(mu_);
  const Clock::TimePoint now = clock_.now();
  Result<Decision> decision = core_->choose(request, now);
  if (log_ != nullptr) log_->chosen(request, now, decision);
  return decision;
}

void Router::first_byte(DecisionId decision) {
  MutexLock lock(mu_);
  if (log_ != nullptr) log_->first_byte(decision, clock_.now());
  core_->first_byte(decision);
}

void Router::release(DecisionId decision) {
  MutexLock lock(mu_);
  if (log_ != nullptr) log_->released(decision, clock_.now());
  core_->release(decision);
}

std::vector<Candidate> Router::look_up(std::string_view group,
                                       std::span<const tokens::LocalHash> locals) const {
  MutexLock lock(mu_);
  return core_->look_up(group, locals);
}

std::vector<WorkerLoad> Router::loads() const {
  MutexLock lock(mu_);
  return core_->loads();
}

WorkerChanges Router::changes(const events::Worker& worker) const {
  MutexLock lock(mu_);
  return core_->changes(worker);
}

std::size_t Router::running() const {
  MutexLock lock(mu_);
  return core_->running();
}

// Both walk the whole index, which has a lock of its own: requests go on meanwhile.
void Router::dump(std::string_view group, events::IndexSink& sink) const {
  const index::FlashIndex* reported = nullptr;
  {
    MutexLock lock(mu_);
    reported = core_->reported(group);
  }
  if (reported != nullptr) reported->dump(sink);
}

Router::Sizes Router::sizes(std::string_view group) const {
  const index::FlashIndex* reported = nullptr;
  Sizes sizes;
  {
    MutexLock lock(mu_);
    reported = core_->reported(group);
    sizes.predicted = core_->predicted(group);
  }
  if (reported == nullptr) return sizes;
  const index::IndexSizes held = reported->sizes();
  sizes.blocks = held.blocks;
  sizes.contents = held.contents;
  sizes.bytes = held.bytes;
  return sizes;
}

}  // namespace ashlar::service
