#include "replay/real/kv_cache.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"
#include "ashlar/tiers/kv_block_manager.h"

namespace ashlar::replay {
namespace {

using block::BlockList;
using block::CompleteBlock;
using block::G1;
using tokens::SequenceHash;

constexpr std::uint32_t kRows = 16;  // of a block's bytes, as tokens

layout::LayoutConfig layout_of(std::uint32_t block_bytes) {
  return {.block_count = 1,
          .num_layers = 1,
          .outer_dim = 1,
          .block_size = kRows,
          .num_heads = 1,
          .head_dim = block_bytes / kRows,
          .inner_dim = block_bytes / kRows,
          .dtype = layout::Dtype::kU8,
          .alignment = 4'096};
}

// Blocks go down in as large batches as there may be, when drain() asks for them, one after the other: a
// worker with a budget, however large, begins none before the last has ended. So a run does not depend on
// time.
tiers::OffloadRoute route_of() {
  tiers::OffloadRoute route;
  route.worker.queue.on_deck = 65'536;
  route.worker.batch_blocks = 65'536;
  route.worker.full_batch = 65'536;
  route.worker.max_wait = std::chrono::hours(1);
  route.worker.bytes_per_second = UINT64_MAX;
  return route;
}

class KvCache final : public WorkerCache, private events::EventSink {
 public:
  // `batch`: blocks that are stored at a time.
  KvCache(const TraceTable& trace, std::unique_ptr<tiers::KvBlockManager> kv, std::size_t batch,
          Presence& presence, std::uint32_t worker, std::uint64_t& verified)
      : trace_(trace),
        kv_(std::move(kv)),
        batch_(batch),
        presence_(presence),
        worker_(worker),
        verified_(verified) {}

  Result<void> serve(std::span<const std::uint32_t> blocks, CacheChange& change) override {
    change.clear();
    hashes_.clear();
    for (const std::uint32_t number : blocks) hashes_.push_back(trace_.hash_of(number));
    const std::vector<tiers::TierRun> runs = kv_->find(hashes_);
    auto table = kv_->onboard(hashes_);
    for (const tiers::TierRun& run : runs)
      if (run.first < table.size())
        change.hits[run.tier.value()] +=
            static_cast<std::uint32_t>(std::min(run.count, table.size() - run.first));
    if (change.found() != table.size())
      return make_error(ErrorCode::kInternal, "%u blocks were found and %zu came", change.found(),
                        table.size());
    for (std::size_t i = 0; i < table.size(); ++i)
      ASHLAR_RETURN_IF_ERROR(verify(table[i].block_id().value(), blocks[i]));
    ASHLAR_RETURN_IF_ERROR(compute(blocks, table));
    change.is_cut = table.size() < blocks.size();
    kv_->drain();
    table.clear();
    change_ = &change;
    kv_->drain_events(*this);
    change_ = nullptr;
    return {};
  }

 private:
  template <class Table>
  Result<void> compute(std::span<const std::uint32_t> blocks, Table& table) {
    const std::size_t found = table.size();
    const std::size_t room = std::min(blocks.size() - found, kv_->g1().available_blocks());
    if (room == 0) return {};
    auto fresh = kv_->get_mutable_blocks(room);
    if (!fresh)
      return make_error(ErrorCode::kCapacity, "G1 has no room for %zu blocks, of which %zu were available",
                        room, room);
    BlockList<CompleteBlock<G1>> complete;
    for (std::size_t i = 0; i < room; ++i) {
      fill((*fresh)[i].block_id().value(), blocks[found + i]);
      complete.push_back(
          std::move((*fresh)[i]).stage(hashes_[found + i], block::KvReady::asserted_by_caller()));
      if (complete.size() < batch_ && i + 1 < room) continue;
      auto registered = kv_->register_blocks(std::exchange(complete, {}));
      if (!registered) return registered.error().error;
      for (auto& one : *registered) table.push_back(std::move(one));
      kv_->drain();
    }
    return {};
  }

  // The words of a block, row by row.
  template <class Each>
  void each_row(std::uint32_t slot, std::uint32_t number, Each&& each) {
    Random random(spread_bits(number));
    const transfer::BlockSet& memory = *kv_->g1_blocks();
    const layout::Layout& layout = memory.planes()[0].layout;
    const std::size_t words = layout.config().head_dim / sizeof(std::uint64_t);
    row_.resize(words);
    for (std::uint32_t token = 0; token < kRows; ++token) {
      for (std::uint64_t& word : row_) word = random.next();
      each(memory.address(0, layout.place({slot, 0, 0, token, 0})), words * sizeof(std::uint64_t));
    }
  }
  void fill(std::uint32_t slot, std::uint32_t number) {
    each_row(slot, number, [&](std::byte* at, std::size_t bytes) { std::memcpy(at, row_.data(), bytes); });
  }
  Result<void> verify(std::uint32_t slot, std::uint32_t number) {
    bool is_same = true;
    each_row(slot, number, [&](const std::byte* at, std::size_t bytes) {
      is_same = is_same && std::memcmp(at, row_.data(), bytes) == 0;
    });
    ++verified_;
    if (is_same) return {};
    return make_error(ErrorCode::kCorruption, "worker %u found other bytes in block %u than were stored",
                      worker_, number);
  }

  void on_events(std::span<const events::KvEvent> events) override {
    for (const events::KvEvent& event : events) {
      if (event.kind != events::KvEventKind::kStored && event.kind != events::KvEventKind::kRemoved) continue;
      const std::uint32_t number = TraceTable::block_of(event.hash);
      const auto tier = event.tier.value();
      const bool is_stored = event.kind == events::KvEventKind::kStored;
      ASHLAR_CHECK(tier < kReplayTiers && number < trace_.distinct(),
                   "an event of a tier or block that is none");
      if (is_stored) {
        presence_.store(worker_, tier, number);
      } else {
        presence_.remove(worker_, tier, number);
      }
      change_->moves.push_back({.block = number, .tier = tier, .is_stored = is_stored});
    }
  }

  const TraceTable& trace_;
  std::unique_ptr<tiers::KvBlockManager> kv_;
  const std::size_t batch_;
  Presence& presence_;
  const std::uint32_t worker_;
  std::uint64_t& verified_;
  std::vector<SequenceHash> hashes_;
  std::vector<std::uint64_t> row_;
  CacheChange* change_ = nullptr;
};

}  // namespace

Result<std::unique_ptr<WorkerCache>> make_kv_cache(const TraceTable& trace, const ReplayConfig& config,
                                                   const RealOptions& options, const std::string& file,
                                                   Presence& presence, std::uint32_t worker,
                                                   std::uint64_t& verified) {
  const auto policy = [&](std::size_t tier) {
    return config.tier_policy[tier].empty() ? config.policy : config.tier_policy[tier];
  };
  std::size_t blocks = 0;
  for (const std::uint32_t tier : config.tier_blocks) blocks += tier;
  tiers::KvOptions kv;
  kv.model = layout_of(options.block_bytes);
  kv.block_size = kRows;
  kv.keys = tokens::NamespaceFingerprint(
      tokens::NamespaceFields{.model = "replay", .dtype = "u8", .layout = "nhd", .block_size = kRows});
  kv.registry.frequency = block::TinyLfuOptions::for_pool(blocks);
  kv.g1 = {.block_count = config.tier_blocks[0], .eviction = policy(0)};
  if (config.tier_blocks[1] != 0)
    kv.g2 = tiers::TierShape{.block_count = config.tier_blocks[1], .eviction = policy(1)};
  if (config.tier_blocks[2] != 0)
    kv.g3 = tiers::DiskShape{.block_count = config.tier_blocks[2],
                             .paths = {file},
                             .eviction = policy(2),
                             .survive_power_loss = false};
  kv.to_g2 = route_of();
  kv.to_g3 = route_of();
  // A request stores each of its blocks at most twice in a tier, and evicts as many.
  kv.event_capacity = std::max<std::size_t>(4'096, 8 * trace.longest());
  ASHLAR_TRY(auto manager, tiers::KvBlockManager::create(std::move(kv)));
  const std::size_t batch = config.tier_blocks[1] == 0
                                ? config.tier_blocks[0]
                                : offload_batch(config.tier_blocks[0], config.tier_blocks[1]);
  return std::unique_ptr<WorkerCache>(
      std::make_unique<KvCache>(trace, std::move(manager), batch, presence, worker, verified));
}

}  // namespace ashlar::replay
