#include "events/publish_table.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::events {
namespace detail {

PublishTable::PublishTable(std::size_t capacity) : log_(std::make_shared<EventLog>(capacity)) {
  ASHLAR_CHECK(log_->claim(), "a new log belongs to nobody");
}

void PublishTable::make_known_locked(PublishedBlock& block) noexcept {
  if (block.known) return;
  block.known = true;
  KvEvent event = block.event;
  // A parent is named only if it is known: listeners then have heard of it.
  if (event.has_parent) {
    const auto parent = blocks_.find({event.parent_bits, event.tier});
    event.has_parent = parent != blocks_.end() && parent->second.known;
    if (!event.has_parent) event.parent_bits = {};
  }
  log_->append(event);
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
  blocks_.erase(Key{block.event.hash, block.event.tier});
}

PublishHandle PublishTable::publish(const KvEvent& block, std::vector<PublishedBlock*>* taken) {
  ASHLAR_CHECK(block.tier.value() < kMaxTiers, "tier %u; there are %u", unsigned{block.tier.value()},
               unsigned{kMaxTiers});
  if (taken != nullptr) taken->reserve(taken->size() + 1);
  const MutexLock lock(mu_);
  const auto [at, fresh] = blocks_.try_emplace(Key{block.hash, block.tier});
  PublishedBlock& known = at->second;
  if (fresh) {
    known.event = block;
    known.event.kind = KvEventKind::kStored;
  }
  ++known.handles;
  if (taken == nullptr) {
    make_known_locked(known);
  } else if (!known.known) {
    ++known.awaited;
    taken->push_back(&known);
  }
  return PublishHandle(shared_from_this(), &known);
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
  const MutexLock lock(mu_);
  --block->handles;
  forget_if_unused_locked(*block);
}

std::uint64_t PublishTable::list(std::vector<KvEvent>& out) const {
  const auto before = static_cast<std::ptrdiff_t>(out.size());
  std::uint64_t next = 0;
  {
    const MutexLock lock(mu_);
    next = log_->next_sequence();
    for (const auto& [key, block] : blocks_) {
      if (!block.known) continue;
      KvEvent event = block.event;
      if (event.has_parent) {
        const auto parent = blocks_.find({event.parent_bits, event.tier});
        event.has_parent = parent != blocks_.end() && parent->second.known;
        if (!event.has_parent) event.parent_bits = {};
      }
      out.push_back(event);
    }
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
  table_.reset();
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
