// Facts that users report about blocks, and uses that the registry reports about their hashes. Both may
// change the order of the inactive pool.
#include <algorithm>
#include <new>

#include "block/store/block_store.h"

namespace ashlar::block::detail {

// A hash's facts belong to its primary, and which block that is may change at any time: hence the lock.
void BlockStore::set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept {
  if (!facts_->keeps_retentions()) return;
  const tokens::SequenceHash hash = slots_.hash(slot.id);
  {
    const MutexLock lock(mu_);
    const std::uint32_t primary = find_confirmed(hash);
    if (primary == kNone) return;  // withdrawn
    facts_->set_retention(BlockId(primary), retention);
  }
  for (BlockObserver* const observer : observers_) observer->retention_set(hash, retention);
}

Result<void> BlockStore::set_retention(const tokens::SequenceHash& hash, const BlockRetention& retention) {
  try {
    {
      const Operation operation(*this);
      const std::uint32_t slot = find_confirmed(hash);
      if (slot == kNone) {
        return make_error(ErrorCode::kNotFound, "no block of hash %s is registered in %s",
                          hash.to_string().c_str(), tier_name_.c_str());
      }
      facts_->set_retention(BlockId(slot), retention);
      // The backend reads the fact when it orders the block.
      if (slots_.listing[slot] == Listing::kInactive) inactive_->touch(BlockId(slot));
    }
    for (BlockObserver* const observer : observers_) observer->retention_set(hash, retention);
    return {};
  } catch (const std::bad_alloc&) {
    return out_of_memory_error();
  }
}

Result<void> BlockStore::set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) {
  const Operation operation(*this);
  const std::uint32_t slot = find_confirmed(hash);
  if (slot == kNone) {
    return make_error(ErrorCode::kNotFound, "no block of hash %s is registered in %s",
                      hash.to_string().c_str(), tier_name_.c_str());
  }
  if (slots_.ancestry.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "the %s manager keeps no metadata; give it an event log or an observer",
                      tier_name_.c_str());
  }
  slots_.ancestry[slot].store_metadata(metadata);
  return {};
}

namespace {
constexpr std::size_t kAhead = 16;  // hashes whose buckets are prefetched before their look-up
}  // namespace

void BlockStore::touched(std::span<const tokens::SequenceHash> hashes) noexcept {
  const Operation operation(*this);
  if (closed_) return;
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    if (i + kAhead < hashes.size()) index_.prefetch(HashMix::of(hashes[i + kAhead]));
    const std::uint32_t slot = find_confirmed(hashes[i]);
    if (slot == kNone) continue;
    facts_->set_hit(BlockId(slot));
    if (slots_.listing[slot] == Listing::kInactive) inactive_->touch(BlockId(slot));
  }
}

void BlockStore::UsedElsewhere::note(std::span<const SlotRef> slots) noexcept {
  for (const SlotRef& slot : slots) __builtin_prefetch(store_.slots_.entry(slot.id));
  for (const SlotRef& slot : slots) {
    // An implied entry means that the hash is here alone.
    const Entry& entry = store_.entry_of(slot.id);
    if (is_implied(&entry) || entry.total_presence() <= 1) continue;
    try {
      hashes_.push_back(entry.hash);
    } catch (const std::bad_alloc&) {
      return;
    }
  }
}

BlockStore::UsedElsewhere::~UsedElsewhere() {
  if (hashes_.empty()) return;
  std::reverse(hashes_.begin(), hashes_.end());
  store_.registry_.tell_touched(hashes_, &store_);
}

void set_retention(const SlotRef& slot, const BlockRetention& retention) noexcept {
  store_of(slot).set_retention(slot, retention);
}

}  // namespace ashlar::block::detail
