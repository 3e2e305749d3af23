#include "tiers/disk/g3_format.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/byte_io.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

constexpr std::array<char, 8> kG3Magic = {'A', 'S', 'H', 'L', 'A', 'R', 'G', '3'};
constexpr std::uint32_t kG3Version = 3;
constexpr std::uint32_t kG3HeaderMagic = 0x6b6c6247;  // "Gblk"
constexpr std::uint8_t kG3HasRoot = 1;
constexpr std::uint8_t kG3HasLocal = 2;

std::uint64_t up_to_page(std::uint64_t bytes) {
  return (bytes + kG3Page - 1) / kG3Page * kG3Page;
}

std::uint64_t g3_checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

void put_g3_shard(ByteWriter& out, const layout::Shard& shard) {
  for (const std::uint32_t number : {shard.rank, shard.ranks, shard.layers.first, shard.layers.count,
                                     shard.heads.first, shard.heads.count})
    out.put(number);
}

layout::Shard get_g3_shard(ByteReader& in) {
  layout::Shard shard;
  for (std::uint32_t* const number : {&shard.rank, &shard.ranks, &shard.layers.first, &shard.layers.count,
                                      &shard.heads.first, &shard.heads.count})
    *number = in.get<std::uint32_t>();
  return shard;
}

}  // namespace

G3Places G3Places::of(std::span<const transfer::PlaneShape> planes) {
  G3Places places;
  places.end = places.table + up_to_page(kG3HeaderBytes * planes[0].layout.config().block_count);
  for (const transfer::PlaneShape& plane : planes) {
    places.planes.push_back(places.end);
    places.end += up_to_page(plane.layout.region_bytes());
  }
  return places;
}

std::vector<std::byte> G3Superblock::encode(const transfer::BlockSet& set) const {
  ByteWriter out;
  for (const char c : kG3Magic) out.put(static_cast<std::uint8_t>(c));
  out.put(kG3Version);
  out.put(static_cast<std::uint32_t>(set.planes().size()));
  out.put(keys.hi());
  out.put(keys.lo());
  out.put(scheme_fingerprint);
  out.put(prefix_key);
  put_g3_shard(out, shard);
  for (std::size_t i = 0; i < set.planes().size(); ++i) {
    const std::vector<std::byte> descriptor = set.describe(i, 0, keys, scheme_fingerprint).serialize();
    out.put(static_cast<std::uint32_t>(descriptor.size()));
    out.put_bytes(descriptor);
  }
  out.bytes().resize(kG3Page - sizeof(std::uint64_t));
  out.put(g3_checksum(out.bytes()));
  return std::move(out.bytes());
}

Result<G3Superblock> G3Superblock::parse(const std::string& path, std::span<const std::byte> bytes) {
  if (bytes.size() < kG3Page || std::memcmp(bytes.data(), kG3Magic.data(), kG3Magic.size()) != 0)
    return make_error(ErrorCode::kAlreadyExists, "%s exists and is not a G3 file; it was left alone",
                      path.c_str());
  ByteReader end(bytes.subspan(kG3Page - sizeof(std::uint64_t)));
  if (end.get<std::uint64_t>() != g3_checksum(bytes.first(kG3Page - sizeof(std::uint64_t))))
    return make_error(ErrorCode::kCorruption, "the superblock of %s is damaged; the file was left alone",
                      path.c_str());
  ByteReader in(bytes.first(kG3Page - sizeof(std::uint64_t)).subspan(kG3Magic.size()));
  if (const auto version = in.get<std::uint32_t>(); version != kG3Version)
    return make_error(
        ErrorCode::kUnsupported,
        "%s has version %u, this program reads version %u; name another file, or remove this one: its "
        "blocks can be computed again",
        path.c_str(), version, kG3Version);
  G3Superblock superblock;
  superblock.plane_count = in.get<std::uint32_t>();
  const auto hi = in.get<std::uint64_t>();
  superblock.keys = tokens::NamespaceFingerprint::from_bits(hi, in.get<std::uint64_t>());
  superblock.scheme_fingerprint = in.get<std::uint64_t>();
  superblock.prefix_key = in.get<std::uint64_t>();
  superblock.shard = get_g3_shard(in);
  superblock.descriptors = in.get_bytes(in.left());
  return superblock;
}

Result<std::vector<layout::LayoutDescriptor>> G3Superblock::planes() const {
  std::vector<layout::LayoutDescriptor> planes;
  ByteReader in(descriptors);
  do {
    const auto bytes = in.get<std::uint32_t>();
    ASHLAR_TRY(layout::LayoutDescriptor descriptor,
               layout::LayoutDescriptor::deserialize(in.get_bytes(bytes)));
    planes.push_back(std::move(descriptor));
  } while (planes.size() < plane_count);
  return planes;
}

std::array<std::byte, kG3HeaderBytes> encode_g3_header(std::uint32_t slot, const G3Header& header,
                                                       const G3BlockKind& kind) {
  ByteWriter out;
  out.put(kG3HeaderMagic);
  out.put(slot);
  out.put(header.generation);
  out.put(header.hash.hi());
  out.put(header.hash.lo());
  out.put(header.parent.hi());
  out.put(header.parent.lo());
  out.put(std::uint64_t{header.has_parent ? 1u : 0u});
  out.put(header.salt.hi());
  out.put(header.salt.lo());
  out.put(kind.block_bytes);
  out.put(header.checksum.value());
  put_g3_shard(out, kind.shard);
  out.put(header.prefix.hi());
  out.put(header.prefix.lo());
  const tokens::SequenceHash root = header.root.value_or(tokens::SequenceHash());
  out.put(root.hi());
  out.put(root.lo());
  out.put(header.local ? header.local->value() : std::uint64_t{0});
  out.put(header.metadata);
  out.put(header.group);
  out.put(header.priority);
  out.put(static_cast<std::uint8_t>((header.root ? kG3HasRoot : 0) | (header.local ? kG3HasLocal : 0)));
  out.bytes().resize(kG3HeaderBytes - sizeof(std::uint64_t));
  out.put(g3_checksum(out.bytes()));
  std::array<std::byte, kG3HeaderBytes> bytes;
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

std::optional<G3Header> decode_g3_header(std::uint32_t slot, std::span<const std::byte> bytes,
                                         const G3BlockKind& kind) {
  ByteReader end(bytes.subspan(kG3HeaderBytes - sizeof(std::uint64_t)));
  ByteReader in(bytes);
  const auto magic = in.get<std::uint32_t>();
  const auto its_slot = in.get<std::uint32_t>();
  if (magic != kG3HeaderMagic || its_slot != slot) return std::nullopt;
  if (end.get<std::uint64_t>() != g3_checksum(bytes.first(kG3HeaderBytes - sizeof(std::uint64_t))))
    return std::nullopt;
  G3Header header;
  header.generation = in.get<std::uint64_t>();
  const auto hash_hi = in.get<std::uint64_t>();
  header.hash = tokens::SequenceHash::from_bits(hash_hi, in.get<std::uint64_t>());
  const auto parent_hi = in.get<std::uint64_t>();
  header.parent = tokens::SequenceHash::from_bits(parent_hi, in.get<std::uint64_t>());
  header.has_parent = in.get<std::uint64_t>() != 0;
  const auto salt_hi = in.get<std::uint64_t>();
  header.salt = tokens::NamespaceFingerprint::from_bits(salt_hi, in.get<std::uint64_t>());
  if (in.get<std::uint64_t>() != kind.block_bytes) return std::nullopt;
  header.checksum = transfer::BlockChecksum(in.get<std::uint64_t>());
  if (get_g3_shard(in) != kind.shard) return std::nullopt;
  const auto prefix_hi = in.get<std::uint64_t>();
  header.prefix = tokens::PrefixDigest::from_bits(prefix_hi, in.get<std::uint64_t>());
  const auto root_hi = in.get<std::uint64_t>();
  const auto root = tokens::SequenceHash::from_bits(root_hi, in.get<std::uint64_t>());
  const auto local = in.get<std::uint64_t>();
  header.metadata = in.get<std::uint32_t>();
  header.group = in.get<std::uint16_t>();
  header.priority = std::min(in.get<std::uint8_t>(), block::BlockRetention::kMaxPriority);
  const auto has = in.get<std::uint8_t>();
  if ((has & kG3HasRoot) != 0) header.root = root;
  if ((has & kG3HasLocal) != 0) header.local = tokens::LocalHash(local);
  return header;
}

}  // namespace ashlar::tiers
