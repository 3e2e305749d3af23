#include "block/registry/registry_entries.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::block::detail {

void RetiredExtensions::destroy() noexcept {
  thread_local RetiredExtensions* outermost = nullptr;
  if (outermost != nullptr) {
    while (head_ != nullptr) outermost->add(std::exchange(head_, head_->next_retired));
    return;
  }
  if (head_ == nullptr) return;
  outermost = this;
  while (head_ != nullptr) delete std::exchange(head_, head_->next_retired);
  outermost = nullptr;
}

RegistryEntries::RegistryEntries(const RegistryOptions& options) : options_(options) {
  if (options.frequency) tracker_.emplace(*options.frequency);
}

RegistryEntries::~RegistryEntries() {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mu);
    ASHLAR_CHECK(shard.count == 0, "a registry was destroyed with %zu entries referenced", shard.count);
  }
}

// The cursor's lock is known only at run time, which the analysis cannot follow.
void RegistryEntries::Cursor::change_to(Shard* shard) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  if (held_ != nullptr) held_->mu.unlock();
  held_ = shard;
  if (held_ != nullptr) held_->mu.lock();
}

Entry* RegistryEntries::Shard::find_orphan(std::uint64_t mixed, const tokens::SequenceHash& hash) {
  if (orphan_count == 0) return nullptr;
  const auto is_it = [&](std::uint32_t place)
                         ASHLAR_NO_THREAD_SAFETY_ANALYSIS { return entry(place).hash == hash; };
  const std::uint32_t place = orphans.find(mixed, is_it);
  return place == HashIndex::kNone ? nullptr : &entry(place);
}

void RegistryEntries::Shard::add_orphan(Entry& orphan) {
  orphans.insert(HashMix::of(orphan.hash), orphan.place);
  orphan.orphan = true;
  ++orphan_count;
}

void RegistryEntries::Shard::remove_orphan(Entry& orphan) {
  orphans.erase(HashMix::of(orphan.hash), orphan.place);
  orphan.orphan = false;
  --orphan_count;
}

void RegistryEntries::Shard::add_slab(std::size_t shard) {
  const auto first = static_cast<std::uint32_t>(slabs.size() * kSlab);
  // Reserve for the worst case, so that no later step allocates: all entries may be free, and all may be
  // orphans.
  free.reserve(first + kSlab);
  if (first + kSlab > orphans.capacity()) {
    HashIndex larger(2 * static_cast<std::uint32_t>(orphans.capacity()));
    for (std::uint32_t place = 0; place < first; ++place) {
      if (entry(place).orphan) larger.insert(HashMix::of(entry(place).hash), place);
    }
    orphans = std::move(larger);
  }
  slabs.emplace_back(kSlab);
  for (std::uint32_t i = kSlab; i-- > 0;) {
    slabs.back()[i].place = first + i;
    slabs.back()[i].shard = static_cast<std::uint8_t>(shard);
    free.push_back(&slabs.back()[i]);
  }
}

Entry& RegistryEntries::Shard::make(const tokens::SequenceHash& hash) {
  if (free.empty()) add_slab(shard_number(hash.position()));
  Entry& fresh = *free.back();
  free.pop_back();
  fresh.hash = hash;
  fresh.refs.store(1, std::memory_order_relaxed);  // relaxed: the shard's lock publishes the entry
  return fresh;
}

Entry& RegistryEntries::spell_out(const tokens::SequenceHash& hash,
                                  events::TierId tier) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Entry& entry = shard_of(hash.position()).make(hash);
  entry.presence[tier.value()].store(1,
                                     std::memory_order_relaxed);  // relaxed: written under the shard's lock
  return entry;
}

// Shard by shard: the source is empty, so it does not matter which threads already or still query it.
void RegistryEntries::attach(const std::shared_ptr<EntrySource>& source) {
  try {
    for (Shard& shard : shards_) {
      const MutexLock lock(shard.mu);
      shard.sources.push_back(source.get());
    }
    const MutexLock lock(listeners_mu_);
    auto listeners = std::make_shared<Listeners>();
    listeners->reserve(listeners_->size() + 1);
    for (const std::weak_ptr<EntrySource>& each : *listeners_) {
      if (!each.expired()) listeners->push_back(each);
    }
    listeners->push_back(source);
    // relaxed: a hash cannot be in a second source before that source has registered it under a lock.
    source_count_.fetch_add(1, std::memory_order_relaxed);
    listeners_ = std::move(listeners);
  } catch (...) {
    remove_from_shards(source.get());
    throw;
  }
}

void RegistryEntries::remove_from_shards(const EntrySource* source) noexcept {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mu);
    std::erase(shard.sources, source);
  }
}

// The source stays in the listener list until the next attach(), when it has expired; until then it hears of
// touches and has nothing to refresh. So detaching needs no memory.
void RegistryEntries::detach(EntrySource& source) noexcept {
  remove_from_shards(&source);
  source_count_.fetch_sub(1, std::memory_order_relaxed);
}

void RegistryEntries::tell_touched(std::span<const tokens::SequenceHash> hashes,
                                   const EntrySource* except) noexcept {
  std::shared_ptr<const Listeners> listeners;
  {
    const MutexLock lock(listeners_mu_);
    listeners = listeners_;
  }
  for (const std::weak_ptr<EntrySource>& each : *listeners) {
    if (const std::shared_ptr<EntrySource> source = each.lock(); source && source.get() != except) {
      source->touched(hashes);
    }
  }
}

void RegistryEntries::touch(Entry& entry) noexcept {
  if (tracker_) tracker_->touch(entry.hash);
  if (entry.total_presence() != 0) tell_touched({&entry.hash, 1}, nullptr);
  run_touch_callbacks(entry);
}

Entry* RegistryEntries::lookup(Shard& shard, const tokens::SequenceHash& hash,
                               const EntrySource* except) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  const std::uint64_t mixed = HashMix::of(hash);
  for (EntrySource* source : shard.sources) {
    if (source == except) continue;
    if (Entry* entry = source->find_entry(mixed, hash)) return entry;
  }
  return shard.find_orphan(mixed, hash);
}

RegistryEntries::Acquired RegistryEntries::acquire(Cursor& cursor, const tokens::SequenceHash& hash)
    ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  if (Entry* entry = find(cursor, hash)) return {entry, false};
  Shard& shard = shard_of(hash.position());
  Entry& entry = shard.make(hash);
  ++shard.count;
  shard.add_orphan(entry);
  return {&entry, true};
}

Entry* RegistryEntries::find(Cursor& cursor,
                             const tokens::SequenceHash& hash) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Shard& shard = shard_of(hash.position());
  cursor.move_to(&shard);
  Entry* entry = lookup(shard, hash, nullptr);
  if (entry != nullptr) entry->add_reference();
  return entry;
}

void RegistryEntries::release(Cursor& cursor, Entry& entry, RetiredExtensions& retired) {
  Shard& shard = shard_of(entry.hash.position());
  cursor.move_to(&shard);
  release(shard, entry, retired);
}

void RegistryEntries::release(Entry& entry) {
  const std::uint64_t generation = entry.generation;
  Shard& shard = shard_of(entry.hash.position());
  // acq_rel: as above.
  if (entry.refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  RetiredExtensions retired;
  const MutexLock lock(shard.mu);
  // Another thread may have found or erased the entry since the count reached zero.
  if (entry.generation == generation && entry.refs.load(std::memory_order_acquire) == 0)
    shard.erase(entry, retired);
}

EntryExtension& RegistryEntries::extension_of(Entry& entry) {
  // acquire / release: the extension is built before another thread sees it.
  EntryExtension* existing = entry.extension.load(std::memory_order_acquire);
  if (existing != nullptr) return *existing;
  auto fresh = std::make_unique<EntryExtension>();
  if (entry.extension.compare_exchange_strong(existing, fresh.get(), std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
    return *fresh.release();
  }
  return *existing;
}

TouchId RegistryEntries::add_touch_callback(Entry& entry, RegistrationHandle::TouchCallback callback) {
  ASHLAR_CHECK(callback != nullptr, "on_touch() was given an empty function");
  EntryExtension& extension = extension_of(entry);
  auto shared = std::make_shared<const RegistrationHandle::TouchCallback>(std::move(callback));
  const MutexLock lock(extension.mu);
  auto callbacks = extension.callbacks ? std::make_shared<EntryExtension::Callbacks>(*extension.callbacks)
                                       : std::make_shared<EntryExtension::Callbacks>();
  const TouchId id(last_touch_id_.fetch_add(1, std::memory_order_relaxed) + 1);  // relaxed: only distinct
  callbacks->push_back({id, std::move(shared)});
  extension.callbacks = std::move(callbacks);
  // relaxed: a match that starts after on_touch() returned is already ordered after it by its caller.
  has_touch_callbacks_.store(true, std::memory_order_relaxed);
  return id;
}

bool RegistryEntries::remove_touch_callback(Entry& entry, TouchId id) {
  EntryExtension* const extension = entry.extension.load(std::memory_order_acquire);
  if (extension == nullptr) return false;
  std::shared_ptr<const EntryExtension::Callbacks> replaced;  // destroyed after the lock
  const MutexLock lock(extension->mu);
  if (extension->callbacks == nullptr) return false;
  const auto is_it = [&](const EntryExtension::Callback& callback) { return callback.id == id; };
  if (std::ranges::none_of(*extension->callbacks, is_it)) return false;
  auto left = std::make_shared<EntryExtension::Callbacks>();
  left->reserve(extension->callbacks->size());
  std::ranges::remove_copy_if(*extension->callbacks, std::back_inserter(*left), is_it);
  replaced = std::exchange(extension->callbacks, left->empty() ? nullptr : std::move(left));
  return true;
}

void RegistryEntries::run_touch_callbacks(Entry& entry) noexcept {
  EntryExtension* extension = entry.extension.load(std::memory_order_acquire);
  if (extension == nullptr) return;
  const auto callbacks = [&] {
    const MutexLock lock(extension->mu);
    return extension->callbacks;
  }();
  if (callbacks == nullptr) return;
  entry.add_reference();
  const RegistrationHandle self = handle(&entry);
  for (const auto& callback : *callbacks) (*callback.call)(self);
}

std::size_t RegistryEntries::registered_count() {
  std::size_t total = 0;
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mu);
    total += shard.count;
  }
  return total;
}

std::size_t RegistryEntries::registered_count_at(std::uint32_t position) {
  Shard& shard = shard_of(position);
  const MutexLock lock(shard.mu);
  std::size_t count = 0;
  for (const LargeArray<Entry>& slab : shard.slabs) {
    for (std::size_t i = 0; i < slab.size(); ++i) {
      // relaxed: entries are created and erased under this lock.
      const bool used = slab[i].refs.load(std::memory_order_relaxed) != 0;
      if (used && slab[i].hash.position() == position) ++count;
    }
  }
  for (const EntrySource* source : shard.sources) count += source->count_implied(position);
  return count;
}

std::shared_ptr<AttachmentBase> find_attachment(Entry& entry, std::type_index type,
                                                std::shared_ptr<AttachmentBase> (*make)()) {
  if (make == nullptr && entry.extension.load(std::memory_order_acquire) == nullptr) return nullptr;
  EntryExtension& extension = RegistryEntries::extension_of(entry);
  std::shared_ptr<AttachmentBase> made = make == nullptr ? nullptr : make();
  const MutexLock lock(extension.mu);
  for (const auto& [known, attachment] : extension.attachments) {
    if (known == type) return attachment;
  }
  if (made) extension.attachments.emplace_back(type, made);
  return made;
}

Error attachment_mode_error(bool wants_unique) {
  return make_error(
      ErrorCode::kAlreadyExists,
      "this type is attached %s on this hash, so it cannot be attached %s; use %s, or another type",
      wants_unique ? "many times" : "uniquely", wants_unique ? "uniquely" : "many times",
      wants_unique ? "attach()" : "attach_unique()");
}

}  // namespace ashlar::block::detail
