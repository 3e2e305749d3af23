// What observers hear, and what the store keeps for them.
#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "block/store/block_store.h"
#include "block/store/thread_scratch.h"

namespace ashlar::block::detail {

void BlockStore::observe(BlockObserver& observer) {
  const MutexLock lock(mu_);
  ASHLAR_CHECK(counters_.allocations == 0,
               "observe() after %llu blocks of the %s manager were handed out; call it first",
               static_cast<unsigned long long>(counters_.allocations), tier_name_.c_str());
  if (slots_.ancestry.empty()) slots_.ancestry.resize(options_.block_count);
  facts_->keep_retentions();
  observers_.push_back(&observer);
}

Result<void, AllocationRefusal> BlockStore::take_observed(std::size_t n,
                                                          std::vector<tokens::SequenceHash>* evicted,
                                                          Emitter emit, Take take) {
  const std::size_t most = std::min<std::size_t>(n, options_.block_count);
  if (evicted != nullptr) evicted->reserve(evicted->size() + most);
  ThreadScratch<EvictedBlock> gone;
  ThreadScratch<BlockId> taken;
  gone->reserve(most);
  if (is_observed()) taken->reserve(most);
  ASHLAR_RETURN_IF_ERROR(take(&*gone, [&](std::size_t first, std::span<const SlotRef> slots) {
    if (is_observed())
      for (const SlotRef& slot : slots) taken->emplace_back(slot.id);
    emit(first, slots);
  }));
  ASHLAR_DCHECK(gone->size() <= n, "%zu blocks were evicted to hand out %zu", gone->size(), n);
  if (evicted != nullptr)
    for (const EvictedBlock& one : *gone) evicted->push_back(one.hash);
  for (BlockObserver* const observer : observers_) {
    if (!gone->empty()) observer->evicted(*gone);
    observer->handed_out(*taken);
  }
  return {};
}

// The caller owns the slots.
void BlockStore::describe_candidates(std::size_t n, Filler fill, Describe describe,
                                     std::vector<RegisteredBlock>& blocks) {
  blocks.reserve(n);
  SlotBuffer<kChunk> chunk;
  for (std::size_t first = 0; first < n; first += kChunk) {
    const std::span<SlotRef> slots = chunk.first(std::min(kChunk, n - first));
    fill(first, slots);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      RegisteredBlock& block = blocks.emplace_back();
      if (slots[i].store != this) continue;  // its registration is refused
      block.id = BlockId(slots[i].id);
      block.identity = identity_of(slots[i].id);
      describe(first + i, block);
    }
  }
}

BlockIdentity BlockStore::identity_of(std::uint32_t slot) const {
  BlockIdentity identity{.hash = slots_.hash(slot), .parent = {}, .root = {}, .prefix = slots_.prefix(slot)};
  if (slots_.ancestry.empty()) return identity;
  const Ancestry& ancestry = slots_.ancestry[slot];
  if (ancestry.has_parent) identity.parent = ancestry.parent;
  if (ancestry.has_root) identity.root = ancestry.root;
  if (ancestry.has_local) identity.local = tokens::LocalHash(ancestry.local);
  identity.location = ancestry.location;
  identity.group = ancestry.group;
  identity.metadata = ancestry.load_metadata();
  identity.salt = ancestry.salt;
  return identity;
}

BlockIdentity BlockStore::identity(const HoldRef& hold) {
  return identity_of(hold.slot);
}

BlockRetention BlockStore::retention(const HoldRef& hold) {
  if (!facts_->keeps_retentions()) return {};
  return facts_->retention(BlockId(hold.slot)).value_or(BlockRetention());
}

}  // namespace ashlar::block::detail
