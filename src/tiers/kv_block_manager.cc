#include "ashlar/tiers/kv_block_manager.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <type_traits>
#include <utility>

#include "tiers/kv_assembly.h"
#include "tiers/offload/offload_metrics.h"

namespace ashlar::tiers {

using events::G1;
using events::G2;
using events::G3;
using events::G4;
using events::kTierId;
using tokens::SequenceHash;

namespace {

// `what`: what the tier was wanted for.
Error no_tier(events::TierId tier, const char* what) {
  if (tier == kTierId<events::Remote>)
    return make_error(ErrorCode::kUnsupported, "there is no remote tier %s; set KvOptions::remote to have it",
                      what);
  if (tier != kTierId<G2> && tier != kTierId<G3> && tier != kTierId<G4>)
    return make_error(ErrorCode::kUnsupported, "tier %u is not one %s", unsigned{tier.value()}, what);
  const unsigned number = unsigned{tier.value()} + 1;
  return make_error(ErrorCode::kUnsupported, "there is no G%u %s; set KvOptions::g%u to have it", number,
                    what, number);
}

}  // namespace

std::uint64_t KvStatus::missed() const noexcept {
  return std::accumulate(misses.begin(), misses.end(), std::uint64_t{0});
}

Result<std::unique_ptr<KvBlockManager>> KvBlockManager::create(KvOptions options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  for (TierShape* shape : {&options.g1, options.g2 ? &*options.g2 : nullptr})
    if (shape != nullptr && shape->blocks != nullptr && shape->block_count == 0)
      shape->block_count = shape->blocks->block_count();
  using Made = Result<std::unique_ptr<KvBlockManager>>;
  const auto refusal = [g1 = options.g1.block_count, g2 = options.g2 ? options.g2->block_count : 0,
                        g3 = options.g3 ? options.g3->block_count : 0,
                        g4 = options.g4 ? options.g4->block_count : 0]() -> Made {
    return make_error(
        ErrorCode::kCapacity,
        "out of memory for the block_count of the tiers: g1 %u, g2 %u, g3 %u, g4 %u; lower them", g1, g2, g3,
        g4);
  };
  return unless_out_of_memory(
      [&]() -> Made {
        auto assembly = std::make_unique<Assembly>(std::move(options));
        ASHLAR_RETURN_IF_ERROR(assembly->open());
        return std::unique_ptr<KvBlockManager>(new KvBlockManager(std::move(assembly)));
      },
      [&] { return unless_out_of_memory(refusal); });
}

KvBlockManager::KvBlockManager(std::unique_ptr<Assembly> assembly) : assembly_(std::move(assembly)) {}

KvBlockManager::~KvBlockManager() {
  assembly_->relay->stop();  // callbacks may use the manager
  detach_events();
  assembly_->closing = true;
  assembly_->closed = true;
  assembly_->onboarder->stop();
  assembly_->onboarder->drop_arrived();
  assembly_->source.reset();
  assembly_->onboarder.reset();
  if (assembly_->stack.remote != nullptr && assembly_->stack.remote->finder() != nullptr)
    assembly_->stack.remote->finder()->withdraw();
  if (assembly_->remote_core != nullptr && assembly_->remote_core->server != nullptr)
    assembly_->remote_core->server->stop();
  if (assembly_->stack.remote != nullptr) assembly_->stack.remote->stop();
  if (assembly_->stack.g4 != nullptr) assembly_->stack.g4->stop();
  assembly_->to_g2.reset();  // before the workers it feeds
}

block::BlockManager<G1>& KvBlockManager::g1() noexcept {
  return *assembly_->stack.g1_manager;
}
block::BlockManager<G2>* KvBlockManager::g2() noexcept {
  return assembly_->stack.g2_manager ? &*assembly_->stack.g2_manager : nullptr;
}
block::BlockManager<G3>* KvBlockManager::g3() noexcept {
  return assembly_->stack.g3_manager ? &*assembly_->stack.g3_manager : nullptr;
}
block::BlockManager<G4>* KvBlockManager::g4() noexcept {
  return assembly_->stack.g4_manager ? &*assembly_->stack.g4_manager : nullptr;
}
RemoteNode* KvBlockManager::remote() noexcept {
  return assembly_->remote ? &*assembly_->remote : nullptr;
}
const block::BlockRegistry& KvBlockManager::registry() const noexcept {
  return *assembly_->stack.registry;
}
tokens::SequenceHasher KvBlockManager::hasher(const tokens::Salt& salt,
                                              const tokens::HashScheme& scheme) const {
  return tokens::SequenceHasher(scheme, salt, assembly_->prefix_key());
}
const std::shared_ptr<const transfer::BlockSet>& KvBlockManager::g1_blocks() const noexcept {
  return assembly_->stack.g1->blocks();
}

// ---- compute

Result<block::BlockList<block::MutableBlock<G1>>, block::AllocationRefusal>
KvBlockManager::get_mutable_blocks(std::size_t n) {
  return g1().allocate_blocks(n);
}

KvBlockManager::Registered KvBlockManager::register_blocks(block::BlockList<block::CompleteBlock<G1>> blocks,
                                                           const RegisterOptions& options) {
  return g1().register_blocks(std::move(blocks), options);
}

// ---- down

Result<OffloadHandle> KvBlockManager::offload(std::span<const SequenceHash> hashes,
                                              const OffloadOptions& options) {
  return offload_to(kTierId<G2>, hashes, options);
}

Result<OffloadHandle> KvBlockManager::offload_to(events::TierId tier, std::span<const SequenceHash> hashes,
                                                 const OffloadOptions& options) {
  OffloadWorker* const worker = tier == kTierId<G2>   ? assembly_->to_g2.get()
                                : tier == kTierId<G3> ? assembly_->to_g3.get()
                                : tier == kTierId<G4> ? assembly_->to_g4.get()
                                                      : nullptr;
  if (worker == nullptr) return no_tier(tier, "to offload to");
  if (assembly_->closing) return make_error(ErrorCode::kCancelled, "the manager was shut down");
  if (options.after.size() > 1 && options.after.size() != hashes.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu preconditions for %zu blocks", options.after.size(),
                      hashes.size());
  return worker->offload(hashes, options);
}

void KvBlockManager::look_ahead() {
  assembly_->look_ahead_g1();
  assembly_->look_ahead_g2();
}

bool KvBlockManager::drain(std::optional<Clock::TimePoint> until) {
  bool all = true;
  for (OffloadWorker* const worker : {assembly_->to_g2.get(), assembly_->to_g3.get(), assembly_->to_g4.get()})
    if (worker != nullptr) all &= worker->drain(until);
  return all;
}

// Blocks that have arrived in G2 still move on; no new ones enter.
Result<void> KvBlockManager::shutdown(std::optional<Clock::TimePoint> until) {
  assembly_->closing = true;
  drain(until);
  assembly_->closed = true;
  assembly_->onboarder->stop();
  std::size_t left = 0;
  for (OffloadWorker* const worker : {assembly_->to_g2.get(), assembly_->to_g3.get(), assembly_->to_g4.get()})
    if (worker != nullptr) left += worker->shut_down();
  if (left == 0) return {};
  return make_error(ErrorCode::kTimeout,
                    "%zu blocks were dropped: `until` passed, or their precondition did not", left);
}

// ---- up

std::vector<TierRun> KvBlockManager::find(std::span<const SequenceHash> hashes,
                                          std::optional<Clock::TimePoint> until) {
  return assembly_->onboarder->find(hashes, {.deadline = until});
}

OnboardTable KvBlockManager::run(const std::shared_ptr<OnboardCall>& call) {
  const std::stop_callback cancel(call->options.stop, [&] { call->cancel(); });
  assembly_->onboarder->run(call);
  Result<OnboardTable> table = call->wait({});
  return table ? *std::move(table) : OnboardTable();
}

OnboardTable KvBlockManager::onboard(std::span<const SequenceHash> hashes, const OnboardOptions& options) {
  return run(assembly_->onboarder->make_call(hashes, options, false));
}

OnboardTable KvBlockManager::onboard(std::span<const tokens::TokenBlock> blocks,
                                     const OnboardOptions& options) {
  return run(call_for(blocks, options));
}

std::shared_ptr<OnboardCall> KvBlockManager::call_for(std::span<const tokens::TokenBlock> blocks,
                                                      OnboardOptions options) {
  std::vector<SequenceHash> hashes;
  options.prefixes.clear();
  options.locals.clear();
  for (const tokens::TokenBlock& block : blocks) {
    hashes.push_back(block.sequence_hash());
    options.prefixes.push_back(block.prefix_digest_under(assembly_->prefix_key()));
    options.locals.push_back(block.local_hash());
  }
  options.parent = blocks.empty() ? std::nullopt : blocks[0].parent();
  options.root = blocks.empty() ? std::nullopt : std::optional(blocks[0].root());
  auto call = assembly_->onboarder->make_call(hashes, options, false);
  if (assembly_->options.g1.pool.keep_tokens) call->text.assign(blocks.begin(), blocks.end());
  return call;
}

Result<OnboardHandle> KvBlockManager::onboard_async(std::span<const tokens::TokenBlock> blocks,
                                                    const OnboardOptions& options) {
  auto call = call_for(blocks, options);
  ASHLAR_RETURN_IF_ERROR(assembly_->onboarder->start(call));
  return OnboardHandle(std::move(call));
}

Result<OnboardHandle> KvBlockManager::onboard_async(std::span<const SequenceHash> hashes,
                                                    const OnboardOptions& options) {
  if (!options.prefixes.empty() && options.prefixes.size() != hashes.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu digests for %zu hashes; give one each, or none",
                      options.prefixes.size(), hashes.size());
  auto call = assembly_->onboarder->make_call(hashes, options, false);
  ASHLAR_RETURN_IF_ERROR(assembly_->onboarder->start(call));
  return OnboardHandle(std::move(call));
}

Result<OnboardHandle> KvBlockManager::prefetch(std::span<const SequenceHash> hashes,
                                               const OnboardOptions& options) {
  if (!options.prefixes.empty() && options.prefixes.size() != hashes.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu digests for %zu hashes; give one each, or none",
                      options.prefixes.size(), hashes.size());
  auto call = assembly_->onboarder->make_call(hashes, options, true);
  ASHLAR_RETURN_IF_ERROR(assembly_->onboarder->start(call));
  return OnboardHandle(std::move(call));
}

bool KvBlockManager::probes() const {
  return assembly_->onboarder->probes();
}

// ---- volumes

Result<void> KvBlockManager::register_volume(const VolumeDescriptor& descriptor, const VolumeUse& use) {
  if (assembly_->stack.g4 == nullptr)
    return make_error(ErrorCode::kUnsupported, "there is no G4; give KvOptions::g4 to have volumes");
  ASHLAR_TRY(std::unique_ptr<Volume> volume, assembly_->options.g4->kinds.attach(descriptor));
  ASHLAR_RETURN_IF_ERROR(assembly_->stack.g4->attach(descriptor.name, std::move(volume), use));
  const MutexLock lock(assembly_->listener_mu);
  if (assembly_->listener != nullptr) assembly_->name_locations(*assembly_->listener);
  return {};
}

Result<std::size_t> KvBlockManager::unregister_volume(std::string_view name,
                                                      std::optional<Clock::TimePoint> until) {
  if (assembly_->stack.g4 == nullptr)
    return make_error(ErrorCode::kUnsupported, "there is no G4, hence no volume");
  return assembly_->stack.g4->detach(name, until);
}

// ---- all

Result<std::size_t> KvBlockManager::reset(events::TierId tier, std::optional<Clock::TimePoint> until) {
  TierStack& stack = assembly_->stack;
  if (tier == kTierId<G1>) return g1().reset_inactive_pool();
  if (tier == kTierId<G2> && stack.g2) {
    if (assembly_->remote_core != nullptr && assembly_->remote_core->server != nullptr)
      assembly_->remote_core->server->withdraw_all();
    const std::size_t removed = stack.g2_manager->reset_inactive_pool();
    // Again: a peer may have asked meanwhile.
    if (assembly_->remote_core != nullptr && assembly_->remote_core->server != nullptr)
      assembly_->remote_core->server->withdraw_all();
    return removed;
  }
  if (tier == kTierId<events::Remote> && stack.remote) return stack.remote->forget_all();
  if (tier == kTierId<G3> || tier == kTierId<G4>) assembly_->pins->forget_in(tier);
  if (tier == kTierId<G3> && stack.g3) return stack.g3->remove_everything();
  if (tier == kTierId<G4> && stack.g4) {
    std::vector<SequenceHash> hashes;
    stack.g4_manager->for_each_registered(
        [&](const SequenceHash& hash, block::BlockId) { hashes.push_back(hash); });
    ASHLAR_RETURN_IF_ERROR(stack.g4->remove_all(hashes, {.deadline = until}));
    return hashes.size();
  }
  return no_tier(tier, "to reset");
}

// Copies in flight would bring the blocks back: queued ones are dropped, the others finish first, from the
// top tier down, since a block gone above cannot be offered again. The claim keeps other calls from
// onboarding them.
Result<void> KvBlockManager::reset_blocks(std::span<const SequenceHash> hashes,
                                          std::optional<Clock::TimePoint> until) {
  TierStack& stack = assembly_->stack;
  std::optional<Error> error;
  const auto note = [&](const Result<void>& removed) {
    if (!removed && removed.error().code() != ErrorCode::kNotFound && !error) error = removed.error();
  };
  const auto withdraw = [&](std::initializer_list<OffloadWorker*> workers) {
    for (OffloadWorker* const worker : workers)
      if (worker != nullptr)  // a volume may never answer
        worker->withdraw(hashes, worker == assembly_->to_g4.get() ? OffloadWorker::Started::kStop
                                                                  : OffloadWorker::Started::kFinish);
  };
  const Onboarder::Claim claim(*assembly_->onboarder, hashes, until);
  if (!claim)
    return make_error(ErrorCode::kTimeout,
                      "none of %zu blocks was removed: some were still being onboarded at the deadline",
                      hashes.size());
  assembly_->pins->forget(hashes);
  withdraw({assembly_->to_g2.get(), assembly_->to_g3.get(), assembly_->to_g4.get()});
  if (assembly_->remote_core != nullptr && assembly_->remote_core->server != nullptr)
    assembly_->remote_core->server->withdraw(hashes);
  for (const SequenceHash& hash : hashes) note(stack.g1->remove(hash));
  withdraw({assembly_->to_g2.get()});
  if (stack.g2 != nullptr)
    for (const SequenceHash& hash : hashes) note(stack.g2->remove(hash));
  withdraw({assembly_->to_g3.get(), assembly_->to_g4.get()});
  if (stack.remote != nullptr)
    for (const SequenceHash& hash : hashes) note(stack.remote->remove(hash));
  if (stack.g3 != nullptr) note(stack.g3->remove_all(hashes));
  if (stack.g4 != nullptr) note(stack.g4->remove_all(hashes, {.deadline = until}));
  return error ? Result<void>(*error) : Result<void>();
}

KvStatus KvBlockManager::status() const {
  const TierStack& stack = assembly_->stack;
  KvStatus status;
  const auto of = [&](const auto& manager, const TierPool& pool) {
    const KvMetrics::Tier& counters = stack.metrics.of(pool.tier());
    return TierStatus{manager.status(),           counters.hits.value(),
                      counters.onboarded.value(), pool.records().evictions().value(),
                      counters.damaged.value(),   counters.failed.value()};
  };
  status.g1 = of(*stack.g1_manager, *stack.g1);
  if (stack.g2 != nullptr) status.g2 = of(*stack.g2_manager, *stack.g2);
  if (stack.g3 != nullptr) status.g3 = of(*stack.g3_manager, *stack.g3);
  if (stack.g4 != nullptr) status.g4 = of(*stack.g4_manager, *stack.g4);
  if (stack.remote != nullptr) status.remote = of(*stack.remote_manager, *stack.remote);
  for (std::size_t i = 0; i < kMisses; ++i) status.misses[i] = stack.metrics.missed(static_cast<Miss>(i));
  if (assembly_->to_g2 != nullptr) status.to_g2 = assembly_->to_g2->counters();
  if (assembly_->to_g3 != nullptr) status.to_g3 = assembly_->to_g3->counters();
  if (assembly_->to_g4 != nullptr) status.to_g4 = assembly_->to_g4->counters();
  if (stack.g4 != nullptr) status.volumes = stack.g4->volumes();
  if (stack.g4 != nullptr) status.shard_refusal = stack.g4->last_refusal();
  return status;
}

Result<std::vector<MetricRegistration>> KvBlockManager::add_metrics(MetricRegistry& metrics,
                                                                    const MetricLabels& labels) const {
  const TierStack& stack = assembly_->stack;
  std::vector<MetricRegistration> out;
  const auto gauge = [&](const TierPool& pool, const char* name, const char* help,
                         std::function<double()> value) -> Result<void> {
    KvMetrics::Labels with_tier = labels;
    with_tier.emplace_back("tier", std::string(pool.name()));
    ASHLAR_TRY(MetricRegistration added, metrics.add({name, help, with_tier}, std::move(value)));
    out.push_back(std::move(added));
    return {};
  };
  const auto add = [&](const auto& manager, const TierPool& pool) -> Result<void> {
    ASHLAR_RETURN_IF_ERROR(stack.metrics.add_tier(metrics, labels, pool, out));
    ASHLAR_TRY(std::vector<MetricRegistration> of_manager, manager.add_metrics(metrics, labels));
    std::ranges::move(of_manager, std::back_inserter(out));
    ASHLAR_RETURN_IF_ERROR(gauge(pool, "ashlar_tier_capacity_blocks", "Capacity of the tier in blocks.",
                                 [&manager] { return static_cast<double>(manager.total_blocks()); }));
    return gauge(pool, "ashlar_tier_blocks", "Blocks in the tier.", [&manager] {
      const block::PoolStatus pool_status = manager.status();
      return static_cast<double>(pool_status.total - pool_status.reset - pool_status.owned);
    });
  };
  ASHLAR_RETURN_IF_ERROR(add(*stack.g1_manager, *stack.g1));
  if (stack.g2 != nullptr) ASHLAR_RETURN_IF_ERROR(add(*stack.g2_manager, *stack.g2));
  if (stack.g3 != nullptr) ASHLAR_RETURN_IF_ERROR(add(*stack.g3_manager, *stack.g3));
  if (stack.g4 != nullptr) ASHLAR_RETURN_IF_ERROR(add(*stack.g4_manager, *stack.g4));
  if (stack.remote != nullptr) {
    ASHLAR_RETURN_IF_ERROR(add(*stack.remote_manager, *stack.remote));
    ASHLAR_RETURN_IF_ERROR(add_remote_metrics(*assembly_->remote_core, metrics, labels, out));
  }
  ASHLAR_RETURN_IF_ERROR(stack.metrics.add_misses(metrics, labels, stack.pools(), out));
  const auto add_route = [&](const OffloadWorker* worker, const TierPool* from) -> Result<void> {
    return worker == nullptr ? Result<void>() : add_offload_metrics(*worker, *from, metrics, labels, out);
  };
  ASHLAR_RETURN_IF_ERROR(add_route(assembly_->to_g2.get(), stack.g1.get()));
  ASHLAR_RETURN_IF_ERROR(add_route(assembly_->to_g3.get(), stack.g2.get()));
  ASHLAR_RETURN_IF_ERROR(add_route(assembly_->to_g4.get(), stack.g2.get()));
  for (const bool queued : {true, false}) {
    MetricLabels stage = labels;
    stage.emplace_back("stage", queued ? "queued" : "running");
    ASHLAR_TRY(
        MetricRegistration added,
        metrics.add({"ashlar_onboard_calls", "Onboard calls on threads of the manager, by stage.", stage},
                    [&onboarder = *assembly_->onboarder, queued] {
                      const Onboarder::Calls calls = onboarder.calls();
                      return static_cast<double>(queued ? calls.queued : calls.running);
                    }));
    out.push_back(std::move(added));
  }
  if (stack.g4 != nullptr) ASHLAR_RETURN_IF_ERROR(stack.g4->add_metrics(metrics, labels, out));
  return out;
}

void KvBlockManager::check_invariants() const {
  assembly_->each_manager([](const auto& manager) {
    // Peers withdraw their blocks at any time; the pool of that tier checks while none does.
    if constexpr (!std::is_same_v<decltype(manager), const block::BlockManager<events::Remote>&>)
      manager.check_invariants();
  });
  for (const OffloadWorker* const worker :
       {assembly_->to_g2.get(), assembly_->to_g3.get(), assembly_->to_g4.get()})
    if (worker != nullptr) worker->check_invariants();
  if (assembly_->stack.g3 != nullptr) assembly_->stack.g3->check_invariants();
  if (assembly_->stack.g4 != nullptr) assembly_->stack.g4->check_invariants();
  if (assembly_->stack.remote != nullptr) assembly_->stack.remote->check_invariants();
  if (assembly_->remote_core != nullptr && assembly_->remote_core->server != nullptr)
    assembly_->remote_core->server->leases().check_invariants();
  assembly_->onboarder->check_invariants();
}

// The sink is called without a lock, since it may call anything.
std::size_t KvBlockManager::drain_events(events::EventSink& sink) {
  std::vector<std::shared_ptr<events::EventLog>> logs;
  assembly_->each_manager([&](const auto& manager) {
    if (manager.event_log() != nullptr) logs.push_back(manager.event_log());
  });
  struct DrainTurn {  // ends also when the sink throws
    Assembly& assembly;
    ~DrainTurn() {
      const MutexLock lock(assembly.listener_mu);
      assembly.draining = false;
    }
  };
  const auto has_more = [](const auto& log) { return log->pending() != 0; };
  std::size_t count = 0;
  std::size_t last = 0;
  do {
    {
      const MutexLock lock(assembly_->listener_mu);
      if (assembly_->listener != nullptr || assembly_->draining) return count;
      assembly_->draining = true;
    }
    const DrainTurn turn{*assembly_};
    last = 0;
    for (const auto& log : logs) last += log->drain(sink);
    count += last;
    // Again for events that came behind their log's turn: a drain for them may have been turned away.
  } while (last != 0 && std::ranges::any_of(logs, has_more));
  return count;
}

Result<std::uint64_t> KvBlockManager::list_stored(events::TierId tier,
                                                  std::vector<events::KvEvent>& out) const {
  if (assembly_->options.event_capacity == 0)
    return make_error(ErrorCode::kNotReady, "the tiers make no events; set event_capacity");
  std::optional<std::uint64_t> next;
  assembly_->each_manager([&]<events::Tier Tier>(block::BlockManager<Tier>& manager) {
    if (events::kTierId<Tier> == tier) next = manager.list_stored(out);
  });
  if (!next) return no_tier(tier, "to list");
  return *next;
}

void KvBlockManager::Assembly::name_locations(events::EventManager& events) const {
  if (options.g3)
    for (std::size_t i = 0; i < options.g3->paths.size(); ++i)
      events.name_location(EventLocation::file(i), options.g3->paths[i]);
  if (stack.remote != nullptr)
    for (const auto& [number, name] : stack.remote->peer_names())
      events.name_location(EventLocation::peer(number), name);
  if (stack.g4 == nullptr) return;
  for (const VolumeStatus& volume : stack.g4->volumes())
    events.name_location(EventLocation::volume(volume.number), volume.name);
}

Result<void> KvBlockManager::attach_events(events::EventManager& events) {
  if (assembly_->options.event_capacity == 0)
    return make_error(ErrorCode::kNotReady, "the tiers make no events; set event_capacity");
  const MutexLock lock(assembly_->listener_mu);
  if (assembly_->listener != nullptr)
    return make_error(ErrorCode::kAlreadyExists,
                      "the tiers are attached to an EventManager; call detach_events() first");
  if (assembly_->draining)
    return make_error(ErrorCode::kNotReady, "drain_events() is at work; attach when it has returned");
  assembly_->listener = &events;
  assembly_->name_locations(events);
  events.add_accesses(assembly_->options.accesses);
  Result<void> added;
  assembly_->each_manager([&](auto& manager) {
    if (!added) return;
    added = events.add_source(manager.event_log(), [&manager](std::vector<events::KvEvent>& out) {
      return manager.list_stored(out);
    });
  });
  if (!added) assembly_->detach_locked();
  return added;
}

void KvBlockManager::Assembly::detach_locked() {
  events::EventManager* events = std::exchange(listener, nullptr);
  if (events == nullptr) return;
  // One that was never added is not found.
  each_manager([&](const auto& manager) { static_cast<void>(events->remove_source(manager.event_log())); });
}

void KvBlockManager::detach_events() {
  const MutexLock lock(assembly_->listener_mu);
  assembly_->detach_locked();
}

}  // namespace ashlar::tiers
