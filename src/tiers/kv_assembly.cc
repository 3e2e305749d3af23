#include "tiers/kv_assembly.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>

#include "ashlar/base/log.h"
#include "ashlar/transfer/host_executors.h"
#include "ashlar/transfer/transfer_engine.h"
#include "tiers/disk/lowest_first_allocator.h"
#include "tiers/tier_memory.h"

namespace ashlar::tiers {

using events::G1;
using events::G2;
using events::G3;
using events::G4;
using tokens::SequenceHash;
using transfer::BlockSet;

namespace {

Result<std::shared_ptr<transfer::Executor>> host_executor(Clock* clock) {
  ASHLAR_TRY(std::unique_ptr<transfer::MemcpyExecutor> memory,
             transfer::MemcpyExecutor::create({.clock = clock}));
  ASHLAR_TRY(std::unique_ptr<transfer::FileExecutor> files, transfer::FileExecutor::create({.clock = clock}));
  transfer::TransferEngineOptions options;
  options.clock = clock;
  options.executors = {std::move(memory), std::move(files)};
  return transfer::TransferEngine::create(std::move(options))
      .transform([](std::unique_ptr<transfer::TransferEngine>&& engine) {
        return std::shared_ptr<transfer::Executor>(std::move(engine));
      });
}

std::uint64_t block_bytes(const KvOptions& options) {
  std::uint64_t bytes = options.model.block_bytes();
  for (const layout::LayoutConfig& plane : options.scales) bytes += plane.block_bytes();
  return bytes;
}

// In G3 the lowest block first: blocks written together are adjacent.
std::unique_ptr<block::ResetAllocator> lowest_first(std::uint32_t blocks) {
  return std::make_unique<LowestFirstAllocator>(blocks);
}

// Peers on this machine map it; without an allocator of the user's, that is what they get.
std::shared_ptr<storage::Allocator> shared_memory(const std::shared_ptr<storage::Allocator>& given) {
  return given != nullptr ? given : std::make_shared<storage::SharedAllocator>();
}

// Suggests blocks to a worker as they come, up to so many of one priority at a time.
class EqualPriorities {
 public:
  explicit EqualPriorities(OffloadWorker& worker) : worker_(worker) {}
  void add(const SequenceHash& hash, std::uint8_t priority) {
    if (count_ == hashes_.size() || priority != priority_) flush();
    priority_ = priority;
    hashes_[count_++] = hash;
  }
  // Suggests the last ones.
  void flush() { worker_.suggest(std::span(hashes_).first(std::exchange(count_, 0)), priority_); }

 private:
  OffloadWorker& worker_;
  std::array<SequenceHash, 64> hashes_;
  std::size_t count_ = 0;
  std::uint8_t priority_ = 0;
};

std::uint32_t blocks_of(const TierShape& shape) {
  if (shape.block_count != 0 || shape.blocks == nullptr) return shape.block_count;
  return shape.blocks->planes()[0].layout.config().block_count;
}

// "multi_lru" by name orders blocks by counts of uses. They are of names in all tiers, so the sketch has room
// for all.
std::optional<block::TinyLfuOptions> counts_for(const KvOptions& options) {
  std::size_t blocks = 0;
  bool is_needed = false;
  const auto add = [&](const EvictionChoice& eviction, std::uint32_t count) {
    blocks += count;
    const std::string* const name = std::get_if<std::string>(&eviction);
    is_needed |= name != nullptr && *name == "multi_lru";
  };
  add(options.g1.eviction, blocks_of(options.g1));
  if (options.g2) add(options.g2->eviction, blocks_of(*options.g2));
  if (options.g3) add(options.g3->eviction, options.g3->block_count);
  if (options.g4) add(options.g4->eviction, options.g4->block_count);
  if (!is_needed) return std::nullopt;
  return block::TinyLfuOptions::for_pool(blocks);
}

Result<block::EvictionFactory> factory_of(const EvictionChoice& choice) {
  if (const std::string* name = std::get_if<std::string>(&choice)) return block::eviction_by_name(*name);
  return std::get<block::EvictionFactory>(choice);
}

}  // namespace

Result<void> KvBlockManager::Assembly::open() {
  if (options.clock != nullptr) stack.clock = options.clock;
  block::RegistryOptions registry_options = options.registry;
  registry_options.name_space = options.keys;
  if (!registry_options.frequency) registry_options.frequency = counts_for(options);
  ASHLAR_TRY(stack.registry, block::BlockRegistry::create(registry_options));
  stack.executor = options.executor;
  if (stack.executor == nullptr) {
    ASHLAR_TRY(stack.executor, host_executor(stack.clock));
  }
  stack.mover = std::make_unique<BlockMover>(
      *stack.executor, BlockMover::Options{.keys = options.keys,
                                           .read_back_after_write = options.read_back_after_write,
                                           .clock = stack.clock,
                                           .values = &stack.values});
  ASHLAR_RETURN_IF_ERROR(open_memory());
  if (options.g3) ASHLAR_RETURN_IF_ERROR(open_disk());
  if (options.g4) ASHLAR_RETURN_IF_ERROR(open_volumes());
  if (options.remote) ASHLAR_RETURN_IF_ERROR(open_remote());
  pins = std::make_shared<PinBoard>(*stack.clock);
  for (TierPool* const pool : stack.pools()) {
    pool->records().on_arrival(
        [this, pool](std::span<const block::RegisteredBlock> blocks) { pins->arrived(*pool, blocks); });
    pool->records().on_removal([this, pool](std::span<const SequenceHash> hashes) {
      pins->removed(pool->tier(), hashes);
      if (pool == stack.g2.get() && remote_core != nullptr && remote_core->server != nullptr)
        remote_core->server->withdraw(hashes);
    });
  }
  ASHLAR_RETURN_IF_ERROR(open_workers());
  onboarder =
      std::make_unique<Onboarder>(stack, Onboarder::Options{.threads = std::max(1u, options.onboard_threads),
                                                            .block_size = options.block_size,
                                                            .layers = options.model.num_layers,
                                                            .probe = options.g4 && options.g4->probe,
                                                            .arrived = [this] {
                                                              look_ahead_g1();
                                                              look_ahead_g2();
                                                            }});
  source = std::make_unique<KvPrefixSource>(
      stack, *onboarder, [this](std::span<const SequenceHash> hashes) { offer_leaving(hashes); });
  stack.g1_manager->set_prefix_source(*source);
  // Last: peers find a whole manager.
  if (Result<void> met = meet_peers(); !met) {
    if (remote_core->server != nullptr) remote_core->server->stop();
    stack.remote->stop();
    return met;
  }
  return relay->start();
}

Result<void> KvBlockManager::Assembly::meet_peers() {
  if (remote_core == nullptr) return {};
  ASHLAR_RETURN_IF_ERROR(stack.remote->start());
  if (remote_core->server == nullptr) return {};
  ASHLAR_RETURN_IF_ERROR(remote_core->server->start());
  if (PeerFinder* const finder = stack.remote->finder()) ASHLAR_RETURN_IF_ERROR(finder->announce());
  return {};
}

template <events::Tier Tier, class Shape>
Result<void> KvBlockManager::Assembly::open_manager(const Shape& shape,
                                                    std::optional<block::BlockManager<Tier>>& out) const {
  constexpr bool kIsG1 = std::is_same_v<Tier, G1>;
  const PoolOptions& pool = shape.pool;
  block::ManagerOptions manager;
  manager.block_count = shape.block_count;
  manager.block_size = options.block_size;
  manager.registry = *stack.registry;
  manager.duplicates = pool.duplicates;
  ASHLAR_TRY(manager.eviction, factory_of(shape.eviction));
  manager.reset_allocator = pool.reset_allocator;
  if (std::is_same_v<Tier, G3> && !manager.reset_allocator) manager.reset_allocator = lowest_first;
  if (options.event_capacity != 0)
    manager.events = std::make_shared<events::EventLog>(options.event_capacity);
  manager.accesses = options.accesses;
  manager.block_bytes = static_cast<std::uint32_t>(std::min<std::uint64_t>(block_bytes(options), UINT32_MAX));
  manager.clock = stack.clock;
  manager.default_reset_on_release = pool.default_reset_on_release;
  manager.keep_tokens = pool.keep_tokens;
  manager.prefix_key = prefix_key();
  manager.max_pins = pool.max_pins;
  manager.watermarks = pool.watermarks;
  manager.on_pressure = kIsG1 ? pool.on_pressure : PressureRelay::relayed(relay, pool.on_pressure);
  Result<block::BlockManager<Tier>> made = block::BlockManager<Tier>::create(manager);
  if (!made) return Error(made.error().code(), std::string(Tier::kName) + ": " + made.error().message());
  out.emplace(*std::move(made));
  return {};
}

Result<void> KvBlockManager::Assembly::open_memory() {
  ASHLAR_RETURN_IF_ERROR(open_manager(options.g1, stack.g1_manager));
  ASHLAR_TRY(std::shared_ptr<const BlockSet> memory, memory_of(options, options.g1, "g1"));
  stack.g1 = std::make_unique<MemoryPool<G1>>(*stack.g1_manager, std::move(memory),
                                              events::StorageTier::kDevice, *stack.clock);
  stack.g1_manager->observe(*this);
  if (!options.g2) return {};
  ASHLAR_RETURN_IF_ERROR(open_manager(*options.g2, stack.g2_manager));
  TierShape host = *options.g2;
  if (options.remote && options.remote->serve && host.memory.empty() && host.blocks == nullptr)
    host.allocator = shared_memory(host.allocator);
  ASHLAR_TRY(memory, memory_of(options, host, "g2"));
  if (!memory->host_accessible())
    return make_error(ErrorCode::kInvalidArgument,
                      "g2 is in memory that the host cannot read; blocks are checked there");
  ASHLAR_RETURN_IF_ERROR(check_copies(*stack.executor, stack.g1->blocks(), memory));
  stack.g2 = std::make_unique<MemoryPool<G2>>(*stack.g2_manager, std::move(memory),
                                              events::StorageTier::kHost, *stack.clock);
  stack.g2_manager->observe(host_observer);
  return {};
}

// A failed device is left out while others remain; a file that is not ours is an error.
Result<void> KvBlockManager::Assembly::open_disk() {
  const DiskShape& shape = *options.g3;
  ASHLAR_RETURN_IF_ERROR(open_manager(shape, stack.g3_manager));
  std::vector<std::unique_ptr<G3File>> files;
  std::optional<Error> failure;
  for (std::size_t i = 0; i < shape.paths.size(); ++i) {
    ASHLAR_TRY(std::vector<transfer::PlaneShape> planes,
               planes_of(options, DiskPool::share(shape.block_count, i, shape.paths.size()),
                         layout::order::kFullyContiguousNhd, 4096));
    Result<std::unique_ptr<G3File>> file =
        G3File::open({.path = shape.paths[i],
                      .planes = std::move(planes),
                      .keys = options.keys,
                      .scheme_fingerprint = options.scheme_fingerprint,
                      .prefix_key = prefix_key().fingerprint(),
                      .survive_power_loss = shape.survive_power_loss,
                      .faults = shape.faults.empty() ? nullptr : shape.faults[i]});
    if (file) {
      files.push_back(*std::move(file));
      continue;
    }
    const ErrorCode code = file.error().code();
    const bool absent = code == ErrorCode::kIo || code == ErrorCode::kNotFound;  // the device, or its folder
    if (!absent || shape.paths.size() == 1) return file.error();
    ASHLAR_LOG(LogLevel::kError, "tiers", "G3 continues without one of its files: %s",
               file.error().to_string().c_str());
    failure = file.error();
    files.push_back(nullptr);
  }
  if (failure && std::ranges::all_of(files, [](const auto& file) { return file == nullptr; }))
    return *failure;
  ASHLAR_TRY(stack.g3, DiskPool::create(*stack.g3_manager, std::move(files), {.clock = stack.clock}));
  return {};
}

Result<void> KvBlockManager::Assembly::open_volumes() {
  const VolumeShape& shape = *options.g4;
  ASHLAR_RETURN_IF_ERROR(open_manager(shape, stack.g4_manager));
  const VolumeObject object = VolumeObject::describe(*stack.g2->blocks(), options.keys,
                                                     options.scheme_fingerprint, prefix_key().fingerprint());
  ASHLAR_TRY(const std::shared_ptr<const OtherShards> others,
             OtherShards::create(*stack.g2->blocks(), object, shape.other_shards));
  stack.g4 = std::make_unique<VolumePool>(
      *stack.g4_manager, VolumePool::Options{.shape = object,
                                             .remove_evicted = shape.remove_evicted,
                                             .read_back_after_write = options.read_back_after_write,
                                             .others = others,
                                             .rest = shape.rest,
                                             .call_limit = shape.call_limit,
                                             .clock = stack.clock});
  for (const VolumeDescriptor& descriptor : shape.volumes) {
    ASHLAR_TRY(std::unique_ptr<Volume> volume, shape.kinds.attach(descriptor));
    ASHLAR_RETURN_IF_ERROR(stack.g4->attach(descriptor.name, std::move(volume)));
  }
  return {};
}

Result<void> KvBlockManager::Assembly::open_remote() {
  const RemoteShape& shape = *options.remote;
  std::shared_ptr<transfer::RemoteAgent> agent = shape.agent;
  if (agent == nullptr) {
    ASHLAR_TRY(agent, transfer::RemoteAgent::create(*shape.own_agent));
  }
  const transfer::BlockSetNames names{.keys = options.keys,
                                      .scheme_fingerprint = options.scheme_fingerprint,
                                      .prefix_key_fingerprint = prefix_key().fingerprint()};
  const VolumeShape tracked{.block_count = shape.block_count};  // a tier without bytes of its own
  ASHLAR_RETURN_IF_ERROR(open_manager(tracked, stack.remote_manager));
  std::optional<PeerFinder::Options> finder;
  if (shape.rendezvous != nullptr)
    finder = {.place = shape.rendezvous,
              .group = shape.group,
              .look_again = shape.look_again,
              .rest = shape.rest,
              .call_limit = shape.call_limit,
              .clock = stack.clock};
  const auto named = [this](std::uint16_t number, const std::string& name) {
    const MutexLock lock(listener_mu);
    if (listener != nullptr) listener->name_location(EventLocation::peer(number), name);
  };
  stack.remote = std::make_unique<RemotePool>(*stack.remote_manager, agent, stack.g2->blocks(),
                                              RemotePool::Options{.names = names,
                                                                  .peers = shape.peers,
                                                                  .finder = std::move(finder),
                                                                  .directory = shape.directory,
                                                                  .ask_peers = shape.ask_peers,
                                                                  .lease = shape.lease,
                                                                  .renew = shape.renew,
                                                                  .call_limit = shape.call_limit,
                                                                  .copy_limit = shape.copy_limit,
                                                                  .rest = shape.rest,
                                                                  .patience = shape.patience,
                                                                  .named = named,
                                                                  .clock = stack.clock});
  remote_core = std::make_shared<RemoteCore>();
  remote_core->agent = agent;
  remote_core->pool = stack.remote.get();
  remote_core->g2 = stack.g2.get();
  remote_core->names = names;
  remote_core->clock = stack.clock;
  remote_core->lease = shape.lease;
  remote_core->copy_limit = shape.copy_limit;
  remote_core->fetch = [this](std::span<const SequenceHash> hashes, const std::string& from,
                              std::optional<Clock::TimePoint> until) { return fetch(hashes, from, until); };
  remote_core->each_in_memory = [this](const std::function<void(const SequenceHash&)>& visit) {
    const auto visit_it = [&](const SequenceHash& hash, block::BlockId) { visit(hash); };
    stack.g1_manager->for_each_registered(visit_it);
    stack.g2_manager->for_each_registered(visit_it);
  };
  remote_core->is_in_memory = [this](const SequenceHash& hash) {
    return stack.g1->has(hash) || stack.g2->has(hash);
  };
  remote.emplace(remote_core);
  if (!shape.serve) return {};
  std::shared_ptr<const BlockSet> landing;
  if (shape.landing_blocks != 0) {
    TierShape room{.block_count = shape.landing_blocks, .order = options.g2->order};
    room.allocator = shared_memory(options.g2->allocator);
    ASHLAR_TRY(landing, memory_of(options, room, "remote.landing"));
  }
  remote_core->server = std::make_unique<RemoteServer>(
      agent, *stack.g2, *stack.executor,
      RemoteServer::Options{
          .names = names,
          .limits = shape.limits,
          .longest_lease = shape.lease,
          .landing = std::move(landing),
          .pushed =
              [this](const transfer::AgentIdentity& peer, std::span<const TierRecord> records) {
                std::vector<SequenceHash> hashes;
                for (const TierRecord& record : records) {
                  arrived_in_g2(record.hash, record.retention.priority);
                  hashes.push_back(record.hash);
                }
                if (options.remote->on_pushed) options.remote->on_pushed(peer, hashes);
              },
          .each_block =
              [this](const std::function<void(const SequenceHash&)>& visit) {
                stack.g2_manager->for_each_registered(
                    [&](const SequenceHash& hash, block::BlockId) { visit(hash); });
              },
          .in_slot = [this](std::uint32_t slot) -> std::optional<SequenceHash> {
            const Result<block::BlockDescription> found = stack.g2_manager->describe(block::BlockId(slot));
            if (!found || !found->identity) return std::nullopt;
            return found->identity->hash;
          },
          .clock = stack.clock});
  stack.g2_manager->observe(*remote_core->server);
  return {};
}

std::string KvBlockManager::Assembly::fetch(std::span<const SequenceHash> hashes, const std::string& from,
                                            std::optional<Clock::TimePoint> until) {
  OnboardOptions how{.deadline = until, .sources = {from}};
  // Each stretch of a chain on its own: a hint may name blocks from the middle of several.
  std::string why;
  for (std::size_t first = 0; first < hashes.size();) {
    std::size_t end = first + 1;
    while (end < hashes.size() && hashes[end - 1].can_precede(hashes[end])) ++end;
    const auto call = onboarder->make_call(hashes.subspan(first, end - first), how, true);
    onboarder->run(call);
    for (const BlockOutcome& block : call->blocks())
      if (block.state == OnboardState::kMiss && block.miss != Miss::kBehind && why.empty())
        why = std::string("a block was not fetched: ") + std::string(to_string(block.miss));
    first = end;
  }
  return why;
}

Result<void> KvBlockManager::Assembly::open_workers() {
  const auto open_worker = [&](std::unique_ptr<OffloadWorker>& out, TierPool& from, TierPool& to,
                               const OffloadRoute& route, OffloadWorker::Begin begin,
                               OffloadWorker::Arrived arrived = {}) -> Result<void> {
    OffloadWorkerOptions worker_options = route.worker;
    if (!worker_options.uses)
      worker_options.uses = [this](const SequenceHash& hash) { return stack.registry->count(hash); };
    if (worker_options.clock == nullptr) worker_options.clock = stack.clock;
    // Held blocks cannot be evicted: small tiers must not be held entirely. A worker holds a deck and two
    // batches, G2 feeds up to three workers.
    const auto share = [](const TierPool& pool) { return std::max<std::size_t>(1, pool.capacity() / 16); };
    worker_options.queue.on_deck = std::min(worker_options.queue.on_deck, share(from));
    worker_options.batch_blocks = std::min({worker_options.batch_blocks, share(from), share(to)});
    worker_options.full_batch =
        std::min({worker_options.full_batch, worker_options.batch_blocks, worker_options.queue.on_deck});
    ASHLAR_TRY(
        std::unique_ptr<OffloadWorker> worker,
        OffloadWorker::create(from, to, std::move(begin), std::move(worker_options), std::move(arrived)));
    out = std::move(worker);
    return {};
  };
  if (stack.g4 != nullptr)
    if (const Result<void> opened = open_worker(
            to_g4, *stack.g2, *stack.g4, options.to_g4,
            [this](std::vector<block::Hold> holds, const MoveOptions& move) -> OffloadWorker::Finish {
              return [this, move, held = std::make_shared<std::vector<block::Hold>>(std::move(holds))] {
                std::vector<SequenceHash> hashes;
                for (const block::Hold& hold : *held) hashes.push_back(hold.sequence_hash());
                const LateValues::Before before = stack.values.before();
                MoveReport report = stack.g4->put(*stack.g2, std::move(*held), move);
                stack.values.arrived(before, *stack.g2, *stack.g4, hashes);
                return report;
              };
            });
        !opened)
      return opened;
  if (stack.g3 != nullptr)
    if (const Result<void> opened =
            open_worker(to_g3, *stack.g2, *stack.g3, options.to_g3,
                        [this](std::vector<block::Hold> holds, const MoveOptions& move) {
                          return begin_move(*stack.g2, *stack.g3, std::move(holds), move);
                        });
        !opened)
      return opened;
  if (stack.g2 == nullptr) return {};
  return open_worker(
      to_g2, *stack.g1, *stack.g2, options.to_g2,
      [this](std::vector<block::Hold> holds, const MoveOptions& move) {
        look_ahead_g2();
        return begin_move(*stack.g1, *stack.g2, std::move(holds), move);
      },
      [this](const SequenceHash& hash, std::uint8_t priority) { arrived_in_g2(hash, priority); });
}

OffloadWorker::Finish KvBlockManager::Assembly::begin_move(BytePool& from, BytePool& to,
                                                           std::vector<block::Hold> holds,
                                                           const MoveOptions& move) const {
  const std::shared_ptr<BlockMover::Running> running = stack.mover->begin(from, to, std::move(holds), move);
  return [running] { return running->finish(); };
}

void KvBlockManager::Assembly::arrived_in_g2(const SequenceHash& hash, std::uint8_t priority) {
  if (closed) return;
  const bool to_files = to_g3 != nullptr && options.to_g3.trigger == Trigger::kOnArrival;
  const bool to_volumes = to_g4 != nullptr && options.to_g4.trigger == Trigger::kOnArrival;
  if (!to_files && !to_volumes) return;
  // What was set while the block was copied counts.
  if (const std::optional<block::Hold> hold = stack.g2->hold(hash)) {
    const block::BlockRetention set = stack.g2->record(*hold).retention;
    if (set != block::BlockRetention()) priority = set.priority;
  }
  if (to_files) to_g3->suggest(std::span(&hash, 1), priority);
  if (to_volumes) to_g4->suggest(std::span(&hash, 1), priority);
}

void KvBlockManager::Assembly::HostObserver::registered(
    std::span<const block::RegisteredBlock> blocks) noexcept {
  const auto offer = [&] {
    for (const block::RegisteredBlock& block : blocks)
      if (!block.copied && !assembly.closing)
        assembly.arrived_in_g2(block.identity.hash, block.retention.priority);
    if (!blocks.empty() && !blocks[0].copied) assembly.look_ahead_g2();
    return true;
  };
  unless_out_of_memory(offer, [] { return false; });
}

// Without memory a block is not offered: it stays in G1 alone, as if the queue had been full.
void KvBlockManager::Assembly::handed_out(std::span<const block::BlockId>) noexcept {
  unless_out_of_memory([&] { return look_ahead_g1(), true; }, [] { return false; });
}

void KvBlockManager::Assembly::registered(std::span<const block::RegisteredBlock> blocks) noexcept {
  if (blocks.empty()) return;
  const auto offer = [&] {
    if (to_g2 != nullptr && options.to_g2.trigger == Trigger::kOnArrival && !closing && !blocks[0].copied)
      offer_to_g2(blocks);
    look_ahead_g1();
    return true;
  };
  unless_out_of_memory(offer, [] { return false; });
}

void KvBlockManager::Assembly::offer_to_g2(std::span<const block::RegisteredBlock> blocks) {
  EqualPriorities fresh(*to_g2);
  for (const block::RegisteredBlock& block : blocks) fresh.add(block.identity.hash, block.retention.priority);
  fresh.flush();
}

// The new priority also orders what is already on its way down.
void KvBlockManager::Assembly::retention_set(const SequenceHash& hash,
                                             const block::BlockRetention& retention) noexcept {
  if (to_g2 != nullptr) to_g2->set_priority(hash, retention.priority);
}

void KvBlockManager::Assembly::HostObserver::retention_set(const SequenceHash& hash,
                                                           const block::BlockRetention& retention) noexcept {
  for (OffloadWorker* const worker : {assembly.to_g3.get(), assembly.to_g4.get()})
    if (worker != nullptr) worker->set_priority(hash, retention.priority);
}

template <events::Tier Tier>
void KvBlockManager::Assembly::look_ahead(block::BlockManager<Tier>& manager, TierPool& pool,
                                          const OffloadRoute& route, OffloadWorker* worker, TierPool* below) {
  if (worker == nullptr || route.trigger != Trigger::kNearEviction || closing) return;
  const std::size_t empty = manager.status().reset;
  if (empty >= route.look_ahead) return;
  // Ends of sequences are evicted first; their beginnings are stored first.
  std::vector<SequenceHash> victims = manager.eviction_candidates(route.look_ahead - empty);
  std::ranges::sort(victims, {}, [](const SequenceHash& hash) { return std::pair(hash.position(), hash); });
  offer(victims, pool, *worker, *below);
}

void KvBlockManager::Assembly::offer(std::span<const SequenceHash> blocks, TierPool& pool,
                                     OffloadWorker& worker, TierPool& below) {
  EqualPriorities absent(worker);
  for (const SequenceHash& hash : blocks) {
    if (below.has(hash)) continue;
    if (const std::optional<block::Hold> hold = pool.hold(hash))
      absent.add(hash, pool.record(*hold).retention.priority);
  }
  absent.flush();
}

void KvBlockManager::Assembly::offer_leaving(std::span<const SequenceHash> hashes) {
  if (to_g2 != nullptr && !closing) offer(hashes, *stack.g1, *to_g2, *stack.g2);
}

void KvBlockManager::Assembly::look_ahead_g1() {
  look_ahead(*stack.g1_manager, *stack.g1, options.to_g2, to_g2.get(), stack.g2.get());
}

void KvBlockManager::Assembly::look_ahead_g2() {
  if (!stack.g2_manager) return;
  look_ahead(*stack.g2_manager, *stack.g2, options.to_g3, to_g3.get(), stack.g3.get());
  look_ahead(*stack.g2_manager, *stack.g2, options.to_g4, to_g4.get(), stack.g4.get());
}

}  // namespace ashlar::tiers
