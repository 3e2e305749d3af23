#include "block/property/naive_manager.h"
#include "ashlar/block/block_identity.h"

#include <algorithm>

namespace ashlar::block::property {

// ---- registry and fence

void NaiveRegistry::acquire(const Hash& hash, bool counts) {
  const bool created = !entries.contains(hash);
  ++entries[hash].references;
  if (created && counts) ++uses[hash];
}

void NaiveRegistry::release(const Hash& hash) {
  if (--entries[hash].references == 0) entries.erase(hash);
}

void NaiveRegistry::touch(const Hash& hash) {
  ++uses[hash];
  if (const auto entry = entries.find(hash); entry != entries.end())
    callbacks_run[hash] += entry->second.callbacks;
}

bool NaiveRegistry::present(const Hash& hash, std::uint8_t tier) const {
  const auto entry = entries.find(hash);
  if (entry == entries.end()) return false;
  const auto presence = entry->second.presence.find(tier);
  return presence != entry->second.presence.end() && presence->second != 0;
}

void NaiveFence::signal() {
  passed = true;
  for (auto& callback : std::exchange(waiting, {})) callback();
}

void NaiveFence::on_passed(std::function<void()> callback) {
  if (passed) {
    callback();
  } else {
    waiting.push_back(std::move(callback));
  }
}

NaiveManager::NaiveManager(const NaiveOptions& options, std::shared_ptr<NaiveRegistry> registry)
    : options_(options), registry_(std::move(registry)), blocks_(options.block_count) {
  for (Id id = 0; id < options_.block_count; ++id) {
    if (options_.last_in_first_out) {
      reset_.push_front(id);
    } else {
      reset_.push_back(id);
    }
  }
}

// ---- allocation

std::optional<NaiveManager::Reason> NaiveManager::refusal(std::size_t n) const {
  if (n > options_.block_count) return Reason::kTooMany;
  if (n > available()) return Reason::kNoRoom;
  return std::nullopt;
}

NaiveManager::Allocation NaiveManager::allocate(std::size_t n, bool until) {
  expire_pins();
  Allocation allocation;
  allocation.refused = refusal(n);
  if (until && allocation.refused == Reason::kNoRoom) allocation.refused = Reason::kTimedOut;
  while (!allocation.refused && allocation.blocks.size() < n) {
    Id id = 0;
    if (!reset_.empty()) {
      id = reset_.front();
      reset_.pop_front();
      ++counters_.allocations_from_reset;
    } else {
      id = inactive_.front();
      inactive_.pop_front();
      allocation.evicted.push_back(blocks_[id].hash);
      unregister(id);
      ++counters_.evictions;
    }
    Block& block = blocks_[id];
    block.state = BlockState::kMutable;
    ++block.life;
    block.reset_on_release = options_.default_reset_on_release;
    ++counters_.allocations;
    ++owned_;
    allocation.blocks.push_back(id);
  }
  note_pressure();
  return allocation;
}

std::optional<NaiveManager::Reason> NaiveManager::why_not(std::size_t n) {
  expire_pins();
  note_pressure();
  return refusal(n);
}

// ---- blocks that one guard owns

void NaiveManager::finish(Id id, const NaiveIdentity& identity) {
  Block& block = blocks_[id];
  block.state = BlockState::kComplete;
  block.hash = identity.hash;
  block.parent = identity.parent;
  block.root = identity.root;
  block.tokens = identity.tokens;
  ++counters_.stagings;
}

void NaiveManager::launch(Id id, std::shared_ptr<NaiveFence> fence) {
  blocks_[id].state = BlockState::kInflight;
  blocks_[id].fence = std::move(fence);
}

void NaiveManager::drop_owned(Id id) {
  Block& block = blocks_[id];
  const std::shared_ptr<NaiveFence> fence = std::exchange(block.fence, nullptr);
  --owned_;
  if (block.state == BlockState::kInflight && !fence->passed) {
    block.state = BlockState::kQuarantined;
    ++quarantined_;
    ++counters_.quarantines;
    fence->on_passed([this, id] {
      --quarantined_;
      to_reset_pool(id);
      note_pressure();
    });
  } else {
    to_reset_pool(id);
  }
  note_pressure();
}

void NaiveManager::to_reset_pool(Id id) {
  blocks_[id].state = BlockState::kReset;
  if (options_.last_in_first_out) {
    reset_.push_front(id);
  } else {
    reset_.push_back(id);
  }
}

// ---- registration

NaiveManager::Registration NaiveManager::register_blocks(std::span<const Id> candidates) {
  Registration result;
  // Blocks that were staged without a parent follow each other where they can.
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    Block& block = blocks_[candidates[i]];
    const Hash& before = blocks_[candidates[i - 1]].hash;
    if (!block.parent && before.can_precede(block.hash)) block.parent = before;
  }
  // All are checked before any is registered: against what is there, and against each other.
  for (std::size_t i = 0; i < candidates.size() && !result.refused; ++i) {
    const Block& block = blocks_[candidates[i]];
    const auto there = primaries_.find(block.hash);
    if (there != primaries_.end() && !agree(blocks_[there->second].tokens, block.tokens)) {
      result.refused = ErrorCode::kCorruption;
    }
  }
  for (std::size_t i = 0; i < candidates.size() && !result.refused; ++i) {
    for (std::size_t j = 0; j < i && !result.refused; ++j) {
      const Block& a = blocks_[candidates[i]];
      const Block& b = blocks_[candidates[j]];
      if (a.hash == b.hash && !agree(a.tokens, b.tokens)) result.refused = ErrorCode::kCorruption;
    }
  }
  if (result.refused) {
    ++counters_.collisions;
    note_pressure();
    return result;
  }
  for (const Id id : candidates) {
    Block& block = blocks_[id];
    --owned_;
    ++counters_.registrations;
    const auto there = primaries_.find(block.hash);
    if (there == primaries_.end()) {
      block.state = BlockState::kPrimary;
      block.refs = 1;
      block.duplicates.clear();
      registry_->acquire(block.hash, /*counts=*/true);
      ++registry_->entries[block.hash].presence[options_.tier];
      primaries_[block.hash] = id;
      publish(events::KvEventKind::kStored, id);
      result.blocks.push_back(id);
    } else if (options_.duplicates == DuplicatePolicy::kAllow) {
      const Id primary = there->second;
      block.state = BlockState::kDuplicate;
      block.refs = 1;
      block.duplicates.clear();
      ++counters_.duplicates;
      result.blocks.push_back(id);
      if (!block.tokens) block.tokens = blocks_[primary].tokens;
      if (!block.parent) block.parent = blocks_[primary].parent;
      if (!block.root) block.root = blocks_[primary].root;
      if (blocks_[primary].pins != 0) {
        blocks_[primary].duplicates.push_back(id);
        continue;
      }
      pass_place(primary, id);
      if (inactive_.remove(primary) != 0) {
        to_reset_pool(primary);
      } else {
        blocks_[primary].state = BlockState::kDuplicate;
        block.duplicates.push_front(primary);
      }
    } else {
      add_reference(there->second);
      to_reset_pool(id);
      ++counters_.deduplications;
      result.blocks.push_back(there->second);
    }
  }
  note_pressure();
  return result;
}

void NaiveManager::unregister(Id id) {
  Block& block = blocks_[id];
  primaries_.erase(block.hash);
  --registry_->entries[block.hash].presence[options_.tier];
  registry_->release(block.hash);
  publish(events::KvEventKind::kRemoved, id);
}

void NaiveManager::publish(events::KvEventKind kind, Id id) {
  const Block& block = blocks_[id];
  events::KvEvent event;
  event.kind = kind;
  event.tier = events::TierId(options_.tier);
  event.hash = block.hash;
  event.block = id;
  event.sequence = events_.size();
  event.set_parent(block.parent);
  event.set_prefix_group(block.root);
  events_.push_back(event);
}

// ---- matching

void NaiveManager::add_reference(Id id) {
  if (blocks_[id].refs == 0) {
    inactive_.remove(id);
    aside_.erase(id);
    ++counters_.revivals;
  }
  ++blocks_[id].refs;
}

std::optional<Id> NaiveManager::acquire(const Hash& hash, const std::optional<Tokens>& tokens) {
  const auto there = primaries_.find(hash);
  if (there == primaries_.end() || !agree(blocks_[there->second].tokens, tokens)) return std::nullopt;
  add_reference(there->second);
  return there->second;
}

std::vector<Id> NaiveManager::match_prefix(std::span<const Hash> hashes) {
  std::vector<Id> found;
  for (const Hash& hash : hashes) {
    const std::optional<Id> id = acquire(hash);
    if (!id) break;
    registry_->touch(hash);
    found.push_back(*id);
  }
  counters_.match_hashes_requested += hashes.size();
  counters_.match_blocks_returned += found.size();
  note_pressure();
  return found;
}

std::vector<std::optional<Id>> NaiveManager::match_scattered(std::span<const Hash> hashes) {
  std::vector<std::optional<Id>> found;
  for (const Hash& hash : hashes) {
    found.push_back(acquire(hash));
    note_pressure();
    if (!found.back()) continue;
    registry_->touch(hash);
    ++counters_.match_blocks_returned;
  }
  counters_.match_hashes_requested += hashes.size();
  return found;
}

std::map<Hash, Id> NaiveManager::scan(std::span<const Hash> hashes, bool touch) {
  std::map<Hash, Id> found;
  for (const Hash& hash : hashes) {
    if (found.contains(hash)) continue;
    const std::optional<Id> id = acquire(hash);
    note_pressure();
    if (!id) continue;
    if (touch) registry_->touch(hash);
    found[hash] = *id;
  }
  counters_.scan_hashes_requested += hashes.size();
  counters_.scan_blocks_returned += found.size();
  return found;
}

std::vector<Id> NaiveManager::match_verified(std::span<const NaiveIdentity> blocks) {
  std::vector<Id> found;
  for (const NaiveIdentity& block : blocks) {
    const std::optional<Id> id = acquire(block.hash, block.tokens);
    if (!id) break;
    found.push_back(*id);
  }
  note_pressure();
  for (std::size_t i = 0; i < found.size(); ++i) registry_->touch(blocks[i].hash);
  counters_.match_hashes_requested += blocks.size();
  counters_.match_blocks_returned += found.size();
  return found;
}

std::optional<Id> NaiveManager::upgrade(const Weak& weak) {
  Block& block = blocks_[weak.id];
  const bool in_use =
      block.refs != 0 && (block.state == BlockState::kPrimary || block.state == BlockState::kDuplicate);
  if (in_use && block.hash == weak.hash && agree(block.tokens, weak.tokens)) {
    ++block.refs;
    return weak.id;
  }
  const std::optional<Id> id = acquire(weak.hash, weak.tokens);
  note_pressure();
  return id;
}

// ---- release

void NaiveManager::drop_many(std::span<const Id> ids) {
  std::vector<Id> idle;
  for (std::size_t i = ids.size(); i-- > 0;) {
    if (--blocks_[ids[i]].refs == 0) idle.push_back(ids[i]);
  }
  for (const Id id : idle) settle(id);
  note_pressure();
}

void NaiveManager::drop_after(Id id, NaiveFence& fence) {
  fence.on_passed([this, id] { drop(id); });
}

void NaiveManager::settle(Id id) {
  Block& block = blocks_[id];
  if (block.state == BlockState::kDuplicate) {
    blocks_[primaries_.at(block.hash)].duplicates.remove(id);
    to_reset_pool(id);
  } else if (block.pins != 0) {
    aside_.insert(id);
  } else if (!block.duplicates.empty()) {
    const Id heir = block.duplicates.front();
    block.duplicates.pop_front();
    pass_place(id, heir);
    to_reset_pool(id);
  } else if (block.reset_on_release) {
    unregister(id);
    to_reset_pool(id);
  } else {
    inactive_.push_back(id);
  }
}

void NaiveManager::pass_place(Id primary, Id heir) {
  Block& block = blocks_[heir];
  block.state = BlockState::kPrimary;
  block.duplicates = std::exchange(blocks_[primary].duplicates, {});
  primaries_[block.hash] = heir;
}

// ---- pins

NaiveManager::PinResult NaiveManager::add_pin(Id id, Clock::Duration ttl) {
  if (ttl <= Clock::Duration::zero()) return {ErrorCode::kInvalidArgument};
  if (pins_.size() == options_.max_pins) return {ErrorCode::kCapacity};
  pins_[next_pin_] = {id, now_ + ttl};
  ++blocks_[id].pins;
  if (const auto at = std::find(inactive_.begin(), inactive_.end(), id); at != inactive_.end()) {
    inactive_.erase(at);
    aside_.insert(id);
  }
  return {std::nullopt, next_pin_++};
}

NaiveManager::PinResult NaiveManager::pin(const Hash& hash, Clock::Duration ttl) {
  expire_pins();
  const auto there = primaries_.find(hash);
  const PinResult result =
      there == primaries_.end() ? PinResult{ErrorCode::kNotFound} : add_pin(there->second, ttl);
  note_pressure();
  return result;
}

NaiveManager::PinResult NaiveManager::pin_block(Id id, Clock::Duration ttl) {
  expire_pins();
  const PinResult result = add_pin(primaries_.at(blocks_[id].hash), ttl);
  note_pressure();
  return result;
}

void NaiveManager::release_pin(std::map<PinKey, PinRecord>::iterator pin) {
  const Id id = pin->second.block;
  pins_.erase(pin);
  if (--blocks_[id].pins == 0 && aside_.erase(id) != 0) settle(id);
}

void NaiveManager::expire_pins() {
  for (;;) {
    const auto next = std::min_element(
        pins_.begin(), pins_.end(), [](const auto& a, const auto& b) { return a.second.end < b.second.end; });
    if (next == pins_.end() || next->second.end > now_) return;
    release_pin(next);
  }
}

void NaiveManager::unpin(PinKey key) {
  expire_pins();
  if (const auto pin = pins_.find(key); pin != pins_.end()) release_pin(pin);
  note_pressure();
}

bool NaiveManager::pinned(PinKey key) {
  expire_pins();
  note_pressure();
  return pins_.contains(key);
}

// ---- pools and observations

std::size_t NaiveManager::reset_inactive() {
  expire_pins();
  const std::size_t count = inactive_.size();
  for (; !inactive_.empty(); inactive_.pop_front()) {
    unregister(inactive_.front());
    to_reset_pool(inactive_.front());
  }
  note_pressure();
  return count;
}

std::vector<Hash> NaiveManager::candidates(std::size_t n) {
  expire_pins();
  note_pressure();
  std::vector<Hash> hashes;
  for (const Id id : inactive_) {
    if (hashes.size() < n) hashes.push_back(blocks_[id].hash);
  }
  return hashes;
}

bool NaiveManager::adopt_order(std::span<const Hash> order) {
  std::list<Id> adopted;
  for (const Hash& hash : order) {
    const auto there = primaries_.find(hash);
    if (there == primaries_.end()) return false;
    adopted.push_back(there->second);
  }
  std::set<Id> before(inactive_.begin(), inactive_.end());
  if (adopted.size() != before.size() || before != std::set<Id>(adopted.begin(), adopted.end())) return false;
  inactive_ = std::move(adopted);
  return true;
}

PoolStatus NaiveManager::pools() const {
  PoolStatus status;
  status.total = options_.block_count;
  status.reset = reset_.size();
  status.inactive = inactive_.size();
  status.pinned_inactive = aside_.size();
  status.owned = owned_;
  status.quarantined = quarantined_;
  for (const Block& block : blocks_) {
    const bool registered = block.state == BlockState::kPrimary || block.state == BlockState::kDuplicate;
    if (registered && block.refs != 0) ++status.active;
  }
  return status;
}

PoolStatus NaiveManager::status() {
  expire_pins();
  note_pressure();
  return pools();
}

void NaiveManager::note_pressure() {
  if (options_.watermarks.high == 0) return;
  Pressure now = pressure_;
  if (available() < options_.watermarks.low) now = Pressure::kLow;
  if (available() >= options_.watermarks.high) now = Pressure::kNormal;
  if (now == pressure_) return;
  pressure_ = now;
  pressure_calls_.emplace_back(now, available());
}

}  // namespace ashlar::block::property
