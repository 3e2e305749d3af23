// VolumeObject: a block as an object of a volume: a header that describes it, then its bytes in canonical
// form.
//
// The header identifies the model, layout, shard and tokens of the block, and tells whether the object is
// complete. None of it is trusted before its checksum, hash and namespace match the request.
// docs/formats/volume_object.md has every byte.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/layout/layout_config.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"

namespace ashlar::tiers {

struct VolumeObject {
  static constexpr std::size_t kHeaderBytes = 256;
  static constexpr std::uint32_t kVersion = 3;

  tokens::SequenceHash hash = {};
  tokens::NamespaceFingerprint keys = {};  // model, dtype, layout, block size
  tokens::NamespaceFingerprint salt = {};  // over LoRA name and tenant; zero when unknown
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme
  transfer::BlockChecksum checksum = {};   // of the block, in canonical form
  layout::Shard shard = {};                // of the first plane, with the rank
  std::uint32_t block_size = 0;
  std::uint32_t planes = 0;
  layout::Dtype dtype = layout::Dtype::kBF16;  // of the first plane
  std::uint64_t payload_bytes = 0;
  std::uint64_t shapes = 0;          // fingerprint of the shapes of all planes
  std::uint64_t prefix_key = 0;      // fingerprint of the key of prefix digests
  tokens::PrefixDigest prefix = {};  // unknown: the name is trusted
  tokens::SequenceHash parent = {};  // zero for the first block of a sequence, or when unknown
  std::optional<tokens::SequenceHash> root = {};
  std::optional<tokens::LocalHash> local = {};
  std::uint32_t metadata = 0;
  std::uint16_t group = 0;
  std::uint8_t priority = block::BlockRetention::kDefaultPriority;

  // The description of a set; hash, salt and checksum are the block's.
  static VolumeObject describe(const transfer::BlockSet& set, const tokens::NamespaceFingerprint& keys,
                               std::uint64_t scheme_fingerprint, std::uint64_t prefix_key);

  // One key per block, namespace, scheme, key of digests, rank and shard: each rank's part of a block is its
  // own object.
  std::string key() const;

  std::array<std::byte, kHeaderBytes> encode() const;
  // Errors: kInvalidArgument: not our header; kUnsupported: another version; kCorruption: damaged.
  static Result<VolumeObject> decode(std::span<const std::byte> bytes);
  // Checks that `found` is the object described here: namespace, scheme, shard, shape, size, hash, key of the
  // digests and, where both sides know them, salt and digest. Errors: kCorruption, naming the difference.
  Result<void> expect(const VolumeObject& found) const;

  friend bool operator==(const VolumeObject&, const VolumeObject&) = default;
};

}  // namespace ashlar::tiers
