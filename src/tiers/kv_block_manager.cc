#include "ashlar/tiers/kv_block_manager.h"

#include <algorithm>
#include <utility>

#include "ashlar/transfer/file_executor.h"
#include "ashlar/transfer/memcpy_executor.h"
#include "ashlar/transfer/transfer_engine.h"

namespace ashlar::tiers {

using events::G1;
using events::G2;
using events::G3;
using tokens::SequenceHash;
using transfer::BlockSet;

namespace {

// Blocks that come up at a time: enough for the disk, few enough to leave G2 to others.
constexpr std::size_t kMaxBatch = 64;

Result<std::shared_ptr<transfer::Executor>> host_executor() {
  Result<std::unique_ptr<transfer::MemcpyExecutor>> memory = transfer::MemcpyExecutor::create();
  if (!memory) return memory.error();
  Result<std::unique_ptr<transfer::FileExecutor>> files = transfer::FileExecutor::create();
  if (!files) return files.error();
  transfer::EngineOptions options;
  options.executors = {*std::move(memory), *std::move(files)};
  return transfer::TransferEngine::create(std::move(options))
      .transform([](std::unique_ptr<transfer::TransferEngine>&& engine) {
        return std::shared_ptr<transfer::Executor>(std::move(engine));
      });
}

template <events::Tier Tier>
Result<block::BlockManager<Tier>> manager_of(const KvOptions& options, const block::BlockRegistry& registry,
                                             std::uint32_t blocks, const std::string& eviction) {
  return block::BlockManager<Tier>::builder()
      .block_count(blocks)
      .block_size(options.block_size)
      .registry(registry)
      .duplicate_policy(block::DuplicatePolicy::kReject)
      .with_backend(std::string_view(eviction))
      .build();
}

}  // namespace

Result<void> KvOptions::validate() const {
  const auto bad = [](const char* what) { return make_error(ErrorCode::kInvalidArgument, "%s", what); };
  if (g1.blocks == 0) return bad("g1.blocks is 0; blocks are computed in G1");
  if (g2 && g2->blocks == 0) return bad("g2.blocks is 0; leave g2 out where there is none");
  if (g3 && (g3->blocks == 0 || g3->path.empty()))
    return bad("g3 needs blocks and a path; leave it out where there is none");
  if (g3 && !g2) return bad("g3 needs g2: blocks are checked in host memory on their way up");
  if (model.page_size != block_size)
    return bad("model.page_size and block_size are both the tokens of a block, and differ");
  if (!to_g2 || !to_g3) return bad("a policy is empty; every_block() lets all through");
  return {};
}

Result<std::unique_ptr<KvBlockManager>> KvBlockManager::create(KvOptions options) {
  if (const Result<void> valid = options.validate(); !valid) return valid.error();
  std::unique_ptr<KvBlockManager> kv(new KvBlockManager(std::move(options)));
  if (const Result<void> opened = kv->open(); !opened) return opened.error();
  return kv;
}

KvBlockManager::KvBlockManager(KvOptions options) : options_(std::move(options)) {}

KvBlockManager::~KvBlockManager() {
  to_g2_.reset();
  to_g3_.reset();
}

Result<layout::Layout> KvBlockManager::layout_of(std::uint32_t blocks, const layout::AxisOrder& order) const {
  layout::LayoutConfig config = options_.model;
  config.num_blocks = blocks;
  return layout::Layout::create(config, order);
}

Result<void> KvBlockManager::open() {
  block::RegistryOptions registry_options = options_.registry;
  registry_options.name_space = options_.keys;
  Result<block::BlockRegistry> registry = block::BlockRegistry::create(registry_options);
  if (!registry) return registry.error();
  registry_ = *std::move(registry);
  if (options_.executor != nullptr) {
    executor_ = options_.executor;
  } else {
    Result<std::shared_ptr<transfer::Executor>> made = host_executor();
    if (!made) return made.error();
    executor_ = *std::move(made);
  }
  mover_ = std::make_unique<BlockMover>(*executor_, BlockMover::Options{.keys = options_.keys});

  const auto memory_of = [&](const TierShape& shape) -> Result<std::shared_ptr<const BlockSet>> {
    const Result<layout::Layout> layout = layout_of(shape.blocks, shape.order);
    if (!layout) return layout.error();
    storage::SystemAllocator plain;
    return BlockSet::allocate(*layout, shape.allocator == nullptr ? plain : *shape.allocator);
  };
  Result<block::BlockManager<G1>> g1 =
      manager_of<G1>(options_, *registry_, options_.g1.blocks, options_.g1.eviction);
  if (!g1) return g1.error();
  g1_manager_.emplace(*std::move(g1));
  Result<std::shared_ptr<const BlockSet>> g1_memory = memory_of(options_.g1);
  if (!g1_memory) return g1_memory.error();
  g1_pool_ =
      std::make_unique<MemoryPool<G1>>(*g1_manager_, *std::move(g1_memory), events::StorageTier::kDevice);
  if (!options_.g2) return {};

  Result<block::BlockManager<G2>> g2 =
      manager_of<G2>(options_, *registry_, options_.g2->blocks, options_.g2->eviction);
  if (!g2) return g2.error();
  g2_manager_.emplace(*std::move(g2));
  Result<std::shared_ptr<const BlockSet>> g2_memory = memory_of(*options_.g2);
  if (!g2_memory) return g2_memory.error();
  g2_pool_ =
      std::make_unique<MemoryPool<G2>>(*g2_manager_, *std::move(g2_memory), events::StorageTier::kHost);
  const auto uses = [this](const SequenceHash& hash) { return registry_->count(hash); };

  if (options_.g3) {
    Result<block::BlockManager<G3>> g3 =
        manager_of<G3>(options_, *registry_, options_.g3->blocks, options_.g3->eviction);
    if (!g3) return g3.error();
    g3_manager_.emplace(*std::move(g3));
    layout::LayoutConfig config = options_.model;
    config.num_blocks = options_.g3->blocks;
    config.alignment = std::max<std::uint64_t>(config.alignment, 4096);
    const Result<layout::Layout> layout = layout::Layout::create(config, layout::order::kFullyContiguousNhd);
    if (!layout) return layout.error();
    Result<std::unique_ptr<G3File>> file =
        G3File::open({.path = options_.g3->path,
                      .planes = {transfer::PlaneShape::whole(*layout)},
                      .keys = options_.keys,
                      .scheme_fingerprint = options_.scheme_fingerprint,
                      .survive_power_loss = options_.g3->survive_power_loss,
                      .faults = options_.g3->faults});
    if (!file) return file.error();
    Result<std::unique_ptr<DiskPool>> pool = DiskPool::create(*g3_manager_, *std::move(file));
    if (!pool) return pool.error();
    g3_pool_ = *std::move(pool);
    Result<std::unique_ptr<OffloadLane>> lane =
        OffloadLane::create(*g2_pool_, *g3_pool_,
                            [this](std::vector<block::Hold> holds) {
                              return mover_->move(*g2_pool_, *g3_pool_, std::move(holds));
                            },
                            {.policy = options_.to_g3, .uses = uses});
    if (!lane) return lane.error();
    to_g3_ = *std::move(lane);
  }
  Result<std::unique_ptr<OffloadLane>> lane = OffloadLane::create(
      *g1_pool_, *g2_pool_,
      [this](std::vector<block::Hold> holds) { return mover_->move(*g1_pool_, *g2_pool_, std::move(holds)); },
      {.policy = options_.to_g2, .uses = uses},
      [this](const SequenceHash& hash, std::uint8_t priority) {
        if (to_g3_ != nullptr) to_g3_->offload(std::span(&hash, 1), priority);
      });
  if (!lane) return lane.error();
  to_g2_ = *std::move(lane);
  return {};
}

std::vector<TierPool*> KvBlockManager::pools() const {
  std::vector<TierPool*> out = {g1_pool_.get()};
  if (g2_pool_ != nullptr) out.push_back(g2_pool_.get());
  if (g3_pool_ != nullptr) out.push_back(g3_pool_.get());
  return out;
}

Result<block::BlockList<block::ImmutableBlock<G1>>, Rejected<block::BlockList<block::CompleteBlock<G1>>>>
KvBlockManager::register_blocks(block::BlockList<block::CompleteBlock<G1>> blocks, std::uint8_t priority) {
  auto registered = g1_manager_->register_blocks(std::move(blocks));
  if (!registered || to_g2_ == nullptr) return registered;
  std::vector<SequenceHash> hashes;
  for (const block::ImmutableBlock<G1>& block : *registered) hashes.push_back(block.sequence_hash());
  to_g2_->offload(hashes, priority);
  return registered;
}

Result<OffloadHandle> KvBlockManager::offload(std::span<const SequenceHash> hashes, std::uint8_t priority) {
  if (to_g2_ == nullptr) return make_error(ErrorCode::kUnsupported, "there is no tier below G1");
  return to_g2_->offload(hashes, priority);
}

std::vector<TierRun> KvBlockManager::find(std::span<const SequenceHash> hashes) {
  const std::vector<TierPool*> tiers = pools();
  std::vector<TierRun> runs;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    const auto found = std::ranges::find_if(tiers, [&](TierPool* pool) { return pool->has(hashes[i]); });
    if (found == tiers.end()) break;
    if (!runs.empty() && runs.back().tier == (*found)->tier()) {
      ++runs.back().count;
    } else {
      runs.push_back({(*found)->tier(), i, 1});
    }
  }
  return runs;
}

void KvBlockManager::claim(std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  // All at once, so that two calls cannot each wait for what the other has.
  while (std::ranges::any_of(
      hashes, [&](const SequenceHash& hash) ASHLAR_REQUIRES(mu_) { return coming_.contains(hash); }))
    released_.wait(mu_);
  coming_.insert(hashes.begin(), hashes.end());
}

void KvBlockManager::release(std::span<const SequenceHash> hashes) {
  const MutexLock lock(mu_);
  for (const SequenceHash& hash : hashes) coming_.erase(hash);
  released_.notify_all();
}

std::size_t KvBlockManager::bring_up(std::span<const SequenceHash> hashes) {
  // What G2 has is held before others are brought there and could push it out.
  std::vector<block::Hold> ready;
  std::vector<SequenceHash> on_disk;
  for (const SequenceHash& hash : hashes) {
    if (g1_pool_->has(hash)) continue;  // somebody else brought it meanwhile
    if (std::optional<block::Hold> hold = g2_pool_->hold(hash)) {
      ready.push_back(*std::move(hold));
    } else if (g3_pool_ != nullptr) {
      on_disk.push_back(hash);
    }
  }
  const std::size_t in_memory = ready.size();
  MoveReport from_disk;
  if (!on_disk.empty()) from_disk = mover_->move(*g3_pool_, *g2_pool_, on_disk);
  for (const SequenceHash& hash : on_disk)
    if (std::optional<block::Hold> hold = g2_pool_->hold(hash)) ready.push_back(*std::move(hold));
  MoveReport up;
  if (!ready.empty()) up = mover_->move(*g2_pool_, *g1_pool_, std::move(ready));
  std::size_t arrived = 0;
  while (arrived < hashes.size() && g1_pool_->has(hashes[arrived])) ++arrived;
  const auto came = [&](std::size_t first, std::size_t end) {
    return static_cast<std::uint64_t>(std::count(
        up.blocks.begin() + static_cast<std::ptrdiff_t>(std::min(first, up.blocks.size())),
        up.blocks.begin() + static_cast<std::ptrdiff_t>(std::min(end, up.blocks.size())), Moved::kArrived));
  };
  const MutexLock lock(mu_);
  counters_.g2_counters.onboarded += came(0, in_memory);
  counters_.g3_counters.onboarded += came(in_memory, up.blocks.size());
  counters_.g3_counters.damaged += from_disk.count(Moved::kDamaged);
  return arrived;
}

block::BlockList<block::ImmutableBlock<G1>> KvBlockManager::onboard(std::span<const SequenceHash> hashes) {
  block::BlockList<block::ImmutableBlock<G1>> table;
  const std::vector<TierRun> runs = find(hashes);
  std::size_t known = 0;
  {
    const MutexLock lock(mu_);
    for (const TierRun& run : runs) {
      known += run.count;
      TierCounters& counters = run.tier == events::kTierId<G1>   ? counters_.g1_counters
                               : run.tier == events::kTierId<G2> ? counters_.g2_counters
                                                                 : counters_.g3_counters;
      counters.hits += run.count;
    }
    counters_.misses += hashes.size() - known;
  }
  while (table.size() < known) {
    // References to what is up already keep it there while the rest comes.
    g1_manager_->match_blocks(hashes.subspan(table.size(), known - table.size()), table);
    if (table.size() >= known || g2_pool_ == nullptr) break;
    const std::size_t batch = std::min({known - table.size(), kMaxBatch, g1_manager_->available_blocks(),
                                        std::max<std::size_t>(1, options_.g2->blocks / 2)});
    if (batch == 0) break;  // no room
    const std::span<const SequenceHash> next = hashes.subspan(table.size(), batch);
    claim(next);
    const std::size_t arrived = bring_up(next);
    const std::size_t before = table.size();
    g1_manager_->match_blocks(next.first(arrived), table);
    release(next);
    if (table.size() == before) break;  // no room, or it cannot be read
  }
  return table;
}

Result<std::size_t> KvBlockManager::reset(events::TierId tier) {
  if (tier == events::kTierId<G1>) return g1_manager_->reset_inactive_pool();
  if (tier == events::kTierId<G2> && g2_manager_) return g2_manager_->reset_inactive_pool();
  if (tier != events::kTierId<G3> || !g3_manager_)
    return make_error(ErrorCode::kNotFound, "there is no tier %u", unsigned{tier.value()});
  std::vector<SequenceHash> hashes;
  g3_manager_->for_each_registered([&](const SequenceHash& hash, block::BlockId) { hashes.push_back(hash); });
  for (const SequenceHash& hash : hashes)
    if (const Result<void> removed = g3_pool_->remove(hash);
        !removed && removed.error().code() != ErrorCode::kNotFound)
      return removed.error();
  return hashes.size();
}

Result<void> KvBlockManager::reset_blocks(std::span<const SequenceHash> hashes) {
  for (const SequenceHash& hash : hashes)
    for (TierPool* pool : pools())
      if (const Result<void> removed = pool->remove(hash);
          !removed && removed.error().code() != ErrorCode::kNotFound)
        return removed.error();
  return {};
}

void KvBlockManager::drain() {
  if (to_g2_ != nullptr) to_g2_->drain();
  if (to_g3_ != nullptr) to_g3_->drain();
}

KvStatus KvBlockManager::status() const {
  KvStatus status;
  {
    const MutexLock lock(mu_);
    status = counters_;
  }
  status.g1 = g1_manager_->status();
  if (g2_manager_) status.g2 = g2_manager_->status();
  if (g3_manager_) status.g3 = g3_manager_->status();
  if (to_g2_ != nullptr) status.to_g2 = to_g2_->counters();
  if (to_g3_ != nullptr) status.to_g3 = to_g3_->counters();
  return status;
}

}  // namespace ashlar::tiers
