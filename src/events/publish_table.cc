// One SlotMap under a spin lock. A block is published when its first handle commits and removed with its last
// one.
#include "events/publish_table.h"

#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::events {
namespace detail {

namespace {

std::uint64_t mixed_of(const tokens::SequenceHash& hash, TierId tier) noexcept {
  return EventKey(hash, tier, 0).mixed();
}

}  // namespace

PublishTable::PublishTable(std::size_t capacity) : log_(std::make_shared<EventLog>(capacity)) {
  ASHLAR_CHECK(log_->claim(), "a new log has no producer yet");
  leaving_.fill(Blocks::kNone);
}

PublishTable::Blocks::Slot PublishTable::find_locked(std::uint64_t mixed, const tokens::SequenceHash& hash,
                                                     TierId tier) const {
  return blocks_.find(mixed, [&](const PublishedBlock& block) {
    return block.event.hash == hash && block.event.tier == tier;
  });
}

void PublishTable::make_known_locked(PublishedBlock& block) noexcept {
  if (block.known) return;
  ASHLAR_DCHECK(block.handles != 0, "only a block with a handle becomes known");
  log_->append(block.event);
  block.known = true;
}

void PublishTable::forget_if_unused_locked(PublishedBlock& block) noexcept {
  if (block.is_held()) return;
  if (block.known) {
    KvEvent event = block.event;
    event.kind = KvEventKind::kRemoved;
    log_->append(event);
    block.known = false;
  }
  if (block.leaving) return;
  block.leaving = true;
  blocks_.prefetch(block.mixed);
  Blocks::Slot& place = leaving_[next_leaving_++ % kLeaving];
  const Blocks::Slot gone = std::exchange(place, block.slot);
  if (gone == Blocks::kNone) return;
  PublishedBlock& old = blocks_.at(gone);
  old.leaving = false;
  if (!old.is_held()) blocks_.erase(gone);
}

// The block of this key; a new one if no held one exists.
PublishedBlock& PublishTable::take_locked(std::uint64_t mixed, const KvEvent& block) {
  Blocks::Slot slot = find_locked(mixed, block.hash, block.tier);
  const bool fresh = slot == Blocks::kNone;
  if (fresh) slot = blocks_.take_slot();
  PublishedBlock& taken = blocks_.at(slot);
  if (!fresh && taken.is_held()) return taken;
  taken.event = block;
  taken.event.kind = KvEventKind::kStored;
  if (fresh) {
    taken.mixed = mixed;
    taken.slot = slot;
    blocks_.link(slot);
    if (!looks_.follows(blocks_)) looks_.follow(blocks_);
  }
  return taken;
}

PublishHandle PublishTable::publish(const KvEvent& block, std::vector<PublishedBlock*>* taken) {
  ASHLAR_CHECK(block.tier.value() < kMaxTiers, "tier %u; there are %u", unsigned{block.tier.value()},
               unsigned{kMaxTiers});
  if (taken != nullptr && taken->size() == taken->capacity()) taken->reserve(2 * taken->size() + 16);
  const std::uint64_t mixed = mixed_of(block.hash, block.tier);
  looks_.prefetch(mixed);
  const ExclusiveHold lock(mu_);
  PublishedBlock& known = take_locked(mixed, block);
  ++known.handles;
  if (taken == nullptr) {
    make_known_locked(known);
  } else if (!known.known) {
    ++known.awaited;
    taken->push_back(&known);
  }
  if (handles_++ == 0) self_ = shared_from_this();
  return PublishHandle(this, &known);
}

void PublishTable::commit(std::span<PublishedBlock* const> taken) noexcept {
  const ExclusiveHold lock(mu_);
  for (PublishedBlock* block : taken) {
    ASHLAR_DCHECK(block->awaited != 0, "a publisher commits each block that it took once");
    --block->awaited;
    if (block->handles != 0) {
      make_known_locked(*block);
    } else {
      forget_if_unused_locked(*block);
    }
  }
}

void PublishTable::release(PublishedBlock* block) noexcept {
  std::shared_ptr<PublishTable> last;  // destroyed after the lock
  const ExclusiveHold lock(mu_);
  ASHLAR_DCHECK(block->handles != 0 && handles_ >= block->handles, "a handle is dropped twice");
  --block->handles;
  forget_if_unused_locked(*block);
  if (--handles_ == 0) last = std::move(self_);
}

std::uint64_t PublishTable::list(std::vector<KvEvent>& out) const {
  const auto before = static_cast<std::ptrdiff_t>(out.size());
  std::uint64_t next = 0;
  {
    std::size_t blocks = 0;
    {
      const ExclusiveHold lock(mu_);
      blocks = blocks_.size();
    }
    out.reserve(out.size() + blocks);  // reserved first, so that publishers do not wait for an allocation
    const ExclusiveHold lock(mu_);
    next = log_->next_sequence();
    blocks_.for_each([&](const PublishedBlock& block) {
      if (block.known) out.push_back(block.event);
    });
  }
  std::sort(out.begin() + before, out.end(),
            [](const KvEvent& a, const KvEvent& b) { return a.hash < b.hash; });
  return next;
}

}  // namespace detail

const tokens::SequenceHash& PublishHandle::sequence_hash() const noexcept {
  return block_->event.hash;
}

TierId PublishHandle::tier() const noexcept {
  return block_->event.tier;
}

void PublishHandle::reset() noexcept {
  if (block_ != nullptr) table_->release(std::exchange(block_, nullptr));
  table_ = nullptr;
}

PublishHandle Publisher::publish(const KvEvent& block) {
  return table_->publish(block, &taken_);
}

void Publisher::commit() noexcept {
  if (table_ == nullptr || taken_.empty()) return;
  table_->commit(taken_);
  taken_.clear();
}

}  // namespace ashlar::events
