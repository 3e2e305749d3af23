// Little-endian, in the order of serialize(): head {magic, version, 0, total bytes}, body, then XXH3-64 of
// all bytes before it.
#include "transfer/remote/blockset_record.h"

#include <array>
#include <cstring>
#include <optional>
#include <utility>

#include "ashlar/base/check.h"
#include "ashlar/base/log.h"
#include "base/byte_io.h"
#include "base/checked_math.h"
#include "base/wide.h"
#include "tokens/xxhash_inline.h"
#include "transfer/copy/region_extent.h"

namespace ashlar::transfer {
namespace {

constexpr std::array<char, 8> kSetMagic = {'A', 'S', 'H', 'B', 'S', 'E', 'T', 0};
constexpr std::size_t kSetHeadBytes = 16;
constexpr std::size_t kSetSumBytes = 8;

void put_short(ByteWriter& out, std::span<const std::byte> bytes) {
  out.put(static_cast<std::uint16_t>(bytes.size()));
  out.put_bytes(bytes);
}

std::vector<std::byte> get_short(ByteReader& in) {
  const std::span<const std::byte> bytes = in.get_bytes(in.get<std::uint16_t>());
  return {bytes.begin(), bytes.end()};
}

std::string get_line(ByteReader& in) {
  const std::span<const std::byte> bytes = in.get_bytes(in.get<std::uint16_t>());
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

Result<void> check_plane_of(const BlockSetRecord& record, std::size_t at) {
  const layout::LayoutDescriptor& one = record.planes[at].descriptor;
  const layout::LayoutDescriptor& first = record.planes[0].descriptor;
  ASHLAR_RETURN_IF_ERROR(one.validate());
  if (one.plane != at || one.block_set != record.id || one.keys != record.names.keys ||
      one.scheme_fingerprint != record.names.scheme_fingerprint)
    return make_error(ErrorCode::kInvalidArgument,
                      "descriptor %zu is of plane %u of block set %llu; plane %zu of set %llu, with the same "
                      "fingerprints, is expected",
                      at, one.plane, wide(one.block_set), at, wide(record.id));
  if (one.storage != first.storage || one.device != first.device)
    return make_error(ErrorCode::kInvalidArgument,
                      "plane %zu is on %s storage, device %d, the first one on %s, device %d", at,
                      std::string(to_string(one.storage)).c_str(), one.device,
                      std::string(to_string(first.storage)).c_str(), first.device);
  if (one.storage != StorageKind::kSystem && one.storage != StorageKind::kPinned &&
      one.storage != StorageKind::kDevice)
    return make_error(ErrorCode::kInvalidArgument, "plane %zu is on %s storage; peers reach memory only", at,
                      std::string(to_string(one.storage)).c_str());
  if (one.process == 0 || one.process != first.process)
    return make_error(ErrorCode::kInvalidArgument,
                      "plane %zu is of process %016llx, the first one of %016llx; both are of the owner's",
                      at, wide(one.process), wide(first.process));
  if (record.planes[at].memories.size() != one.regions.size())
    return make_error(ErrorCode::kInvalidArgument, "plane %zu has %zu regions in %zu registrations", at,
                      one.regions.size(), record.planes[at].memories.size());
  for (std::size_t i = 0; i < one.regions.size(); ++i) {
    const std::uint32_t in = record.planes[at].memories[i];
    if (in >= record.memories.size())
      return make_error(ErrorCode::kInvalidArgument, "region %zu of plane %zu lies in registration %u of %zu",
                        i, at, in, record.memories.size());
    const BlockSetRecord::Memory& memory = record.memories[in];
    const layout::LayoutDescriptor::Region& region = one.regions[i];
    if (region.address < memory.address || region.bytes > memory.bytes ||
        region.address - memory.address > memory.bytes - region.bytes)
      return make_error(ErrorCode::kInvalidArgument,
                        "region %zu of plane %zu, %llu bytes at %llx, reaches outside its registration, %llu "
                        "bytes at %llx",
                        i, at, wide(region.bytes), wide(region.address), wide(memory.bytes),
                        wide(memory.address));
  }
  return {};
}

}  // namespace

Result<void> BlockSetRecord::validate() const {
  if (owner.agent == 0 || owner.incarnation == 0 || id == 0)
    return make_error(ErrorCode::kInvalidArgument, "the block set names no owner, or no set");
  if (name.size() > AgentCard::kMaxName || address.empty() || address.size() > AgentCard::kMaxAddress ||
      transport.empty() || transport.size() > AgentCard::kMaxTransport || printable(name) != name ||
      printable(address) != address || printable(transport) != transport ||
      transport_address.size() > RemoteTransport::kMaxAddressBytes)
    return make_error(ErrorCode::kInvalidArgument,
                      "block set %llu has a name, address or transport that no agent has", wide(id));
  if (planes.empty() || planes.size() > kMaxPlanes || memories.empty() || memories.size() > kMaxMemories)
    return make_error(ErrorCode::kInvalidArgument,
                      "block set %llu has %zu planes and %zu registrations; it has 1 to %zu and 1 to %zu",
                      wide(id), planes.size(), memories.size(), kMaxPlanes, kMaxMemories);
  for (const Memory& memory : memories) {
    std::uint64_t end = 0;
    if (memory.mode != storage::AccessMode::kRead && memory.mode != storage::AccessMode::kReadWrite)
      return make_error(ErrorCode::kInvalidArgument,
                        "a registration has access mode %u; it is 1 (read) or 3 (read and write)",
                        static_cast<unsigned>(memory.mode));
    if (memory.address == 0 || memory.bytes == 0 || !add(memory.address, memory.bytes, &end) ||
        memory.key.size() > storage::RemoteStorage::kMaxKeyBytes)
      return make_error(ErrorCode::kInvalidArgument,
                        "a registration has %llu bytes at %llx with a key of %zu bytes; that is none",
                        wide(memory.bytes), wide(memory.address), memory.key.size());
  }
  for (std::size_t i = 0; i < planes.size(); ++i) ASHLAR_RETURN_IF_ERROR(check_plane_of(*this, i));
  return {};
}

std::vector<std::byte> BlockSetRecord::serialize() const {
  const Result<void> valid = validate();
  ASHLAR_CHECK(valid, "%s", valid.error().message().c_str());
  ByteWriter out;
  for (const char letter : kSetMagic) out.put(letter);
  out.put(kVersion);
  out.put(std::uint16_t{0});
  out.put(std::uint32_t{0});  // the total, patched below
  out.put(owner.agent);
  out.put(owner.incarnation);
  out.put(id);
  out.put(names.keys.hi());
  out.put(names.keys.lo());
  out.put(names.scheme_fingerprint);
  out.put(names.prefix_key_fingerprint);
  put_short(out, std::as_bytes(std::span(name)));
  put_short(out, std::as_bytes(std::span(address)));
  put_short(out, std::as_bytes(std::span(transport)));
  put_short(out, transport_address);
  out.put(static_cast<std::uint32_t>(memories.size()));
  for (const Memory& memory : memories) {
    out.put(memory.address);
    out.put(memory.bytes);
    put_short(out, memory.key);
    out.put(static_cast<std::uint8_t>(memory.mode));
  }
  out.put(static_cast<std::uint32_t>(planes.size()));
  for (const RecordPlane& plane : planes) {
    const std::vector<std::byte> descriptor = plane.descriptor.serialize();
    out.put(static_cast<std::uint32_t>(descriptor.size()));
    out.put_bytes(descriptor);
    for (const std::uint32_t in : plane.memories) out.put(in);
  }
  out.put(generation);
  const auto total = static_cast<std::uint32_t>(out.bytes().size() + kSetSumBytes);
  for (std::size_t i = 0; i < 4; ++i) out.bytes()[12 + i] = static_cast<std::byte>(total >> (8 * i) & 0xFF);
  out.put(std::uint64_t{XXH3_64bits(out.bytes().data(), out.bytes().size())});
  return std::move(out.bytes());
}

Result<BlockSetRecord> BlockSetRecord::deserialize(std::span<const std::byte> bytes) {
  if (bytes.size() < kSetHeadBytes || std::memcmp(bytes.data(), kSetMagic.data(), kSetMagic.size()) != 0)
    return make_error(ErrorCode::kInvalidArgument, "these %zu bytes are no block set", bytes.size());
  ByteReader in(bytes.subspan(kSetMagic.size()));
  const auto version = in.get<std::uint16_t>();
  if (version == 0 || version > kVersion)
    return make_error(ErrorCode::kUnsupported,
                      "the block set has version %u; this library reads versions 1 to %u", version, kVersion);
  const auto nothing = in.get<std::uint16_t>();
  const auto total = in.get<std::uint32_t>();
  if (total != bytes.size() || total < kSetHeadBytes + kSetSumBytes || total > kMaxBytes)
    return make_error(ErrorCode::kCorruption, "the block set says %u bytes, but has %zu", total,
                      bytes.size());
  ByteReader last(bytes.last(kSetSumBytes));
  if (last.get<std::uint64_t>() != XXH3_64bits(bytes.data(), bytes.size() - kSetSumBytes))
    return make_error(ErrorCode::kCorruption, "the checksum of the block set does not agree with its bytes");
  BlockSetRecord record;
  record.owner.agent = in.get<std::uint64_t>();
  record.owner.incarnation = in.get<std::uint64_t>();
  record.id = in.get<std::uint64_t>();
  const auto hi = in.get<std::uint64_t>();
  record.names.keys = tokens::NamespaceFingerprint::from_bits(hi, in.get<std::uint64_t>());
  record.names.scheme_fingerprint = in.get<std::uint64_t>();
  record.names.prefix_key_fingerprint = in.get<std::uint64_t>();
  record.name = get_line(in);
  record.address = get_line(in);
  record.transport = get_line(in);
  record.transport_address = get_short(in);
  const auto memory_count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < memory_count && i <= kMaxMemories && in.ok(); ++i) {
    Memory memory;
    memory.address = in.get<std::uint64_t>();
    memory.bytes = in.get<std::uint64_t>();
    memory.key = get_short(in);
    // Whoever had a key of version 1 could write.
    memory.mode = version == 1 ? storage::AccessMode::kReadWrite
                               : static_cast<storage::AccessMode>(in.get<std::uint8_t>());
    record.memories.push_back(std::move(memory));
  }
  const auto plane_count = in.get<std::uint32_t>();
  for (std::uint32_t i = 0; i < plane_count && i <= kMaxPlanes && in.ok(); ++i) {
    const std::span<const std::byte> descriptor = in.get_bytes(in.get<std::uint32_t>());
    if (!in.ok()) break;
    ASHLAR_TRY(layout::LayoutDescriptor plane, layout::LayoutDescriptor::deserialize(descriptor));
    std::vector<std::uint32_t> within;
    for (std::size_t r = 0; r < plane.regions.size() && in.ok(); ++r)
      within.push_back(in.get<std::uint32_t>());
    record.planes.push_back({std::move(plane), std::move(within)});
  }
  if (version >= 3) record.generation = in.get<std::uint64_t>();
  if (!in.ok() || nothing != 0 || in.left() != kSetSumBytes || record.memories.size() != memory_count ||
      record.planes.size() != plane_count)
    return make_error(ErrorCode::kInvalidArgument,
                      "the block set says %u registrations and %u planes, which its %u bytes do not hold",
                      memory_count, plane_count, total);
  ASHLAR_RETURN_IF_ERROR(record.validate());
  return record;
}

storage::RemoteMemory BlockSetRecord::memory(std::size_t at) const {
  const layout::LayoutDescriptor& first = planes[0].descriptor;
  return {.kind = first.storage,
          .address = memories[at].address,
          .bytes = memories[at].bytes,
          .device = first.device,
          .agent = owner.agent,
          .incarnation = owner.incarnation,
          .key = memories[at].key,
          .mode = memories[at].mode};
}

Result<std::shared_ptr<const BlockSet>> BlockSetRecord::build(
    std::span<const std::shared_ptr<storage::RemoteStorage>> opened) const {
  ASHLAR_CHECK(opened.size() == memories.size(), "%zu of %zu registrations are open", opened.size(),
               memories.size());
  std::vector<Plane> views;
  for (const RecordPlane& plane : planes) {
    const layout::LayoutDescriptor& one = plane.descriptor;
    Plane view{
        one.layout, one.shard == layout::Shard{} ? layout::Shard::whole(one.layout.config()) : one.shard, {}};
    for (std::size_t i = 0; i < one.regions.size(); ++i) {
      const std::uint32_t in = plane.memories[i];
      ASHLAR_DCHECK(one.regions[i].address >= memories[in].address, "a region outside its registration");
      view.regions.push_back({opened[in], one.regions[i].address - memories[in].address});
    }
    views.push_back(std::move(view));
  }
  ASHLAR_TRY(std::shared_ptr<const BlockSet> set, BlockSet::create(std::move(views)));
  // Registrations of one owner may lie in each other; regions must not.
  std::vector<RegionExtent> extents = extents_of(*set);
  for (RegionExtent& extent : extents) extent.space = {2, 0};
  if (const std::optional<std::string> shared = find_overlap(std::move(extents)))
    return make_error(ErrorCode::kInvalidArgument, "two regions of block set %llu overlap (%s)", wide(id),
                      shared->c_str());
  return set;
}

}  // namespace ashlar::transfer
