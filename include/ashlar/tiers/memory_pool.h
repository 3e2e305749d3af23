// MemoryPool<Tier>: a tier in memory: GPU memory, or host memory.
//
// Host tiers keep the checksum of each block: it is computed when a block arrives, and goes along when it leaves.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/tiers/tier_pool.h"

namespace ashlar::tiers {

namespace detail {

// Mutable blocks of a manager and their ids.
template <events::Tier Tier>
struct ReservedBlocks {
  explicit ReservedBlocks(block::BlockList<block::MutableBlock<Tier>> taken) : blocks(std::move(taken)) {
    for (const auto& block : blocks) slots.push_back(block.block_id().value());
  }
  // Registers those that have a name, in order.
  Result<void> register_all(block::BlockManager<Tier>& manager, std::span<const Arrival> arrivals,
                            const transfer::TransferDone& proof) {
    block::BlockList<block::CompleteBlock<Tier>> complete;
    for (std::size_t i = 0; i < arrivals.size(); ++i)
      if (arrivals[i].hash != tokens::SequenceHash())
        complete.push_back(std::move(blocks[i]).stage(arrivals[i].hash, proof.kv_ready()));
    auto registered = manager.register_blocks(std::move(complete));
    if (!registered) return registered.error().error;
    return {};
  }

  block::BlockList<block::MutableBlock<Tier>> blocks;
  std::vector<std::uint32_t> slots;
};

}  // namespace detail

template <events::Tier Tier>
class MemoryPool final : public TierPool {
 public:
  // The manager and the set have as many blocks; the manager outlives the pool.
  MemoryPool(block::BlockManager<Tier>& manager, std::shared_ptr<const transfer::BlockSet> blocks,
             events::StorageTier storage_tier)
      : manager_(manager),
        blocks_(std::move(blocks)),
        storage_tier_(storage_tier),
        checksums_(blocks_->host_accessible() && storage_tier != events::StorageTier::kDevice
                       ? blocks_->num_blocks()
                       : 0) {
    ASHLAR_CHECK(manager.total_blocks() == blocks_->num_blocks(),
                 "%zu blocks in the manager of %s, memory for %u", manager.total_blocks(),
                 std::string(Tier::kName).c_str(), blocks_->num_blocks());
  }

  events::TierId tier() const noexcept override { return events::kTierId<Tier>; }
  std::string_view name() const noexcept override { return Tier::kName; }
  events::StorageTier storage_tier() const noexcept override { return storage_tier_; }
  const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept override { return blocks_; }

  std::optional<block::Hold> hold(const tokens::SequenceHash& hash) override {
    auto held = manager_.hold(hash);
    if (!held) return std::nullopt;
    return *std::move(held);
  }
  bool has(const tokens::SequenceHash& hash) override {
    return manager_.block_registry().template check_presence<Tier>(std::span(&hash, 1))[0];
  }
  Result<std::unique_ptr<Reservation>> reserve(std::size_t n) override {
    auto taken = manager_.allocate_blocks(n);
    if (!taken) return taken.error().to_error();
    return std::unique_ptr<Reservation>(new Reserved(*this, *std::move(taken)));
  }
  Result<void> remove(const tokens::SequenceHash& hash) override {
    auto found = manager_.scan_matches(std::span(&hash, 1), false);
    if (found.empty())
      return make_error(ErrorCode::kNotFound, "%s has no block %s", std::string(Tier::kName).c_str(),
                        hash.to_string().c_str());
    found.begin()->second.set_reset_on_release(true);
    return {};
  }
  std::optional<transfer::BlockChecksum> checksum(std::uint32_t slot) const override {
    if (checksums_.empty()) return std::nullopt;
    return checksums_[slot];
  }

 private:
  class Reserved final : public Reservation {
   public:
    Reserved(MemoryPool& pool, block::BlockList<block::MutableBlock<Tier>> taken)
        : pool_(pool), reserved_(std::move(taken)) {}
    std::span<const std::uint32_t> slots() const noexcept override { return reserved_.slots; }
    Result<void> publish(std::span<const Arrival> arrivals, const transfer::TransferDone& proof) override {
      if (!pool_.checksums_.empty())
        for (std::size_t i = 0; i < arrivals.size(); ++i)
          pool_.checksums_[reserved_.slots[i]] = arrivals[i].checksum;
      return reserved_.register_all(pool_.manager_, arrivals, proof);
    }

   private:
    MemoryPool& pool_;
    detail::ReservedBlocks<Tier> reserved_;
  };

  block::BlockManager<Tier>& manager_;
  const std::shared_ptr<const transfer::BlockSet> blocks_;
  const events::StorageTier storage_tier_;
  std::vector<transfer::BlockChecksum> checksums_;  // by slot; written by its owner before it is registered
};

}  // namespace ashlar::tiers
