// What users tell about blocks, and what the registry tells about their hashes. Both may change the order of the
// inactive pool.
#include <algorithm>
#include <array>

#include "block/block_store.h"

namespace ashlar::block::detail {

void BlockStore::set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept {
  facts_->set_retention(BlockId(slot.id), retention);
}

Result<void> BlockStore::set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) {
  const Operation operation(*this);
  const std::uint32_t slot = find_confirmed(hash);
  if (slot == kNone) {
    return make_error(ErrorCode::kNotFound, "no block of hash %s is registered in %s",
                      hash.to_string().c_str(), tier_name_.c_str());
  }
  facts_->set_retention(BlockId(slot), retention);
  // The backend reads the fact when it orders the block.
  if (slots_.listing[slot] == Listing::kInactive) inactive_->touch(BlockId(slot));
  return {};
}

void BlockStore::touched(std::span<const tokens::SequenceHash> hashes) noexcept {
  const Operation operation(*this);
  if (closed_) return;
  for (const tokens::SequenceHash& hash : hashes) index_.prefetch(HashMix::of(hash));
  for (const tokens::SequenceHash& hash : hashes) {
    const std::uint32_t slot = find_confirmed(hash);
    if (slot == kNone) continue;
    facts_->set_hit(BlockId(slot));
    if (slots_.listing[slot] == Listing::kInactive) inactive_->touch(BlockId(slot));
  }
}

void BlockStore::touch_elsewhere(std::span<const SlotRef> slots) noexcept {
  std::array<tokens::SequenceHash, Candidates::kStretch> hashes;
  std::size_t count = 0;
  for (const SlotRef& slot : slots) __builtin_prefetch(slots_.entry(slot.id));
  for (const SlotRef& slot : slots) {
    if (slots_.entry(slot.id)->total_presence() > 1) hashes[count++] = slots_.hash(slot.id);
  }
  if (count != 0) registry_.tell_touched({hashes.data(), count}, this);
}

void set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept {
  store_of(slot).set_retention(slot, retention);
}

}  // namespace ashlar::block::detail
