// TierRecord: metadata that travels with a block from tier to tier.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "ashlar/base/check.h"
#include "ashlar/base/clock.h"
#include "ashlar/block/block_identity.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "ashlar/transfer/block_checksum.h"

namespace ashlar::tiers {

// The location in the events of a tier: 0 for memory, else the number of a G3 file, a G4 volume or a peer.
struct EventLocation {
  static constexpr std::uint16_t kFirstFile = 1;
  static constexpr std::uint16_t kFirstVolume = 0x1000;
  static constexpr std::uint16_t kFirstPeer = 0x8000;
  static std::uint16_t file(std::size_t number) { return static_cast<std::uint16_t>(kFirstFile + number); }
  static std::uint16_t volume(std::size_t number) {
    return static_cast<std::uint16_t>(kFirstVolume + number);
  }
  static std::uint16_t peer(std::size_t number) {
    return static_cast<std::uint16_t>(kFirstPeer + number % kFirstPeer);
  }
};

// What a caller knows of a stretch of a sequence beyond its hashes.
struct BlockLineage {
  std::optional<tokens::SequenceHash> parent = {};  // the block before the first
  std::optional<tokens::SequenceHash> root = {};    // the first block of the sequence
  std::span<const tokens::LocalHash> locals = {};   // of their own tokens, one per hash or none
  std::uint16_t group = 0;                          // group of layers
};

// What a name stands for, as far as it is known: the salt, and the digest of all tokens up to the block's
// end.
struct BlockText {
  tokens::SaltFingerprint salt = {};
  tokens::PrefixDigest prefix = {};

  // False only when both salts, or both prefix digests, are known and differ: the text is not the same. Of
  // three, two may each agree with an unknown one and not with each other: see learn().
  bool agrees_with(const BlockText& other) const noexcept {
    const tokens::SaltFingerprint unknown;
    return prefix.agrees_with(other.prefix) &&
           (salt == other.salt || salt == unknown || other.salt == unknown);
  }
  // Takes over what only `other` knows, so that the next is compared with all before it. Requires: they
  // agree.
  void learn(const BlockText& other) noexcept {
    ASHLAR_DCHECK(agrees_with(other), "a salt or a prefix digest would be lost for another one");
    if (salt == tokens::SaltFingerprint()) salt = other.salt;
    if (!prefix.is_known()) prefix = other.prefix;
  }

  friend bool operator==(const BlockText&, const BlockText&) = default;
};

struct TierRecord {
  tokens::SequenceHash hash = {};    // zero: no block
  tokens::SequenceHash parent = {};  // its predecessor; zero for the first of a sequence, or when unknown
  tokens::SaltFingerprint salt = {};
  tokens::PrefixDigest prefix = {};                      // unknown: the name is trusted
  std::optional<tokens::SequenceHash> root = {};         // the first of its sequence, if known
  std::optional<tokens::LocalHash> local = {};           // the hash of its own tokens, if known
  std::uint16_t group = 0;                               // group of layers
  std::uint32_t metadata = 0;                            // the caller's own
  block::BlockRetention retention = {};                  // also its place in offload queues
  std::optional<transfer::BlockChecksum> checksum = {};  // empty: its bytes have not been in host memory
  Clock::TimePoint since = {};                           // when it entered its tier

  bool empty() const noexcept { return hash == tokens::SequenceHash(); }
  BlockText text() const noexcept { return {salt, prefix}; }
  bool agrees_with(const TierRecord& other) const noexcept { return text().agrees_with(other.text()); }
  // As BlockText::learn().
  void learn_text(const BlockText& other) noexcept {
    BlockText its = text();
    its.learn(other);
    salt = its.salt;
    prefix = its.prefix;
  }
  // The identity under which a block of this record is staged. `location` goes into its events.
  block::BlockIdentity identity(std::uint16_t location = 0) const {
    return {.hash = hash,
            .parent = parent == tokens::SequenceHash() ? std::nullopt : std::optional(parent),
            .root = hash.position() == 0 ? std::optional(hash) : root,
            .local = local,
            .location = location,
            .group = group,
            .metadata = metadata,
            .prefix = prefix,
            .salt = salt};
  }
  // The record of a block that its manager knows by this identity.
  static TierRecord of(const block::BlockIdentity& identity) {
    return {.hash = identity.hash,
            .parent = identity.parent.value_or(tokens::SequenceHash()),
            .salt = identity.salt,
            .prefix = identity.prefix,
            .root = identity.root,
            .local = identity.local,
            .group = identity.group,
            .metadata = identity.metadata};
  }
  // What a header on a disk or a volume keeps of a record, by fields of the same names, without the checksum.
  template <class Header>
  static TierRecord read_from(const Header& header) {
    return {.hash = header.hash,
            .parent = header.parent,
            .salt = header.salt,
            .prefix = header.prefix,
            .root = header.root,
            .local = header.local,
            .group = header.group,
            .metadata = header.metadata,
            .retention = {.priority = header.priority}};
  }
  template <class Header>
  void write_to(Header& header) const {
    header.hash = hash;
    header.parent = parent;
    header.salt = salt;
    header.prefix = prefix;
    header.root = root;
    header.local = local;
    header.group = group;
    header.metadata = metadata;
    header.priority = retention.priority;
  }
};

}  // namespace ashlar::tiers
