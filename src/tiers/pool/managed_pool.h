// ManagedPool<Tier, Base>: the part of every pool backed by its BlockManager: hold, has, records.
// ReservedBlocks<Tier>: empty blocks taken to be filled.
//
// Thread safety: thread-safe; a ReservedBlocks is confined to its owner.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/block/block_manager.h"
#include "tiers/pool/record_table.h"
#include "tiers/pool/tier_pool.h"

namespace ashlar::tiers {

template <events::Tier Tier>
class ReservedBlocks {
 public:
  // Errors: kCapacity with the numbers.
  static Result<ReservedBlocks> take(block::BlockManager<Tier>& manager, std::size_t n) {
    auto taken = manager.allocate_blocks(n);
    if (!taken) return taken.error().to_error();
    return ReservedBlocks(*std::move(taken));
  }
  explicit ReservedBlocks(block::BlockList<block::MutableBlock<Tier>> taken) : blocks_(std::move(taken)) {
    for (const auto& block : blocks_) ids_.push_back(block.block_id());
  }

  std::span<const block::BlockId> ids() const noexcept { return ids_; }
  // Takes block i out.
  block::MutableBlock<Tier> give(std::size_t i) { return std::move(blocks_[i]); }
  // Registers the blocks that have a record, in order; all or none. `location_of` gives the location of block
  // i for events.
  template <class LocationOf>
  Published publish(block::BlockManager<Tier>& manager, RecordTable& table,
                    std::span<const TierRecord> records, const block::KvReady& ready,
                    const LocationOf& location_of) {
    ASHLAR_CHECK(records.size() == ids_.size(), "%zu records for %zu reserved blocks", records.size(),
                 ids_.size());
    Published published{.registered = std::vector<bool>(records.size()), .error = {}};
    block::BlockList<block::CompleteBlock<Tier>> complete;
    for (std::size_t i = 0; i < records.size(); ++i) {
      if (records[i].empty()) continue;
      table.write(ids_[i], records[i].checksum);
      published.registered[i] = true;
      complete.push_back(std::move(blocks_[i]).stage(records[i].identity(location_of(i)), ready));
    }
    auto registered = manager.register_blocks(std::move(complete), {.copied = true});
    if (registered) {
      // It may have been evicted again already.
      for (const TierRecord& record : records)
        if (!record.empty() && record.retention != block::BlockRetention())
          static_cast<void>(manager.set_retention(record.hash, record.retention));
      registered_ = *std::move(registered);
      return published;
    }
    published.registered.assign(records.size(), false);
    published.error = registered.error().error;
    return published;
  }

 private:
  block::BlockList<block::MutableBlock<Tier>> blocks_;
  block::BlockList<block::ImmutableBlock<Tier>> registered_;
  std::vector<block::BlockId> ids_;
};

template <events::Tier Tier, class Base>
class ManagedPool : public Base {
 public:
  events::TierId tier() const noexcept final { return events::kTierId<Tier>; }
  std::string_view name() const noexcept final { return Tier::kName; }

  std::optional<block::Hold> hold(const tokens::SequenceHash& hash) final { return manager_.try_hold(hash); }
  bool has(const tokens::SequenceHash& hash) final { return manager_.contains(hash); }
  std::size_t capacity() const noexcept final { return manager_.total_blocks(); }
  TierRecord record(const block::Hold& hold) const override {
    TierRecord record = TierRecord::of(manager_.identity(hold));
    record.retention = manager_.retention(hold);
    record.checksum = records_.checksum(hold);
    record.since = records_.since(hold);
    return record;
  }
  Result<block::Pin> pin(const tokens::SequenceHash& hash, Clock::Duration ttl) final {
    return manager_.pin(hash, ttl);
  }
  Result<void> set_retention(const tokens::SequenceHash& hash, const block::BlockRetention& retention) final {
    return manager_.set_retention(hash, retention);
  }
  Result<void> set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) final {
    return manager_.set_metadata(hash, metadata);
  }
  std::optional<block::BlockDescription> describe(const tokens::SequenceHash& hash) const final {
    return manager_.describe(hash);
  }
  const RecordTable& records() const noexcept final { return records_; }
  RecordTable& records() noexcept final { return records_; }

 protected:
  ManagedPool(block::BlockManager<Tier>& manager, Clock& clock)
      : manager_(manager), records_(manager.total_blocks(), clock) {
    manager.observe(records_);
  }
  // The block, pinned; empty when absent. Does not count as a use of its hash.
  std::optional<block::ImmutableBlock<Tier>> find(const tokens::SequenceHash& hash) {
    auto found = manager_.scan_matches(std::span(&hash, 1), false);
    if (found.empty()) return std::nullopt;
    return std::move(found.begin()->second);
  }
  Error not_here(const tokens::SequenceHash& hash) const {
    return make_error(ErrorCode::kNotFound, "%s has no block %s", std::string(Tier::kName).c_str(),
                      hash.to_string().c_str());
  }

  block::BlockManager<Tier>& manager_;
  RecordTable records_;
};

}  // namespace ashlar::tiers
