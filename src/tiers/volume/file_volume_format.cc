#include "tiers/volume/file_volume_format.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ashlar/base/check.h"
#include "base/byte_io.h"
#include "base/checked_math.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers::file_volume {
namespace {

constexpr std::array<char, 8> kVolumeMagic = {'A', 'S', 'H', 'L', 'A', 'R', 'F', 'V'};
constexpr std::uint32_t kVersion = 1;
constexpr std::uint32_t kHeaderMagic = 0x6a626f56;  // "Vobj"
constexpr std::size_t kKeyAt = 36;
static_assert(kKeyAt + FileVolume::kLongestKey <= kHeaderBytes - sizeof(std::uint64_t));

// Zeros up to the checksum, and the checksum.
template <std::size_t N>
std::array<std::byte, N> seal(ByteWriter& out) {
  out.bytes().resize(N - sizeof(std::uint64_t));
  out.put(std::uint64_t{XXH3_64bits(out.bytes().data(), out.bytes().size())});
  std::array<std::byte, N> bytes;
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

bool is_sealed(std::span<const std::byte> bytes) {
  const std::size_t covered = bytes.size() - sizeof(std::uint64_t);
  ByteReader end(bytes.subspan(covered));
  return end.get<std::uint64_t>() == XXH3_64bits(bytes.data(), covered);
}

template <class Byte>
std::uint64_t checksum(std::span<const std::span<Byte>> parts) {
  XXH3_state_t state;
  XXH3_64bits_reset(&state);
  for (const std::span<Byte>& part : parts) XXH3_64bits_update(&state, part.data(), part.size());
  return XXH3_64bits_digest(&state);
}

}  // namespace

std::optional<FileVolumePlaces> places_of(const FileVolumeShape& shape) {
  FileVolumePlaces places;
  std::uint64_t table = 0;
  std::uint64_t bytes = 0;
  if (!multiply(shape.slots, kHeaderBytes, &table) || !align_up(table, kPage, &table) ||
      !add(kTable, table, &places.slots) || !multiply(shape.slots, shape.slot_bytes, &bytes) ||
      !add(places.slots, bytes, &places.end))
    return std::nullopt;
  return places;
}

std::uint64_t slots_in(std::uint64_t bytes, std::uint64_t slot_bytes) {
  if (bytes <= kTable) return 0;
  std::uint64_t slots = std::min<std::uint64_t>((bytes - kTable) / (slot_bytes + kHeaderBytes),
                                                std::numeric_limits<std::uint32_t>::max());
  // The table takes whole pages, which may cost one more.
  while (slots > 0 && places_of({.slot_bytes = slot_bytes, .slots = slots})->end > bytes) --slots;
  return slots;
}

Superblock encode(const FileVolumeShape& shape) {
  ByteWriter out;
  for (const char c : kVolumeMagic) out.put(static_cast<std::uint8_t>(c));
  out.put(kVersion);
  out.put(static_cast<std::uint32_t>(kHeaderBytes));
  out.put(shape.slot_bytes);
  out.put(shape.slots);
  return seal<kSuperblockBytes>(out);
}

Result<FileVolumeShape> decode(const std::string& path, std::span<const std::byte> bytes) {
  if (std::memcmp(bytes.data(), kVolumeMagic.data(), kVolumeMagic.size()) != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "%s is not a file volume and was left alone; call provision_file_volume() once on an "
                      "empty file or device before it is attached",
                      path.c_str());
  if (!is_sealed(bytes))
    return make_error(ErrorCode::kCorruption, "the superblock of %s is damaged; it was left alone",
                      path.c_str());
  ByteReader in(bytes.subspan(kVolumeMagic.size()));
  const auto version = in.get<std::uint32_t>();
  if (version != kVersion)
    return make_error(ErrorCode::kUnsupported, "%s has version %u, this program reads version %u",
                      path.c_str(), version, kVersion);
  const auto header_bytes = in.get<std::uint32_t>();
  FileVolumeShape shape;
  shape.slot_bytes = in.get<std::uint64_t>();
  shape.slots = in.get<std::uint64_t>();
  if (header_bytes != kHeaderBytes || shape.slot_bytes == 0 || shape.slot_bytes % kPage != 0 ||
      shape.slots == 0 || shape.slots > std::numeric_limits<std::uint32_t>::max() || !places_of(shape))
    return make_error(
        ErrorCode::kCorruption,
        "the superblock of %s says %llu slots of %llu bytes, which is impossible; it was left alone",
        path.c_str(), static_cast<unsigned long long>(shape.slots),
        static_cast<unsigned long long>(shape.slot_bytes));
  return shape;
}

HeaderBytes encode(std::uint32_t slot, const Header& header) {
  ASHLAR_CHECK(header.key.size() <= FileVolume::kLongestKey, "a key of %zu characters", header.key.size());
  ByteWriter out;
  out.put(kHeaderMagic);
  out.put(slot);
  out.put(header.generation);
  out.put(header.bytes);
  out.put(header.checksum);
  out.put(static_cast<std::uint32_t>(header.key.size()));
  out.put_bytes(std::as_bytes(std::span(header.key)));
  return seal<kHeaderBytes>(out);
}

std::optional<Header> decode(std::uint32_t slot, std::span<const std::byte> bytes,
                             const FileVolumeShape& shape) {
  ByteReader in(bytes);
  if (in.get<std::uint32_t>() != kHeaderMagic || in.get<std::uint32_t>() != slot || !is_sealed(bytes))
    return std::nullopt;
  Header header;
  header.generation = in.get<std::uint64_t>();
  header.bytes = in.get<std::uint64_t>();
  header.checksum = in.get<std::uint64_t>();
  const auto length = in.get<std::uint32_t>();
  if (length > FileVolume::kLongestKey || header.bytes > shape.slot_bytes) return std::nullopt;
  const std::span<const std::byte> key = in.get_bytes(length);
  header.key = {reinterpret_cast<const char*>(key.data()), key.size()};
  if (!check_key(header.key)) return std::nullopt;
  return header;
}

std::uint64_t checksum_of(std::span<const std::span<const std::byte>> parts) {
  return checksum(parts);
}

std::uint64_t checksum_of(std::span<const std::span<std::byte>> parts) {
  return checksum(parts);
}

}  // namespace ashlar::tiers::file_volume
