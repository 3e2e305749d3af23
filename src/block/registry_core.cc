#include "block/registry_core.h"

#include "ashlar/base/check.h"

namespace ashlar::block::detail {

RegistryCore::RegistryCore(const RegistryOptions& options) : options_(options) {
  if (options.frequency) tracker_.emplace(*options.frequency);
}

RegistryCore::~RegistryCore() {
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mu);
    ASHLAR_CHECK(shard.count == 0, "a registry was destroyed with %zu entries referenced", shard.count);
  }
}

// The lock that a cursor holds is known at run time only, which the analysis cannot follow.
void RegistryCore::Cursor::move_to(Shard* shard) noexcept ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  if (held_ == shard) return;
  if (held_ != nullptr) held_->mu.unlock();
  held_ = shard;
  if (held_ != nullptr) held_->mu.lock();
}

Entry* RegistryCore::Shard::lookup(const tokens::SequenceHash& hash) {
  const std::size_t at = table_of(hash.position());
  if (at >= tables.size()) return nullptr;
  const PositionTable& table = tables[at];
  if (table.count == 0) return nullptr;
  const std::size_t mask = table.cells.size() - 1;
  const std::uint32_t tag = tag_of(hash);
  for (std::size_t i = tag & mask;; i = (i + 1) & mask) {
    const std::uint64_t cell = table.cells[i];
    if (cell == 0) return nullptr;
    if (static_cast<std::uint32_t>(cell >> 32) != tag) continue;
    Entry& candidate = entry(static_cast<std::uint32_t>(cell) - 1);
    if (candidate.hash == hash) return &candidate;
  }
}

void RegistryCore::Shard::grow(PositionTable& table) {
  std::vector<std::uint64_t> old = std::move(table.cells);
  table.cells.assign(old.empty() ? 8 : old.size() * 2, 0);
  const std::size_t mask = table.cells.size() - 1;
  for (const std::uint64_t cell : old) {
    if (cell == 0) continue;
    std::size_t i = static_cast<std::size_t>(cell >> 32) & mask;
    while (table.cells[i] != 0) i = (i + 1) & mask;
    table.cells[i] = cell;
  }
}

// Requires: the hash is not here.
Entry& RegistryCore::Shard::insert(const tokens::SequenceHash& hash) {
  const std::size_t at = table_of(hash.position());
  if (at >= tables.size()) tables.resize(at + 1);
  PositionTable& table = tables[at];
  if (std::size_t{table.count} * 2 >= table.cells.size()) grow(table);

  if (free.empty()) {
    const auto first = static_cast<std::uint32_t>(slabs.size() * kSlab);
    slabs.push_back(std::make_unique<Entry[]>(kSlab));
    free.reserve(slabs.size() * kSlab);
    for (std::uint32_t i = kSlab; i-- > 0;) {
      slabs.back()[i].index = first + i;
      free.push_back(first + i);
    }
  }
  Entry& fresh = entry(free.back());
  free.pop_back();
  fresh.hash = hash;
  const std::uint32_t tag = tag_of(hash);
  const std::size_t mask = table.cells.size() - 1;
  std::size_t i = tag & mask;
  while (table.cells[i] != 0) i = (i + 1) & mask;
  table.cells[i] = std::uint64_t{tag} << 32 | (fresh.index + 1);
  ++table.count;
  ++count;
  return fresh;
}

// Closes the gap by moving back every later cell of the run that may stand earlier, so no tombstones remain.
void RegistryCore::Shard::erase(Entry& gone, RetiredExtensions& retired) {
  PositionTable& table = tables[table_of(gone.hash.position())];
  const std::size_t mask = table.cells.size() - 1;
  const std::uint64_t wanted = std::uint64_t{tag_of(gone.hash)} << 32 | (gone.index + 1);
  std::size_t hole = static_cast<std::size_t>(wanted >> 32) & mask;
  while (table.cells[hole] != wanted) hole = (hole + 1) & mask;
  for (std::size_t i = (hole + 1) & mask; table.cells[i] != 0; i = (i + 1) & mask) {
    const std::size_t home = static_cast<std::size_t>(table.cells[i] >> 32) & mask;
    if (((i - home) & mask) >= ((i - hole) & mask)) {
      table.cells[hole] = table.cells[i];
      hole = i;
    }
  }
  table.cells[hole] = 0;
  --table.count;
  --count;
  ++gone.generation;
  if (EntryExtension* extension = gone.extension.exchange(nullptr, std::memory_order_relaxed)) retired.add(extension);
  free.push_back(gone.index);
}

void RegistryCore::prefetch(Cursor& cursor,
                            std::span<const tokens::SequenceHash> hashes) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  if (hashes.empty()) return;
  Shard& shard = shard_of(hashes.front().position());
  cursor.move_to(&shard);
  for (const auto& hash : hashes) {
    if (&shard_of(hash.position()) != &shard) return;
    const std::size_t at = table_of(hash.position());
    if (at >= shard.tables.size() || shard.tables[at].cells.empty()) continue;
    const PositionTable& table = shard.tables[at];
    __builtin_prefetch(&table.cells[tag_of(hash) & (table.cells.size() - 1)], 1);
  }
}

RegistryCore::Acquired RegistryCore::acquire(Cursor& cursor,
                                             const tokens::SequenceHash& hash) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Shard& shard = shard_of(hash.position());
  cursor.move_to(&shard);
  if (Entry* entry = shard.lookup(hash)) {
    // relaxed: the shard's lock orders this with the erasure that a count of zero may lead to.
    entry->refs.fetch_add(1, std::memory_order_relaxed);
    return {entry, false};
  }
  Entry& entry = shard.insert(hash);
  entry.refs.store(1, std::memory_order_relaxed);
  return {&entry, true};
}

Entry* RegistryCore::find(Cursor& cursor, const tokens::SequenceHash& hash) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Shard& shard = shard_of(hash.position());
  cursor.move_to(&shard);
  Entry* entry = shard.lookup(hash);
  // relaxed: as in acquire().
  if (entry != nullptr) entry->refs.fetch_add(1, std::memory_order_relaxed);
  return entry;
}

void RegistryCore::release(Cursor& cursor, Entry& entry,
                           RetiredExtensions& retired) ASHLAR_NO_THREAD_SAFETY_ANALYSIS {
  Shard& shard = shard_of(entry.hash.position());
  cursor.move_to(&shard);
  // acq_rel: what every holder did with the entry happens before its memory begins another life.
  if (entry.refs.fetch_sub(1, std::memory_order_acq_rel) == 1) shard.erase(entry, retired);
}

void RegistryCore::release(Entry& entry) {
  const std::uint32_t generation = entry.generation;
  Shard& shard = shard_of(entry.hash.position());
  // acq_rel: as above.
  if (entry.refs.fetch_sub(1, std::memory_order_acq_rel) != 1) return;
  RetiredExtensions retired;
  const MutexLock lock(shard.mu);
  // Another thread may have found the entry again, or erased it, since the count was zero.
  if (entry.generation == generation && entry.refs.load(std::memory_order_acquire) == 0) shard.erase(entry, retired);
}

EntryExtension& RegistryCore::extension_of(Entry& entry) {
  // acquire / release: the extension is built before it is seen.
  EntryExtension* there = entry.extension.load(std::memory_order_acquire);
  if (there != nullptr) return *there;
  auto fresh = std::make_unique<EntryExtension>();
  if (entry.extension.compare_exchange_strong(there, fresh.get(), std::memory_order_acq_rel,
                                              std::memory_order_acquire)) {
    return *fresh.release();
  }
  return *there;
}

void RegistryCore::add_touch_callback(Entry& entry, RegistrationHandle::TouchCallback callback) {
  EntryExtension& extension = extension_of(entry);
  auto shared = std::make_shared<const RegistrationHandle::TouchCallback>(std::move(callback));
  const MutexLock lock(extension.mu);
  extension.callbacks.push_back(std::move(shared));
  // relaxed: a match that starts after on_touch() returned is ordered after it by whatever made it start.
  has_touch_callbacks_.store(true, std::memory_order_relaxed);
}

void RegistryCore::run_touch_callbacks(Entry& entry) {
  EntryExtension* extension = entry.extension.load(std::memory_order_acquire);
  if (extension == nullptr) return;
  std::vector<std::shared_ptr<const RegistrationHandle::TouchCallback>> callbacks;
  {
    const MutexLock lock(extension->mu);
    callbacks = extension->callbacks;
  }
  if (callbacks.empty()) return;
  entry.refs.fetch_add(1, std::memory_order_relaxed);  // relaxed: the caller keeps the entry referenced
  const RegistrationHandle self = handle(&entry);
  for (const auto& callback : callbacks) (*callback)(self);
}

std::size_t RegistryCore::registered_count() {
  std::size_t total = 0;
  for (Shard& shard : shards_) {
    const MutexLock lock(shard.mu);
    total += shard.count;
  }
  return total;
}

std::size_t RegistryCore::registered_count_at(std::uint32_t position) {
  Shard& shard = shard_of(position);
  const MutexLock lock(shard.mu);
  const std::size_t at = table_of(position);
  return at < shard.tables.size() ? shard.tables[at].count : 0;
}

std::shared_ptr<AttachmentBase> find_attachment(Entry& entry, std::type_index type,
                                                std::shared_ptr<AttachmentBase> (*make)()) {
  if (make == nullptr && entry.extension.load(std::memory_order_acquire) == nullptr) return nullptr;
  EntryExtension& extension = RegistryCore::extension_of(entry);
  std::shared_ptr<AttachmentBase> made = make == nullptr ? nullptr : make();
  const MutexLock lock(extension.mu);
  for (const auto& [known, attachment] : extension.attachments) {
    if (known == type) return attachment;
  }
  if (made) extension.attachments.emplace_back(type, made);
  return made;
}

Error attachment_mode_error(bool wants_unique) {
  return make_error(ErrorCode::kAlreadyExists,
                    "this type is attached %s on this hash, so it cannot be attached %s; use %s, or another type",
                    wants_unique ? "many times" : "uniquely", wants_unique ? "uniquely" : "many times",
                    wants_unique ? "attach()" : "attach_unique()");
}

}  // namespace ashlar::block::detail
