// The steps of KvBlockManager with write-through and a drain after each request, without its threads: a run
// of blocks that a lower tier has is held there while it comes up; what G1 registers anew goes down in one
// batch, which the tier below releases from its end.
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
  PoolCache(const TraceTable& trace, Presence& presence, std::uint32_t worker,
            std::optional<BlockManager<G1>> g1, std::optional<BlockManager<G2>> g2,
            std::optional<BlockManager<G3>> g3)
      : trace_(trace),
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
    hashes_.clear();
    for (const std::uint32_t number : blocks) hashes_.push_back(trace_.hash_of(number));
    const std::span<const SequenceHash> all = hashes_;
    BlockList<ImmutableBlock<G1>> table;
    for (;;) {
      const std::size_t before = table.size();
      change.hits[0] += static_cast<std::uint32_t>(g1_->match_blocks(all.subspan(before), table));
      if (table.size() < all.size()) bring_up(all, table, change);
      if (table.size() == before) break;  // nothing more in any tier
      if (table.size() == all.size()) break;
    }
    const std::size_t room = std::min(all.size() - table.size(), g1_->available_blocks());
    store(*g1_, all.subspan(table.size(), room), change, &table);
    change.is_cut = table.size() < all.size();
    copy_down(change);
    table.clear();
    return {};
  }

 private:
  // Stores blocks in a tier; those that it had already stay as they are.
  template <class Tier>
  void store(BlockManager<Tier>& manager, std::span<const SequenceHash> hashes, CacheChange& change,
             BlockList<ImmutableBlock<Tier>>* kept) {
    if (hashes.empty()) return;
    auto room = manager.allocate_blocks_with_evictions(hashes.size());
    ASHLAR_CHECK(room.has_value(), "there was room for %zu blocks", hashes.size());
    for (const SequenceHash& hash : room->evicted) {
      const std::uint32_t number = TraceTable::block_of(hash);
      presence_.remove(worker_, kTierNumber<Tier>, number);
      change.moves.push_back({.block = number, .tier = kTierNumber<Tier>, .is_stored = false});
    }
    BlockList<CompleteBlock<Tier>> complete;
    complete.reserve(hashes.size());
    for (std::size_t i = 0; i < hashes.size(); ++i)
      complete.push_back(std::move(room->blocks[i]).stage(hashes[i], block::KvReady::asserted_by_caller()));
    auto registered = manager.register_blocks(std::move(complete));
    ASHLAR_CHECK(registered.has_value(), "a name of the trace was refused");
    for (const SequenceHash& hash : hashes) {
      const std::uint32_t number = TraceTable::block_of(hash);
      if (presence_.store(worker_, kTierNumber<Tier>, number))
        change.moves.push_back({.block = number, .tier = kTierNumber<Tier>, .is_stored = true});
    }
    if (kept == nullptr) return;  // released, from the last to the first
    for (auto& one : *registered) kept->push_back(std::move(one));
  }

  // The next run that a lower tier has, into G1, as far as there is room. A run ends where a faster tier goes
  // on.
  void bring_up(std::span<const SequenceHash> all, BlockList<ImmutableBlock<G1>>& table,
                CacheChange& change) {
    if (!g2_) return;
    const std::span<const SequenceHash> rest =
        all.subspan(table.size(), std::min(all.size() - table.size(), g1_->available_blocks()));
    std::size_t count =
        run_of(rest, [&](std::uint32_t number) { return has<G2>(number) && !has<G1>(number); });
    if (count > 0) {
      const BlockList<ImmutableBlock<G2>> held = g2_->match_blocks(rest.first(count));
      ASHLAR_CHECK(held.size() == count, "G2 has the %zu blocks that it stored", count);
      change.hits[1] += static_cast<std::uint32_t>(count);
      store(*g1_, rest.first(count), change, &table);
      return;
    }
    if (!g3_) return;
    count = run_of(
        rest, [&](std::uint32_t number) { return has<G3>(number) && !has<G2>(number) && !has<G1>(number); });
    count = std::min(count, g2_->available_blocks());
    if (count == 0) return;
    const BlockList<ImmutableBlock<G3>> below = g3_->match_blocks(rest.first(count));
    ASHLAR_CHECK(below.size() == count, "G3 has the %zu blocks that it stored", count);
    change.hits[2] += static_cast<std::uint32_t>(count);
    BlockList<ImmutableBlock<G2>> held;
    store(*g2_, rest.first(count), change, &held);
    store(*g1_, rest.first(count), change, &table);
  }
  template <class Test>
  static std::size_t run_of(std::span<const SequenceHash> hashes, Test&& test) {
    std::size_t count = 0;
    while (count < hashes.size() && test(TraceTable::block_of(hashes[count]))) ++count;
    return count;
  }

  // What a tier stored goes to the one below.
  void copy_down(CacheChange& change) {
    if (g2_) copy_down_to(*g2_, change);
    if (g3_) copy_down_to(*g3_, change);
  }
  template <class Tier>
  void copy_down_to(BlockManager<Tier>& manager, CacheChange& change) {
    down_.clear();
    for (const BlockMove& move : change.moves)
      if (move.is_stored && move.tier + 1 == kTierNumber<Tier> && !has<Tier>(move.block))
        down_.push_back(trace_.hash_of(move.block));
    const std::size_t room = std::min(down_.size(), manager.available_blocks());
    store<Tier>(manager, std::span(down_).first(room), change, nullptr);
  }

  template <class Tier>
  bool has(std::uint32_t number) const {
    return presence_.has(worker_, kTierNumber<Tier>, number);
  }

  const TraceTable& trace_;
  Presence& presence_;
  const std::uint32_t worker_;
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
  // Some policies ask how often a block was used; a sketch of four counters per block tells them apart.
  constexpr std::size_t kMostCounters = std::size_t{1} << 26;
  ASHLAR_TRY(const auto registry, block::BlockRegistry::create({.frequency = block::TinyLfuOptions{
                                                                    .capacity = std::clamp<std::size_t>(
                                                                        4 * blocks, 1'024, kMostCounters)}}));
  ASHLAR_TRY(auto g1, make_manager<G1>(config, registry));
  ASHLAR_TRY(auto g2, make_manager<G2>(config, registry));
  ASHLAR_TRY(auto g3, make_manager<G3>(config, registry));
  return std::unique_ptr<WorkerCache>(
      std::make_unique<PoolCache>(trace, presence, worker, std::move(g1), std::move(g2), std::move(g3)));
}

}  // namespace ashlar::replay
