// MemoryPool<Tier>: a tier in memory: GPU memory, or host memory.
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <utility>

#include "tiers/pool/managed_pool.h"

namespace ashlar::tiers {

template <events::Tier Tier>
class MemoryPool final : public ManagedPool<Tier, BytePool> {
 public:
  // Requires: the manager and the set have the same number of blocks. The manager outlives the pool.
  MemoryPool(block::BlockManager<Tier>& manager, std::shared_ptr<const transfer::BlockSet> blocks,
             events::StorageTier storage_tier, Clock& clock = Clock::real())
      : ManagedPool<Tier, BytePool>(manager, clock), blocks_(std::move(blocks)), storage_tier_(storage_tier) {
    ASHLAR_CHECK(manager.total_blocks() == blocks_->block_count(),
                 "%zu blocks in the manager of %s, memory for %u", manager.total_blocks(),
                 std::string(Tier::kName).c_str(), blocks_->block_count());
  }

  events::StorageTier storage_tier() const noexcept override { return storage_tier_; }
  const std::shared_ptr<const transfer::BlockSet>& blocks(std::uint32_t = 0) const noexcept override {
    return blocks_;
  }
  Result<std::unique_ptr<Reservation>> reserve(std::size_t n) override {
    ASHLAR_TRY(ReservedBlocks<Tier> taken, ReservedBlocks<Tier>::take(this->manager_, n));
    return std::unique_ptr<Reservation>(new Reserved(*this, std::move(taken)));
  }
  Result<void> remove(const tokens::SequenceHash& hash) override {
    auto found = this->find(hash);
    if (!found) return this->not_here(hash);
    found->set_reset_on_release(true);
    this->records_.removed(std::span(&hash, 1));
    return {};
  }

 private:
  class Reserved final : public Reservation {
   public:
    Reserved(MemoryPool& pool, ReservedBlocks<Tier> taken) : pool_(pool), taken_(std::move(taken)) {}
    std::span<const block::BlockId> ids() const noexcept override { return taken_.ids(); }
    Published publish(std::span<const TierRecord> records, const block::KvReady& ready) override {
      return taken_.publish(pool_.manager_, pool_.records_, records, ready,
                            [](std::size_t) { return std::uint16_t{0}; });
    }

   private:
    MemoryPool& pool_;
    ReservedBlocks<Tier> taken_;
  };

  const std::shared_ptr<const transfer::BlockSet> blocks_;
  const events::StorageTier storage_tier_;
};

}  // namespace ashlar::tiers
