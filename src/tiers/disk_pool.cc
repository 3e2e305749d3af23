#include "ashlar/tiers/disk_pool.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "ashlar/tiers/memory_pool.h"

namespace ashlar::tiers {

using events::G3;
using tokens::SequenceHash;

class DiskPool::Reserved final : public Reservation {
 public:
  Reserved(DiskPool& pool, block::BlockList<block::MutableBlock<G3>> taken)
      : pool_(pool), reserved_(std::move(taken)) {}
  std::span<const std::uint32_t> slots() const noexcept override { return reserved_.slots; }

  // The header is on the disk before the block can be found.
  Result<void> publish(std::span<const Arrival> arrivals, const transfer::TransferDone& proof) override {
    std::vector<G3File::Entry> entries;
    for (std::size_t i = 0; i < arrivals.size(); ++i) {
      pool_.checksums_[reserved_.slots[i]] = arrivals[i].checksum;
      if (arrivals[i].hash != SequenceHash())
        entries.push_back({reserved_.slots[i], {.hash = arrivals[i].hash, .checksum = arrivals[i].checksum}});
    }
    if (const Result<void> committed = pool_.file_->commit(entries); !committed) return committed;
    return reserved_.register_all(pool_.manager_, arrivals, proof);
  }

 private:
  DiskPool& pool_;
  detail::ReservedBlocks<G3> reserved_;
};

Result<std::unique_ptr<DiskPool>> DiskPool::create(block::BlockManager<G3>& manager,
                                                   std::unique_ptr<G3File> file) {
  if (manager.total_blocks() != file->capacity() || manager.status().reset != manager.total_blocks())
    return make_error(ErrorCode::kInvalidArgument,
                      "%s has room for %u blocks; its manager has %zu, of which %zu are empty",
                      file->path().c_str(), file->capacity(), manager.total_blocks(), manager.status().reset);
  std::unique_ptr<DiskPool> pool(new DiskPool(manager, std::move(file)));
  if (const Result<void> restored = pool->restore(); !restored) return restored.error();
  return pool;
}

// All blocks are taken for a moment, so that each entry gets the block it lies in. Older ones are registered first: they are
// the first to be evicted.
Result<void> DiskPool::restore() {
  std::vector<G3File::Entry> entries = file_->restored();
  file_->forget_restored();
  if (entries.empty()) return {};
  std::ranges::sort(entries, {}, [](const G3File::Entry& entry) { return entry.header.generation; });
  auto all = manager_.allocate_blocks(manager_.total_blocks());
  if (!all) return all.error().to_error();
  std::unordered_map<std::uint32_t, block::MutableBlock<G3>*> by_slot;
  for (block::MutableBlock<G3>& block : *all) by_slot[block.block_id().value()] = &block;
  std::vector<std::uint32_t> refused;
  for (const G3File::Entry& entry : entries) {
    checksums_[entry.slot] = entry.header.checksum;
    auto complete =
        std::move(*by_slot.at(entry.slot))
            .stage(entry.header.hash, block::KvReady::asserted_by_caller());  // the header says so
    const auto registered = manager_.register_block(std::move(complete));
    if (registered) {
      ++restored_;
    } else {
      refused.push_back(entry.slot);
    }
  }
  return file_->invalidate(refused);
}

std::optional<block::Hold> DiskPool::hold(const SequenceHash& hash) {
  auto held = manager_.hold(hash);
  if (!held) return std::nullopt;
  return *std::move(held);
}

bool DiskPool::has(const SequenceHash& hash) {
  return manager_.block_registry().check_presence<G3>(std::span(&hash, 1))[0];
}

// What was in the blocks is gone for good before somebody writes over it.
Result<std::unique_ptr<Reservation>> DiskPool::reserve(std::size_t n) {
  auto taken = manager_.allocate_blocks(n);
  if (!taken) return taken.error().to_error();
  auto reserved = std::make_unique<Reserved>(*this, *std::move(taken));
  if (const Result<void> gone = file_->invalidate(reserved->slots()); !gone) return gone.error();
  return std::unique_ptr<Reservation>(std::move(reserved));
}

Result<void> DiskPool::remove(const SequenceHash& hash) {
  auto found = manager_.scan_matches(std::span(&hash, 1), false);
  if (found.empty()) return make_error(ErrorCode::kNotFound, "g3 has no block %s", hash.to_string().c_str());
  block::ImmutableBlock<G3>& block = found.begin()->second;
  const std::uint32_t slot = block.block_id().value();
  if (const Result<void> gone = file_->invalidate(std::span(&slot, 1)); !gone) return gone;
  block.set_reset_on_release(true);
  return {};
}

}  // namespace ashlar::tiers
