// TierPool: type-erased view of one tier, for code that moves blocks. BytePool: a tier whose bytes this
// process can copy: memory or files.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/fence.h"
#include "ashlar/block/manager_options.h"
#include "ashlar/block/pin.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_set.h"
#include "tiers/pool/record_table.h"
#include "tiers/pool/tier_record.h"

namespace ashlar::tiers {

class TierPool {
 public:
  virtual ~TierPool() = default;

  virtual events::TierId tier() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;
  // The name that routers use.
  virtual events::StorageTier storage_tier() const noexcept = 0;

  // Pins a block in the tier. Empty when the tier does not have it.
  virtual std::optional<block::Hold> hold(const tokens::SequenceHash& hash) = 0;
  virtual bool has(const tokens::SequenceHash& hash) = 0;
  // Removes a block now, or with its last reference while it is in use. A restart does not find it again.
  // Errors: kNotFound; kIo.
  virtual Result<void> remove(const tokens::SequenceHash& hash) = 0;
  virtual TierRecord record(const block::Hold& hold) const = 0;
  // By hash, as BlockManager's calls of these names. Errors: kNotFound; theirs.
  virtual Result<block::Pin> pin(const tokens::SequenceHash& hash, Clock::Duration ttl) = 0;
  virtual Result<void> set_retention(const tokens::SequenceHash& hash,
                                     const block::BlockRetention& retention) = 0;
  virtual Result<void> set_metadata(const tokens::SequenceHash& hash, std::uint32_t metadata) = 0;
  virtual std::optional<block::BlockDescription> describe(const tokens::SequenceHash& hash) const = 0;
  // Whether retention and metadata of a block are known here. False: defaults may mean that they have not
  // been read yet.
  virtual bool knows_values(const block::Hold&) const { return true; }
  // Makes retention and metadata of these blocks survive a restart, where the tier does. Errors: kIo.
  virtual Result<void> save_values(std::span<const tokens::SequenceHash>) { return {}; }
  // Whether the tier has the block with another salt. Unknown salts are not compared.
  bool has_other_salt(const tokens::SequenceHash& hash, const tokens::SaltFingerprint& salt) {
    return has_other_text(hash, {.salt = salt});
  }
  // Whether the tier has the block with another prefix digest. Unknown digests are not compared.
  bool has_other_prefix(const tokens::SequenceHash& hash, const tokens::PrefixDigest& prefix) {
    return has_other_text(hash, {.prefix = prefix});
  }
  // Either of the two.
  bool has_other_text(const tokens::SequenceHash& hash, const BlockText& text) {
    if (text == BlockText() || !has(hash)) return false;
    const std::optional<block::Hold> held = hold(hash);
    return held && !record(*held).text().agrees_with(text);
  }
  virtual const RecordTable& records() const noexcept = 0;
  virtual RecordTable& records() noexcept = 0;
  virtual std::size_t capacity() const noexcept = 0;
  // Of one block.
  virtual std::uint64_t block_bytes() const noexcept = 0;
};

// The outcome of a publish().
struct Published {
  std::vector<bool> registered;  // in the order of the records
  std::optional<Error> error;    // the first
};

// Empty blocks of a tier, about to be filled. Destruction returns blocks that were not published to their
// pool, and releases the others.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::span<const block::BlockId> ids() const noexcept = 0;
  // Registers block i as records[i], which makes it visible in the tier. A block with an empty record returns
  // to the pool. Requires: every byte of the others has arrived, which `ready` proves.
  virtual Published publish(std::span<const TierRecord> records, const block::KvReady& ready) = 0;
  // Reports that block i could not be filled. A pool may avoid its device for a while.
  virtual void not_written(std::size_t, const Error&) {}
};

class BytePool : public TierPool {
 public:
  // Where the bytes of a block lie. A pool may have several block sets, on devices that fail independently.
  struct Place {
    std::uint32_t part = 0;
    std::uint32_t slot = 0;
  };

  virtual const std::shared_ptr<const transfer::BlockSet>& blocks(std::uint32_t part = 0) const noexcept = 0;
  virtual Place place(block::BlockId id) const noexcept { return {0, id.value()}; }
  // Takes n empty blocks, or none; evicts as needed. Errors: kCapacity with the numbers; kIo.
  virtual Result<std::unique_ptr<Reservation>> reserve(std::size_t n) = 0;
  std::uint64_t block_bytes() const noexcept override { return blocks()->block_bytes(); }
};

}  // namespace ashlar::tiers
