#include "tiers/volume/volume_object.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "base/byte_io.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::tiers {
namespace {

constexpr std::uint64_t kObjectMagic = 0x424f52414c485341;  // "ASHLAROB"
constexpr std::uint8_t kObjectHasRoot = 1;
constexpr std::uint8_t kObjectHasLocal = 2;
constexpr std::size_t kCovered = VolumeObject::kHeaderBytes - sizeof(std::uint64_t);

tokens::NamespaceFingerprint get_fingerprint(ByteReader& in) {
  const auto hi = in.get<std::uint64_t>();
  return tokens::NamespaceFingerprint::from_bits(hi, in.get<std::uint64_t>());
}

}  // namespace

VolumeObject VolumeObject::describe(const transfer::BlockSet& set, const tokens::NamespaceFingerprint& keys,
                                    std::uint64_t scheme_fingerprint, std::uint64_t prefix_key) {
  const transfer::Plane& first = set.planes()[0];
  ByteWriter shapes;
  for (const transfer::Plane& plane : set.planes()) {
    const layout::LayoutConfig& config = plane.layout.config();
    for (const std::uint64_t number :
         {std::uint64_t{config.num_layers}, std::uint64_t{config.outer_dim}, std::uint64_t{config.block_size},
          std::uint64_t{config.num_heads}, config.head_bytes(), static_cast<std::uint64_t>(config.dtype)})
      shapes.put(number);
  }
  VolumeObject object;
  object.shapes = XXH3_64bits(shapes.bytes().data(), shapes.bytes().size());
  object.keys = keys;
  object.scheme_fingerprint = scheme_fingerprint;
  object.prefix_key = prefix_key;
  object.shard = first.shard;
  object.block_size = first.layout.config().block_size;
  object.planes = static_cast<std::uint32_t>(set.planes().size());
  object.dtype = first.layout.config().dtype;
  object.payload_bytes = set.block_bytes();
  return object;
}

std::string VolumeObject::key() const {
  std::array<char, 192> text{};
  std::snprintf(text.data(), text.size(),
                "%s/%016" PRIx64 "-%016" PRIx64 "/r%u-%u.l%u-%u.h%u-%u/%016" PRIx64 "%016" PRIx64,
                keys.to_string().c_str(), scheme_fingerprint, prefix_key, shard.rank, shard.ranks,
                shard.layers.first, shard.layers.count, shard.heads.first, shard.heads.count, hash.hi(),
                hash.lo());
  return text.data();
}

std::array<std::byte, VolumeObject::kHeaderBytes> VolumeObject::encode() const {
  ByteWriter out;
  out.put(kObjectMagic);
  out.put(kVersion);
  out.put(static_cast<std::uint32_t>(kHeaderBytes));
  out.put(hash.hi());
  out.put(hash.lo());
  out.put(keys.hi());
  out.put(keys.lo());
  out.put(salt.hi());
  out.put(salt.lo());
  out.put(scheme_fingerprint);
  out.put(checksum.value());
  for (const std::uint32_t number :
       {shard.layers.first, shard.layers.count, shard.heads.first, shard.heads.count, block_size, planes})
    out.put(number);
  out.put(static_cast<std::uint64_t>(dtype));
  out.put(payload_bytes);
  out.put(shard.rank);
  out.put(shard.ranks);
  out.put(shapes);
  out.put(prefix_key);
  out.put(prefix.hi());
  out.put(prefix.lo());
  out.put(parent.hi());
  out.put(parent.lo());
  const tokens::SequenceHash first = root.value_or(tokens::SequenceHash());
  out.put(first.hi());
  out.put(first.lo());
  out.put(local ? local->value() : std::uint64_t{0});
  out.put(metadata);
  out.put(group);
  out.put(priority);
  out.put(static_cast<std::uint8_t>((root ? kObjectHasRoot : 0) | (local ? kObjectHasLocal : 0)));
  out.bytes().resize(kCovered);
  out.put(std::uint64_t{XXH3_64bits(out.bytes().data(), kCovered)});
  std::array<std::byte, kHeaderBytes> bytes{};
  std::ranges::copy(out.bytes(), bytes.begin());
  return bytes;
}

Result<VolumeObject> VolumeObject::decode(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const auto magic = in.get<std::uint64_t>();
  const auto version = in.get<std::uint32_t>();
  const auto header_bytes = in.get<std::uint32_t>();
  if (!in.ok() || magic != kObjectMagic)
    return make_error(ErrorCode::kInvalidArgument, "%zu bytes that are not a volume object", bytes.size());
  if (bytes.size() < kHeaderBytes)
    return make_error(ErrorCode::kCorruption, "an object of %zu bytes, whose header should have %zu",
                      bytes.size(), kHeaderBytes);
  // Every version ends with this checksum, so damage is not taken for a newer version.
  ByteReader end(bytes.subspan(kCovered));
  if (end.get<std::uint64_t>() != XXH3_64bits(bytes.data(), kCovered))
    return make_error(ErrorCode::kCorruption, "the header of an object is damaged");
  if (version != kVersion)
    return make_error(ErrorCode::kUnsupported, "an object of version %u; this program reads version %u",
                      version, kVersion);
  if (header_bytes != kHeaderBytes)
    return make_error(ErrorCode::kCorruption, "a header of %u bytes, which should have %zu", header_bytes,
                      kHeaderBytes);
  VolumeObject object;
  const auto hash_hi = in.get<std::uint64_t>();
  object.hash = tokens::SequenceHash::from_bits(hash_hi, in.get<std::uint64_t>());
  object.keys = get_fingerprint(in);
  object.salt = get_fingerprint(in);
  object.scheme_fingerprint = in.get<std::uint64_t>();
  object.checksum = transfer::BlockChecksum(in.get<std::uint64_t>());
  for (std::uint32_t* const number :
       {&object.shard.layers.first, &object.shard.layers.count, &object.shard.heads.first,
        &object.shard.heads.count, &object.block_size, &object.planes})
    *number = in.get<std::uint32_t>();
  const auto dtype = in.get<std::uint64_t>();
  if (dtype >= layout::kDtypes)
    return make_error(ErrorCode::kCorruption, "an object has elements of unknown type %llu",
                      static_cast<unsigned long long>(dtype));
  object.dtype = static_cast<layout::Dtype>(dtype);
  object.payload_bytes = in.get<std::uint64_t>();
  object.shard.rank = in.get<std::uint32_t>();
  object.shard.ranks = in.get<std::uint32_t>();
  object.shapes = in.get<std::uint64_t>();
  object.prefix_key = in.get<std::uint64_t>();
  const auto prefix_hi = in.get<std::uint64_t>();
  object.prefix = tokens::PrefixDigest::from_bits(prefix_hi, in.get<std::uint64_t>());
  const auto parent_hi = in.get<std::uint64_t>();
  object.parent = tokens::SequenceHash::from_bits(parent_hi, in.get<std::uint64_t>());
  const auto root_hi = in.get<std::uint64_t>();
  const auto root = tokens::SequenceHash::from_bits(root_hi, in.get<std::uint64_t>());
  const auto local = in.get<std::uint64_t>();
  object.metadata = in.get<std::uint32_t>();
  object.group = in.get<std::uint16_t>();
  object.priority = std::min(in.get<std::uint8_t>(), block::BlockRetention::kMaxPriority);
  const auto has = in.get<std::uint8_t>();
  if ((has & kObjectHasRoot) != 0) object.root = root;
  if ((has & kObjectHasLocal) != 0) object.local = tokens::LocalHash(local);
  return object;
}

Result<void> VolumeObject::expect(const VolumeObject& found) const {
  const auto differs = [&](const char* what) {
    return make_error(ErrorCode::kCorruption, "the object of block %s is another one: its %s differs",
                      hash.to_string().c_str(), what);
  };
  if (found.hash != hash) return differs("name");
  if (found.keys != keys) return differs("namespace");
  if (found.scheme_fingerprint != scheme_fingerprint) return differs("hash scheme");
  if (found.prefix_key != prefix_key) return differs("prefix key");
  if (found.shard != shard)
    return make_error(ErrorCode::kCorruption,
                      "the object of block %s is another one: it belongs to %s, not to %s",
                      hash.to_string().c_str(), found.shard.to_string().c_str(), shard.to_string().c_str());
  if (found.block_size != block_size || found.planes != planes || found.dtype != dtype ||
      found.shapes != shapes)
    return differs("shape");
  if (found.payload_bytes != payload_bytes) return differs("size");
  const tokens::NamespaceFingerprint unknown;
  if (salt != unknown && found.salt != unknown && found.salt != salt) return differs("salt");
  if (!prefix.agrees_with(found.prefix)) return differs("prefix digest");
  return {};
}

}  // namespace ashlar::tiers
