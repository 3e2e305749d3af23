// The bytes of a file volume: superblock, headers, and their offsets. docs/formats/file_volume.md has the
// tables.
//
// Thread safety: immutable values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "tiers/volume/file_volume.h"

namespace ashlar::tiers::file_volume {

constexpr std::uint64_t kPage = 4096;
constexpr std::size_t kSuperblockBytes = 512;  // one sector: it is written whole or not at all
constexpr std::size_t kHeaderBytes = 256;      // none crosses a sector
constexpr std::uint64_t kTable = kPage;
static_assert(kSuperblockBytes % kHeaderBytes == 0, "no header crosses a sector");
static_assert(kSuperblockBytes <= kTable, "the table begins behind the superblock");

using Superblock = std::array<std::byte, kSuperblockBytes>;
using HeaderBytes = std::array<std::byte, kHeaderBytes>;

// Offset of the slots, and the total size; empty on overflow.
struct FileVolumePlaces {
  std::uint64_t slots = 0;
  std::uint64_t end = 0;
};
std::optional<FileVolumePlaces> places_of(const FileVolumeShape& shape);
// The most slots of `slot_bytes` that fit in `bytes`.
std::uint64_t slots_in(std::uint64_t bytes, std::uint64_t slot_bytes);

Superblock encode(const FileVolumeShape& shape);
// Errors: kInvalidArgument: not ours; kCorruption: damaged; kUnsupported: a newer version.
Result<FileVolumeShape> decode(const std::string& path, std::span<const std::byte> bytes);

// Describes the object in a slot.
struct Header {
  std::string_view key;
  std::uint64_t generation = 0;
  std::uint64_t bytes = 0;
  std::uint64_t checksum = 0;
};
// Requires: the key has at most FileVolume::kLongestKey characters.
HeaderBytes encode(std::uint32_t slot, const Header& header);
// Empty for a header that is empty, torn, or another slot's. The key points into `bytes`.
std::optional<Header> decode(std::uint32_t slot, std::span<const std::byte> bytes,
                             const FileVolumeShape& shape);

// XXH3-64 over all parts.
std::uint64_t checksum_of(std::span<const std::span<const std::byte>> parts);
std::uint64_t checksum_of(std::span<const std::span<std::byte>> parts);

}  // namespace ashlar::tiers::file_volume
