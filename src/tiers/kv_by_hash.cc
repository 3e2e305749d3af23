// The calls of KvBlockManager that find blocks by hash in every tier.
#include <algorithm>
#include <utility>

#include "ashlar/base/check.h"
#include "tiers/kv_assembly.h"

namespace ashlar::tiers {

using events::kTierId;
using tokens::SequenceHash;

// ---- KvPin

KvPin& KvPin::operator=(KvPin&& other) noexcept {
  if (this == &other) return *this;
  if (request_ != nullptr) request_->end();
  request_ = std::move(other.request_);
  return *this;
}

KvPin::~KvPin() {
  if (request_ != nullptr) request_->end();
}

bool KvPin::active() const {
  return request_ != nullptr && request_->active();
}

std::size_t KvPin::pinned() const {
  return request_ == nullptr ? 0 : request_->pinned();
}

std::size_t KvPin::refused() const {
  return request_ == nullptr ? 0 : request_->refused();
}

void KvPin::unpin() && {
  if (const std::shared_ptr<PinRequest> request = std::exchange(request_, nullptr)) request->end();
}

Result<KvPin> KvBlockManager::pin(std::span<const SequenceHash> hashes, Clock::Duration ttl) {
  return unless_out_of_memory([&]() -> Result<KvPin> {
    const std::vector<TierPool*> pools = assembly_->stack.pools();
    ASHLAR_TRY(std::shared_ptr<PinRequest> request, assembly_->pins->pin(hashes, ttl, pools));
    return KvPin(std::move(request));
  });
}

// ---- values

namespace {

// Calls set(pool, hash) for every tier, from the fastest down, and counts the hashes that some tier has.
// Errors: the first that is not kNotFound.
template <class Set>
Result<std::size_t> set_each(TierStack& stack, std::span<const SequenceHash> hashes, Set&& set) {
  std::vector<bool> found(hashes.size());
  const std::vector<TierPool*> pools = stack.pools();
  const auto set_all = [&]() -> Result<void> {
    for (TierPool* const pool : pools)
      for (std::size_t i = 0; i < hashes.size(); ++i) {
        const Result<void> done = set(*pool, hashes[i]);
        if (done) found[i] = true;
        if (!done && done.error().code() != ErrorCode::kNotFound) return done;
      }
    return {};
  };
  ASHLAR_RETURN_IF_ERROR(stack.values.set(set_all));
  for (TierPool* const pool : pools) ASHLAR_RETURN_IF_ERROR(pool->save_values(hashes));
  return static_cast<std::size_t>(std::ranges::count(found, true));
}

}  // namespace

Result<std::size_t> KvBlockManager::set_retention(std::span<const SequenceHash> hashes,
                                                  const block::BlockRetention& retention) {
  ASHLAR_RETURN_IF_ERROR(retention.validate());
  ASHLAR_TRY(const std::size_t found, unless_out_of_memory([&] {
               return set_each(assembly_->stack, hashes, [&](TierPool& pool, const SequenceHash& hash) {
                 return pool.set_retention(hash, retention);
               });
             }));
  // After the tiers: a block that arrives in G2 meanwhile is queued as it says there. G1 tells its own queue.
  for (OffloadWorker* const worker : {assembly_->to_g3.get(), assembly_->to_g4.get()})
    if (worker != nullptr)
      for (const SequenceHash& hash : hashes) worker->set_priority(hash, retention.priority);
  return found;
}

Result<std::size_t> KvBlockManager::set_metadata(std::span<const SequenceHash> hashes,
                                                 std::uint32_t metadata) {
  return unless_out_of_memory([&] {
    return set_each(assembly_->stack, hashes, [&](TierPool& pool, const SequenceHash& hash) {
      return pool.set_metadata(hash, metadata);
    });
  });
}

// ---- looking inside

std::vector<TierPresence> KvBlockManager::presence(std::span<const SequenceHash> hashes) const {
  std::vector<TierPresence> out(hashes.size());
  for (const TierPool* const pool : assembly_->stack.pools()) {
    const std::vector<bool> here = registry().check_presence_any(hashes, {pool->tier()});
    for (std::size_t i = 0; i < hashes.size(); ++i)
      if (here[i]) out[i].bits |= static_cast<std::uint8_t>(1u << pool->tier().value());
  }
  return out;
}

std::optional<std::uint32_t> KvBlockManager::metadata(const SequenceHash& hash) const {
  for (const TierPool* const pool : assembly_->stack.pools())
    if (const std::optional<block::BlockDescription> found = pool->describe(hash))
      return found->identity->metadata;
  return std::nullopt;
}

const TierBlock* KvBlockDescription::in(events::TierId tier) const noexcept {
  const auto at = std::ranges::find(tiers, tier, &TierBlock::tier);
  return at == tiers.end() ? nullptr : &*at;
}

namespace {

// Adds what `more` knows and `identity` does not.
void complete(block::BlockIdentity& identity, const block::BlockIdentity& more) {
  if (!identity.parent) identity.parent = more.parent;
  if (!identity.root) identity.root = more.root;
  if (!identity.local) identity.local = more.local;
  if (!identity.prefix.is_known()) identity.prefix = more.prefix;
  if (identity.salt == tokens::SaltFingerprint()) identity.salt = more.salt;
}

}  // namespace

std::string KvBlockManager::Assembly::location_name(std::uint16_t location) const {
  if (location >= EventLocation::kFirstPeer)
    return stack.remote == nullptr
               ? std::string()
               : stack.remote->peer_name(static_cast<std::uint16_t>(location - EventLocation::kFirstPeer));
  if (location >= EventLocation::kFirstVolume && stack.g4 != nullptr)
    return stack.g4->volume_name(static_cast<std::uint16_t>(location - EventLocation::kFirstVolume));
  if (location < EventLocation::kFirstFile || !options.g3) return {};
  const std::size_t file = location - EventLocation::kFirstFile;
  return file < options.g3->paths.size() ? options.g3->paths[file] : std::string();
}

std::optional<KvBlockDescription> KvBlockManager::describe(const SequenceHash& hash) const {
  std::optional<KvBlockDescription> out;
  for (TierPool* const pool : assembly_->stack.pools()) {
    std::optional<block::BlockDescription> found = pool->describe(hash);
    if (!found) continue;
    if (!out) {
      out.emplace();
      out->hash = hash;
      out->identity = *found->identity;
      out->identity.location = 0;
      out->retention = found->retention.value_or(block::BlockRetention());
    }
    complete(out->identity, *found->identity);
    TierBlock& here = out->tiers.emplace_back();
    here.tier = pool->tier();
    here.bytes = pool->block_bytes();
    here.location = assembly_->location_name(found->identity->location);
    here.block = *std::move(found);
    // It may have been evicted since.
    if (const std::optional<block::Hold> held = pool->hold(hash)) {
      here.since = pool->records().since(*held);
      here.checksum = pool->records().checksum(*held);
      here.being_written = pool->records().precondition(*held).has_value();
    }
  }
  if (out) out->pins = assembly_->pins->requests_for(hash);
  return out;
}

}  // namespace ashlar::tiers
