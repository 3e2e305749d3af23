// DiskPool: G3, a tier in a file that survives restarts (g3_file.h).
//
// Thread safety: thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/tiers/g3_file.h"
#include "ashlar/tiers/tier_pool.h"

namespace ashlar::tiers {

class DiskPool final : public TierPool {
 public:
  // Registers what the file had; the manager is empty before, has as many blocks, and outlives the pool. Errors:
  // kInvalidArgument: another number of blocks, or blocks that are in use; those of G3File::invalidate() for blocks that
  // cannot be registered.
  static Result<std::unique_ptr<DiskPool>> create(block::BlockManager<events::G3>& manager,
                                                  std::unique_ptr<G3File> file);

  events::TierId tier() const noexcept override { return events::kTierId<events::G3>; }
  std::string_view name() const noexcept override { return events::G3::kName; }
  events::StorageTier storage_tier() const noexcept override { return events::StorageTier::kDisk; }
  const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept override {
    return file_->blocks();
  }

  std::optional<block::Hold> hold(const tokens::SequenceHash& hash) override;
  bool has(const tokens::SequenceHash& hash) override;
  Result<std::unique_ptr<Reservation>> reserve(std::size_t n) override;
  Result<void> remove(const tokens::SequenceHash& hash) override;
  std::optional<transfer::BlockChecksum> checksum(std::uint32_t slot) const override {
    return checksums_[slot];
  }

  std::size_t restored() const noexcept { return restored_; }

 private:
  class Reserved;
  DiskPool(block::BlockManager<events::G3>& manager, std::unique_ptr<G3File> file)
      : manager_(manager), file_(std::move(file)), checksums_(file_->capacity()) {}
  Result<void> restore();

  block::BlockManager<events::G3>& manager_;
  const std::unique_ptr<G3File> file_;
  std::vector<transfer::BlockChecksum> checksums_;  // by slot; written by its owner before it is registered
  std::size_t restored_ = 0;
};

}  // namespace ashlar::tiers
