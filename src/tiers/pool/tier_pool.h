// TierPool: the blocks of one tier, as those see them who move blocks between tiers: without its type.
// BytePool: one whose bytes this process can copy: memory, or files.
//
// Thread safety: thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/fence.h"
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
  // As routers call it.
  virtual events::StorageTier storage_tier() const noexcept = 0;

  // Keeps a block of the tier where it is. Nothing when it is not there.
  virtual std::optional<block::Hold> hold(const tokens::SequenceHash& hash) = 0;
  virtual bool has(const tokens::SequenceHash& hash) = 0;
  // Removes a block that nobody uses; one that is in use goes with its last reference. It is not found by a
  // restart from now on. Errors: kNotFound; kIo.
  virtual Result<void> remove(const tokens::SequenceHash& hash) = 0;
  virtual TierRecord record(const block::Hold& hold) const = 0;
  // Whether the tier has a block of that name with another salt. Salts that are not known are not compared.
  bool has_other_salt(const tokens::SequenceHash& hash, const SaltFingerprint& salt) {
    const SaltFingerprint unknown;
    if (salt == unknown || !has(hash)) return false;
    const std::optional<block::Hold> held = hold(hash);
    if (!held) return false;
    const SaltFingerprint its = record(*held).salt;
    return its != unknown && its != salt;
  }
  // What blocks that are still being written wait for, one for each; none when no block waits.
  std::vector<block::Fence> preconditions(std::span<const tokens::SequenceHash> hashes) {
    std::vector<block::Fence> out;
    if (!records().has_preconditions()) return out;
    for (std::size_t i = 0; i < hashes.size(); ++i) {
      const std::optional<block::Hold> held = hold(hashes[i]);
      const std::optional<block::Fence> after = held ? records().precondition(*held) : std::nullopt;
      if (!after) continue;
      if (out.empty()) out.assign(hashes.size(), block::Fence::passed_already());
      out[i] = *after;
    }
    return out;
  }
  virtual const RecordTable& records() const noexcept = 0;
  virtual RecordTable& records() noexcept = 0;
  virtual std::size_t capacity() const noexcept = 0;
  // Of one block.
  virtual std::uint64_t block_bytes() const noexcept = 0;
};

// What became of blocks that were to be registered.
struct Published {
  std::vector<bool> registered;  // in the order of the records
  std::optional<Error> error;    // the first
};

// Empty blocks of a tier, about to be filled. Those that are not published go back to their pool; those that
// are, are in use as long as this is there.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::span<const block::BlockId> ids() const noexcept = 0;
  // Registers block i as records[i]; the tier can be asked for them from then on. Empty records are left out,
  // and their blocks go back. Requires: every byte of the others has arrived, which `ready` says.
  virtual Published publish(std::span<const TierRecord> records, const block::KvReady& ready) = 0;
  // Block i could not be filled. A pool may hand out others for a while.
  virtual void not_written(std::size_t, const Error&) {}
};

class BytePool : public TierPool {
 public:
  // Where the bytes of a block lie: a pool may have several sets of blocks, on devices that fail one by one.
  struct Place {
    std::uint32_t part = 0;
    std::uint32_t slot = 0;
  };

  virtual const std::shared_ptr<const transfer::BlockSet>& blocks(std::uint32_t part = 0) const noexcept = 0;
  virtual Place place(block::BlockId id) const noexcept { return {0, id.value()}; }
  // All or nothing; evicts what has to go. Errors: kCapacity with the numbers; kIo.
  virtual Result<std::unique_ptr<Reservation>> reserve(std::size_t n) = 0;
  std::uint64_t block_bytes() const noexcept override { return blocks()->block_bytes(); }
};

}  // namespace ashlar::tiers
