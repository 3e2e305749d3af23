#include "ashlar/block/block_registry.h"

#include "ashlar/base/check.h"
#include "ashlar/base/result.h"
#include "block/registry/registry_entries.h"

namespace ashlar::block {

using detail::Entry;
using detail::RegistryEntries;

Result<void> RegistryOptions::validate() const {
  return frequency ? frequency->validate() : Result<void>();
}

Result<BlockRegistry> BlockRegistry::create(const RegistryOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  return unless_out_of_memory(
      [&]() -> Result<BlockRegistry> { return BlockRegistry(std::make_shared<RegistryEntries>(options)); });
}

RegistrationHandle BlockRegistry::register_sequence_hash(const tokens::SequenceHash& hash) const {
  RegistryEntries::Acquired acquired;
  {
    RegistryEntries::Cursor cursor;
    acquired = entries_->acquire(cursor, hash);
  }
  if (acquired.created && entries_->tracker() != nullptr) entries_->tracker()->touch(hash);
  return entries_->handle(acquired.entry);
}

std::vector<RegistrationHandle> BlockRegistry::register_sequence_hashes(
    std::span<const tokens::SequenceHash> hashes) const {
  std::vector<RegistrationHandle> handles;
  handles.reserve(hashes.size());
  RegistryEntries::Cursor cursor;  // destroyed before the handles, which take the locks it holds
  for (const auto& hash : hashes) {
    const RegistryEntries::Acquired acquired = entries_->acquire(cursor, hash);
    handles.push_back(entries_->handle(acquired.entry));
    if (acquired.created && entries_->tracker() != nullptr) entries_->tracker()->touch(hash);
  }
  return handles;
}

RegistrationHandle BlockRegistry::transfer_registration(const tokens::SequenceHash& hash) const {
  RegistryEntries::Cursor cursor;
  return entries_->handle(entries_->acquire(cursor, hash).entry);
}

std::optional<RegistrationHandle> BlockRegistry::match_sequence_hash(const tokens::SequenceHash& hash,
                                                                     bool touch) const {
  Entry* entry = nullptr;
  {
    RegistryEntries::Cursor cursor;
    entry = entries_->find(cursor, hash);
  }
  if (entry == nullptr) return std::nullopt;
  RegistrationHandle handle = entries_->handle(entry);
  if (touch) handle.touch();
  return handle;
}

bool BlockRegistry::is_registered(const tokens::SequenceHash& hash) const {
  return registered_prefix({&hash, 1}) == 1;
}

std::size_t BlockRegistry::registered_count() const {
  return entries_->registered_count();
}

std::size_t BlockRegistry::registered_count_at(std::uint32_t position) const {
  return entries_->registered_count_at(position);
}

std::size_t BlockRegistry::registered_prefix(std::span<const tokens::SequenceHash> hashes) const {
  detail::RetiredExtensions retired;
  RegistryEntries::Cursor cursor;
  std::size_t count = 0;
  for (const auto& hash : hashes) {
    Entry* entry = entries_->find(cursor, hash);
    if (entry == nullptr) break;
    entries_->release(cursor, *entry, retired);
    ++count;
  }
  return count;
}

std::vector<bool> BlockRegistry::check_presence_any(std::span<const tokens::SequenceHash> hashes,
                                                    std::span<const events::TierId> tiers) const {
  for (const events::TierId tier : tiers) {
    ASHLAR_CHECK(tier.value() < events::kMaxTiers, "tier %u; there are %u", tier.value(), events::kMaxTiers);
  }
  detail::RetiredExtensions retired;
  RegistryEntries::Cursor cursor;
  std::vector<bool> present(hashes.size(), false);
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    Entry* entry = entries_->find(cursor, hashes[i]);
    if (entry == nullptr) continue;
    for (const events::TierId tier : tiers) {
      if (entry->presence[tier.value()].load(std::memory_order_relaxed) != 0) present[i] = true;
    }
    entries_->release(cursor, *entry, retired);
  }
  return present;
}

void BlockRegistry::touch(const tokens::SequenceHash& hash) const {
  if (!match_sequence_hash(hash, /*touch=*/true) && entries_->tracker() != nullptr)
    entries_->tracker()->touch(hash);
}

unsigned BlockRegistry::count(const tokens::SequenceHash& hash) const {
  return entries_->tracker() == nullptr ? 0 : entries_->tracker()->count(hash);
}

TinyLfu* BlockRegistry::frequency_tracker() const noexcept {
  return entries_->tracker();
}

const tokens::NamespaceFingerprint& BlockRegistry::name_space() const noexcept {
  return entries_->options().name_space;
}

RegistrationHandle::RegistrationHandle(const RegistrationHandle& other)
    : entries_(other.entries_), entry_(other.entry_) {
  if (entry_ != nullptr) entry_->add_reference();
}

RegistrationHandle::RegistrationHandle(RegistrationHandle&& other) noexcept
    : entries_(std::move(other.entries_)), entry_(std::exchange(other.entry_, nullptr)) {}

RegistrationHandle& RegistrationHandle::operator=(RegistrationHandle other) noexcept {
  std::swap(entries_, other.entries_);
  std::swap(entry_, other.entry_);
  return *this;
}

RegistrationHandle::~RegistrationHandle() {
  if (entry_ != nullptr) entries_->release(*entry_);
}

tokens::SequenceHash RegistrationHandle::sequence_hash() const noexcept {
  return entry_->hash;
}

bool RegistrationHandle::has_block(events::TierId tier) const noexcept {
  ASHLAR_CHECK(tier.value() < events::kMaxTiers, "tier %u; there are %u", tier.value(), events::kMaxTiers);
  // relaxed: presence is a count; a caller that needs the block itself matches it.
  return entry_->presence[tier.value()].load(std::memory_order_relaxed) != 0;
}

bool RegistrationHandle::has_any_block(std::span<const events::TierId> tiers) const noexcept {
  for (const events::TierId tier : tiers) {
    if (has_block(tier)) return true;
  }
  return false;
}

TouchId RegistrationHandle::on_touch(TouchCallback callback) const {
  return entries_->add_touch_callback(*entry_, std::move(callback));
}

bool RegistrationHandle::remove_touch(TouchId id) const {
  return detail::RegistryEntries::remove_touch_callback(*entry_, id);
}

void RegistrationHandle::touch() const {
  entries_->touch(*entry_);
}

}  // namespace ashlar::block
