// TierRecord: what travels with a block from tier to tier, beside its bytes.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>

#include "ashlar/base/clock.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/tiers/salt_fingerprint.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_checksum.h"

namespace ashlar::tiers {

// The location in the events of a tier: 0 for memory, else the number of a G3 file or a G4 volume.
struct EventLocation {
  static constexpr std::uint16_t kFirstFile = 1;
  static constexpr std::uint16_t kFirstVolume = 0x1000;
  static std::uint16_t file(std::size_t number) { return static_cast<std::uint16_t>(kFirstFile + number); }
  static std::uint16_t volume(std::size_t number) {
    return static_cast<std::uint16_t>(kFirstVolume + number);
  }
};

struct TierRecord {
  tokens::SequenceHash hash = {};  // zero: no block
  tokens::SequenceHash parent =
      {};  // the block before it; zero for the first of a sequence, or when it is not known
  SaltFingerprint salt = {};
  std::uint8_t priority =
      block::BlockRetention::kDefaultPriority;           // in the queues of those who wait to go down
  std::optional<transfer::BlockChecksum> checksum = {};  // nothing: its bytes have not been in host memory
  Clock::TimePoint since = {};                           // when it came into its tier

  bool empty() const noexcept { return hash == tokens::SequenceHash(); }
  // What a block of this record is staged as. `location` is what its events say.
  block::BlockIdentity identity(std::uint16_t location = 0) const {
    return {.hash = hash,
            .parent = parent == tokens::SequenceHash() ? std::nullopt : std::optional(parent),
            .root = hash.position() == 0 ? std::optional(hash) : std::nullopt,
            .location = location};
  }
};

}  // namespace ashlar::tiers
