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
#include <span>
#include <string>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_config.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"

namespace ashlar::tiers {

struct VolumeObject {
  static constexpr std::size_t kHeaderBytes = 256;
  static constexpr std::uint32_t kVersion = 2;

  tokens::SequenceHash hash = {};
  tokens::NamespaceFingerprint keys = {};  // model, dtype, layout, block size
  tokens::NamespaceFingerprint salt = {};  // over LoRA name and tenant; zero when they were not known
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme
  transfer::BlockChecksum checksum = {};   // of the block, in canonical form
  layout::Shard shard = {};                // of the first plane, with the rank
  std::uint32_t block_size = 0;
  std::uint32_t planes = 0;
  layout::Dtype dtype = layout::Dtype::kBF16;  // of the first plane
  std::uint64_t payload_bytes = 0;
  std::uint64_t shapes = 0;  // fingerprint of the shapes of all planes

  // What a set says about itself; hash, salt and checksum are the block's.
  static VolumeObject describe(const transfer::BlockSet& set, const tokens::NamespaceFingerprint& keys,
                               std::uint64_t scheme_fingerprint);

  // One key per block, namespace, scheme, rank and shard: other ranks' parts of a block are objects of their
  // own.
  std::string key() const;

  std::array<std::byte, kHeaderBytes> encode() const;
  // Errors: kInvalidArgument: no header of ours; kUnsupported: another version; kCorruption: damaged.
  static Result<VolumeObject> decode(std::span<const std::byte> bytes);
  // Whether `found` is the object that this one describes: everything but checksum and, where either does not
  // know it, salt. Errors: kCorruption, naming what differs.
  Result<void> expect(const VolumeObject& found) const;

  friend bool operator==(const VolumeObject&, const VolumeObject&) = default;
};

}  // namespace ashlar::tiers
