// The steps of KvBlockManager with write-through and a drain after each request, without its threads and
// bytes. Onboarding takes a batch of what the tiers have: the blocks of G1 and G2 in it are held, those of G3
// enter G2, all enter G1, and then the batch is used as one. A held block that is chosen as a victim leaves
// when its hold ends. What was computed goes down in batches of at most a sixteenth of the tiers on both
// sides, each through all tiers before the next; the tier below releases a batch from its end.
#include "replay/simulate/pool_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/block/block_manager.h"

namespace ashlar::replay {
namespace {

using block::BlockList;
using block::BlockManager;
using block::CompleteBlock;
using block::G1;
using block::G2;
using block::G3;
using block::ImmutableBlock;
using tokens::SequenceHash;

template <class Tier>
constexpr std::uint8_t kTierNumber = Tier::kIndex;

template <class Tier>
Result<std::optional<BlockManager<Tier>>> make_manager(const ReplayConfig& config,
                                                       const block::BlockRegistry& registry) {
  const std::uint32_t blocks = config.tier_blocks[kTierNumber<Tier>];
  if (blocks == 0) return std::optional<BlockManager<Tier>>();
  const std::string& own = config.tier_policy[kTierNumber<Tier>];
  ASHLAR_TRY(auto eviction, block::eviction_by_name(own.empty() ? config.policy : own));
  block::ManagerOptions options;
  options.block_count = blocks;
  options.registry = registry;
  options.duplicates = block::DuplicatePolicy::kReject;
  options.eviction = std::move(eviction);
  ASHLAR_TRY(auto manager, BlockManager<Tier>::create(options));
  return std::optional<BlockManager<Tier>>(std::move(manager));
}

class PoolCache final : public WorkerCache {
 public:
  PoolCache(const TraceTable& trace, const ReplayConfig& config, Presence& presence, std::uint32_t worker,
            std::optional<BlockManager<G1>> g1, std::optional<BlockManager<G2>> g2,
            std::optional<BlockManager<G3>> g3)
      : trace_(trace),
        tier_blocks_(config.tier_blocks),
        presence_(presence),
        worker_(worker),
        g1_(std::move(g1)),
        g2_(std::move(g2)),
        g3_(std::move(g3)) {
    ASHLAR_CHECK(g1_.has_value(), "G1 is where blocks are computed");
    ASHLAR_CHECK(!g3_.has_value() || g2_.has_value(), "blocks reach G3 through G2");
  }

  Result<void> serve(std::span<const std::uint32_t> blocks, CacheChange& change) override {
    change.clear();
    change_ = &change;
    hashes_.clear();
    for (const std::uint32_t number : blocks) hashes_.push_back(trace_.hash_of(number));
    const std::span<const SequenceHash> all = hashes_;
    BlockList<ImmutableBlock<G1>> table;
    for (;;) {
      const std::size_t before = table.size();
      change.hits[0] += static_cast<std::uint32_t>(g1_->match_blocks(all.subspan(before), table));
      if (table.size() < all.size()) bring_up(all, table);
      if (table.size() == before || table.size() == all.size()) break;
    }
    const std::size_t room = std::min(all.size() - table.size(), g1_->available_blocks());
    const std::span<const SequenceHash> computed = all.subspan(table.size(), room);
    store(*g1_, computed, &table);
    change.is_cut = table.size() < all.size();
    if (g2_) copy_down(computed);
    table.clear();
    return {};
  }

 private:
  void removed(std::uint8_t tier, const SequenceHash& hash) {
    const std::uint32_t number = TraceTable::block_of(hash);
    presence_.remove(worker_, tier, number);
    change_->moves.push_back({.block = number, .tier = tier, .is_stored = false});
  }

  // Stores blocks in a tier; those that it had already stay as they are.
  template <class Tier>
  void store(BlockManager<Tier>& manager, std::span<const SequenceHash> hashes,
             BlockList<ImmutableBlock<Tier>>* kept) {
    if (hashes.empty()) return;
    auto room = manager.allocate_blocks_with_evictions(hashes.size());
    ASHLAR_CHECK(room.has_value(), "there was room for %zu blocks", hashes.size());
    for (const SequenceHash& hash : room->evicted) removed(kTierNumber<Tier>, hash);
    BlockList<CompleteBlock<Tier>> complete;
    complete.reserve(hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      complete.push_back(std::move(room->blocks[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    auto registered = manager.register_blocks(std::move(complete));
    ASHLAR_CHECK(registered.has_value(), "a name of the trace was refused");
    for (const SequenceHash& hash : hashes) {
      const std::uint32_t number = TraceTable::block_of(hash);
      if (presence_.store(worker_, kTierNumber<Tier>, number))
        change_->moves.push_back({.block = number, .tier = kTierNumber<Tier>, .is_stored = true});
    }
    if (kept == nullptr) return;  // released, from the last to the first
    for (auto& one : *registered) kept->push_back(std::move(one));
  }

  // A batch of what the tiers have behind the table, into G1, as far as there is room.
  void bring_up(std::span<const SequenceHash> all, BlockList<ImmutableBlock<G1>>& table) {
    if (!g2_) return;
    const std::span<const SequenceHash> rest =
        all.subspan(table.size(), batch_size(all.size() - table.size()));
    std::vector<block::Hold> here;
    std::vector<block::Hold> in_host;
    std::vector<SequenceHash> below;
    std::vector<SequenceHash> up;
    std::size_t count = 0;
    for (; count < rest.size(); ++count) {
      const std::uint32_t number = TraceTable::block_of(rest[count]);
      if (has<G1>(number)) {
        here.push_back(g1_->hold(rest[count]).value());
        ++change_->hits[0];
        continue;
      }
      if (has<G2>(number)) {
        in_host.push_back(g2_->hold(rest[count]).value());
        ++change_->hits[1];
      } else if (has<G3>(number)) {
        below.push_back(rest[count]);
        ++change_->hits[2];
      } else {
        break;
      }
      up.push_back(rest[count]);
    }
    if (count == 0) return;
    store<G2>(*g2_, below, nullptr);
    for (const SequenceHash& hash : below) in_host.push_back(g2_->hold(hash).value());
    BlockList<ImmutableBlock<G1>> arrived;
    store<G1>(*g1_, up, &arrived);
    const std::uint64_t evictions = g2_->counters().evictions;
    in_host.clear();
    // Those that were chosen as victims meanwhile are gone now.
    if (g2_->counters().evictions != evictions)
      for (const SequenceHash& hash : up)
        if (has<G2>(TraceTable::block_of(hash)) && !g2_->hold(hash)) removed(kTierNumber<G2>, hash);
    const std::size_t matched = g1_->match_blocks(rest.first(count), table);
    ASHLAR_CHECK(matched == count, "%zu of %zu blocks came up", matched, count);
  }

  // As the manager divides a prefix, so that a batch never fills G2.
  std::size_t batch_size(std::size_t left) const {
    const std::size_t blocks = g2_->total_blocks();
    const std::size_t most = std::max<std::size_t>({1, std::min<std::size_t>(4, blocks / 2), blocks / 8});
    return std::min({left, most, g1_->available_blocks()});
  }

  // What was computed goes to G2, and what enters G2 by this to G3.
  void copy_down(std::span<const SequenceHash> computed) {
    const std::size_t to_g2 = offload_batch(tier_blocks_[0], tier_blocks_[1]);
    for (std::size_t at = 0; at < computed.size(); at += to_g2) {
      const std::size_t before = change_->moves.size();
      down_.clear();
      for (const SequenceHash& hash : computed.subspan(at, std::min(to_g2, computed.size() - at)))
        if (!has<G2>(TraceTable::block_of(hash))) down_.push_back(hash);
      store<G2>(*g2_, std::span(down_).first(std::min(down_.size(), g2_->available_blocks())), nullptr);
      if (g3_) copy_to_g3(before);
    }
  }

  // What was stored since that move.
  void copy_to_g3(std::size_t before) {
    const std::size_t end = change_->moves.size();
    const std::size_t most = offload_batch(tier_blocks_[1], tier_blocks_[2]);
    for (std::size_t i = before; i < end;) {
      down_.clear();
      for (; i < end && down_.size() < most; ++i) {
        const BlockMove move = change_->moves[i];
        if (move.is_stored && !has<G3>(move.block)) down_.push_back(trace_.hash_of(move.block));
      }
      store<G3>(*g3_, down_, nullptr);
    }
  }

  template <class Tier>
  bool has(std::uint32_t number) const {
    return presence_.has(worker_, kTierNumber<Tier>, number);
  }

  const TraceTable& trace_;
  const std::array<std::uint32_t, kReplayTiers> tier_blocks_;
  Presence& presence_;
  const std::uint32_t worker_;
  CacheChange* change_ = nullptr;
  std::optional<BlockManager<G1>> g1_;
  std::optional<BlockManager<G2>> g2_;
  std::optional<BlockManager<G3>> g3_;
  std::vector<SequenceHash> hashes_;
  std::vector<SequenceHash> down_;
};

}  // namespace

Result<std::unique_ptr<WorkerCache>> make_pool_cache(const TraceTable& trace, const ReplayConfig& config,
                                                     Presence& presence, std::uint32_t worker) {
  std::size_t blocks = 0;
  for (const std::uint32_t tier : config.tier_blocks) blocks += tier;
  // Some policies ask how often a block was used.
  ASHLAR_TRY(const auto registry,
             block::BlockRegistry::create({.frequency = block::TinyLfuOptions::for_pool(blocks)}));
  ASHLAR_TRY(auto g1, make_manager<G1>(config, registry));
  ASHLAR_TRY(auto g2, make_manager<G2>(config, registry));
  ASHLAR_TRY(auto g3, make_manager<G3>(config, registry));
  return std::unique_ptr<WorkerCache>(std::make_unique<PoolCache>(
      trace, config, presence, worker, std::move(g1), std::move(g2), std::move(g3)));
}

}  // namespace ashlar::replay
