#include "events/publish_table.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::events {
namespace detail {

PublishTable::PublishTable(std::size_t capacity) : log_(std::make_shared<EventLog>(capacity)) {
  ASHLAR_CHECK(log_->claim(), "a new log belongs to nobody");
}

PublishTable::Blocks::Slot PublishTable::find_locked(const tokens::SequenceHash& hash, TierId tier) const {
  return blocks_.find(EventKey(hash, tier, 0).mixed(), [&](const PublishedBlock& block) {
    return block.event.hash == hash && block.event.tier == tier;
  });
}

KvEvent PublishTable::stored_event_locked(const PublishedBlock& block) const {
  KvEvent event = block.event;
  if (!event.has_parent) return event;
  if (last_known_ != Blocks::kNone) {
    const PublishedBlock& last = blocks_.at(last_known_);
    if (last.event.hash == event.parent_bits && last.event.tier == event.tier) return event;
  }
  const Blocks::Slot parent = find_locked(event.parent_bits, event.tier);
  if (parent != Blocks::kNone && blocks_.at(parent).known) return event;
  event.has_parent = false;
  event.parent_bits = {};
  return event;
}

void PublishTable::make_known_locked(PublishedBlock& block) noexcept {
  if (block.known) return;
  log_->append(stored_event_locked(block));
  block.known = true;
  last_known_ = block.slot;
}

void PublishTable::forget_if_unused_locked(PublishedBlock& block) noexcept {
  if (block.handles != 0 || block.awaited != 0) return;
  if (block.known) {
    KvEvent event;
    event.kind = KvEventKind::kRemoved;
    event.hash = block.event.hash;
    event.tier = block.event.tier;
    event.block = block.event.block;
    event.bytes = block.event.bytes;
    event.location = block.event.location;
    event.group = block.event.group;
    event.has_name = block.event.has_name;
    event.name_bits = block.event.name_bits;
    log_->append(event);
  }
  if (last_known_ == block.slot) last_known_ = Blocks::kNone;
  blocks_.erase(block.slot);
}

PublishHandle PublishTable::publish(const KvEvent& block, std::vector<PublishedBlock*>* taken) {
  ASHLAR_CHECK(block.tier.value() < kMaxTiers, "tier %u; there are %u", unsigned{block.tier.value()},
               unsigned{kMaxTiers});
  if (taken != nullptr && taken->size() == taken->capacity()) taken->reserve(2 * taken->size() + 16);
  const MutexLock lock(mu_);
  Blocks::Slot slot = find_locked(block.hash, block.tier);
  if (slot == Blocks::kNone) {
    slot = blocks_.insert({.event = block});
    blocks_.at(slot).slot = slot;
    blocks_.at(slot).event.kind = KvEventKind::kStored;
  }
  PublishedBlock& known = blocks_.at(slot);
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
  const MutexLock lock(mu_);
  for (PublishedBlock* block : taken) {
    --block->awaited;
    if (block->handles != 0) {
      make_known_locked(*block);
    } else {
      forget_if_unused_locked(*block);
    }
  }
}

void PublishTable::release(PublishedBlock* block) noexcept {
  std::shared_ptr<PublishTable> last;  // goes after the lock
  const MutexLock lock(mu_);
  --block->handles;
  forget_if_unused_locked(*block);
  if (--handles_ == 0) last = std::move(self_);
}

std::uint64_t PublishTable::list(std::vector<KvEvent>& out) const {
  const auto before = static_cast<std::ptrdiff_t>(out.size());
  std::uint64_t next = 0;
  {
    const MutexLock lock(mu_);
    next = log_->next_sequence();
    std::vector<const PublishedBlock*> all;
    blocks_.for_each([&](const PublishedBlock& block) { all.push_back(&block); });
    for (const PublishedBlock* block : all)
      if (block->known) out.push_back(stored_event_locked(*block));
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
