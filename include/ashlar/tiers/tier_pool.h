// TierPool: the blocks of one tier with their bytes, as those see them who move blocks between tiers: without its type.
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
#include "ashlar/block/hold.h"
#include "ashlar/events/storage_tier.h"
#include "ashlar/events/tier.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/transfer.h"

namespace ashlar::tiers {

// What a block that arrives in a tier is.
struct Arrival {
  tokens::SequenceHash hash = {};
  transfer::BlockChecksum checksum = {};
};

// Empty blocks of a tier, about to be filled. Those that are not published go back to their pool.
class Reservation {
 public:
  virtual ~Reservation() = default;
  virtual std::span<const std::uint32_t> slots() const noexcept = 0;
  // Registers block i as arrivals[i]; the tier can be asked for them from then on. Arrivals with a zero hash are left out, and
  // their blocks go back. Requires: every byte has arrived, which `proof` says. Errors: kIo, kCapacity: none is registered.
  virtual Result<void> publish(std::span<const Arrival> arrivals, const transfer::TransferDone& proof) = 0;
};

class TierPool {
 public:
  virtual ~TierPool() = default;

  virtual events::TierId tier() const noexcept = 0;
  virtual std::string_view name() const noexcept = 0;
  // As routers call it.
  virtual events::StorageTier storage_tier() const noexcept = 0;
  virtual const std::shared_ptr<const transfer::BlockSet>& blocks() const noexcept = 0;

  // Keeps a block of the tier where it is. Nothing when it is not there.
  virtual std::optional<block::Hold> hold(const tokens::SequenceHash& hash) = 0;
  virtual bool has(const tokens::SequenceHash& hash) = 0;
  // All or nothing; evicts what has to go. Errors: kCapacity with the numbers; kIo.
  virtual Result<std::unique_ptr<Reservation>> reserve(std::size_t n) = 0;
  // Removes a block that nobody uses; one that is in use goes with its last reference. It is not found by a restart from now
  // on. Errors: kNotFound; kIo.
  virtual Result<void> remove(const tokens::SequenceHash& hash) = 0;
  // Of a block that somebody holds; nothing where the tier keeps none.
  virtual std::optional<transfer::BlockChecksum> checksum(std::uint32_t slot) const = 0;
};

}  // namespace ashlar::tiers
