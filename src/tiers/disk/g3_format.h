// The bytes of a G3 file: superblock, headers, and their offsets. docs/formats/g3_file.md has the tables.
//
// Thread safety: plain values; thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/layout/layout_descriptor.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tokens/namespace_fingerprint.h"
#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"
#include "ashlar/transfer/block_checksum.h"
#include "ashlar/transfer/block_set.h"
#include "tiers/disk/removal_log.h"

namespace ashlar::tiers {

inline constexpr std::uint64_t kG3Page = 4096;
inline constexpr std::uint64_t kG3Removals = kG3Page;  // where the two copies of the log begin
inline constexpr std::uint64_t kG3HeaderBytes = 256;
inline constexpr std::size_t kG3ReadAtATime = std::size_t{1} << 20;  // of the table
static_assert(512 % kG3HeaderBytes == 0, "no header crosses a sector: it is written whole or not at all");
static_assert(kG3ReadAtATime % kG3HeaderBytes == 0, "reads cover whole headers");

// Where the parts of a file begin.
struct G3Places {
  std::uint64_t table = kG3Removals + 2 * RemovalLog::kBytes;
  std::vector<std::uint64_t> planes;
  std::uint64_t end = 0;

  // Requires: at least one plane.
  static G3Places of(std::span<const transfer::PlaneShape> planes);
};

// What a superblock says.
struct G3Superblock {
  std::uint32_t plane_count = 0;
  tokens::NamespaceFingerprint keys = {};       // of the namespace: model, dtype, layout, block size
  std::uint64_t scheme_fingerprint = 0;         // of the hash scheme
  std::uint64_t prefix_key = 0;                 // fingerprint of the key of prefix digests
  layout::Shard shard = {};                     // of the first plane, with the rank
  std::span<const std::byte> descriptors = {};  // of the planes; points into the parsed bytes

  // The page that the file begins with; `set` describes its planes.
  std::vector<std::byte> encode(const transfer::BlockSet& set) const;
  // `path` is for messages. Errors: kAlreadyExists: no G3 file; kCorruption: damaged; kUnsupported: another
  // version.
  static Result<G3Superblock> parse(const std::string& path, std::span<const std::byte> bytes);
  // Errors: kInvalidArgument, kCorruption: descriptors that do not hold together.
  Result<std::vector<layout::LayoutDescriptor>> planes() const;
};

// Describes the content of one block.
struct G3Header {
  tokens::SequenceHash hash = {};
  tokens::SequenceHash parent = {};        // zero for the first block of a sequence, or when unknown
  tokens::NamespaceFingerprint salt = {};  // 128 bits over LoRA name and tenant; zero when unknown
  transfer::BlockChecksum checksum = {};
  std::uint64_t generation = 0;  // grows with every commit; 0: assigned by the file
  bool has_parent = false;
  tokens::PrefixDigest prefix = {};  // under the key of the file; unknown: the name is trusted
  std::optional<tokens::SequenceHash> root = {};
  std::optional<tokens::LocalHash> local = {};
  std::uint32_t metadata = 0;
  std::uint16_t group = 0;
  std::uint8_t priority = block::BlockRetention::kDefaultPriority;

  friend bool operator==(const G3Header&, const G3Header&) = default;
};

// What all headers of a file share.
struct G3BlockKind {
  std::uint64_t block_bytes = 0;
  layout::Shard shard = {};  // of the first plane
};
std::array<std::byte, kG3HeaderBytes> encode_g3_header(std::uint32_t slot, const G3Header& header,
                                                       const G3BlockKind& kind);
// Empty for a header that is empty, torn, in the wrong place or of another rank.
std::optional<G3Header> decode_g3_header(std::uint32_t slot, std::span<const std::byte> bytes,
                                         const G3BlockKind& kind);

}  // namespace ashlar::tiers
