// A frame: magic (4 bytes), version (2), fields, length of the packed bytes (2), packed bytes, XXH3 of all
// before it (8). Numbers are little-endian.
#include "backend/ucx/framing.h"

#include <algorithm>
#include <utility>

#include "base/byte_io.h"
#include "tokens/xxhash_inline.h"

namespace ashlar::backend::ucx {
namespace {

constexpr std::uint32_t kAddressMagic = 0x41435541;  // "AUCA"
constexpr std::uint32_t kKeyMagic = 0x4b435541;      // "AUCK"
constexpr std::uint16_t kAddressVersion = 1;
constexpr std::uint16_t kKeyVersion = 2;

std::uint64_t checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

std::vector<std::byte> seal(ByteWriter& out) {
  const std::uint64_t sum = checksum(out.bytes());
  out.put(sum);
  return std::move(out.bytes());
}

// The fields of a frame that is whole.
Result<ByteReader> unseal(std::span<const std::byte> bytes, std::uint32_t magic, std::uint16_t expected,
                          const char* what) {
  ByteReader head(bytes);
  const bool known = head.get<std::uint32_t>() == magic;
  const auto version = head.get<std::uint16_t>();
  if (!head.ok() || !known)
    return make_error(ErrorCode::kInvalidArgument, "%zu bytes are no %s of the ucx transport", bytes.size(),
                      what);
  if (version != expected)
    return make_error(ErrorCode::kInvalidArgument, "the %s has version %u; this library reads %u", what,
                      version, expected);
  if (head.left() < 8)
    return make_error(ErrorCode::kInvalidArgument, "the %s ends after %zu bytes", what, bytes.size());
  ByteReader sum(bytes.last(8));
  if (sum.get<std::uint64_t>() != checksum(bytes.first(bytes.size() - 8)))
    return make_error(ErrorCode::kInvalidArgument, "the checksum of the %s is wrong: its bytes are damaged",
                      what);
  ByteReader fields(bytes.first(bytes.size() - 8));
  fields.get<std::uint32_t>();
  fields.get<std::uint16_t>();
  return fields;
}

Result<std::vector<std::byte>> packed_of(ByteReader& fields, const char* what) {
  const auto length = fields.get<std::uint16_t>();
  const std::span<const std::byte> packed = fields.get_bytes(length);
  if (!fields.ok() || fields.left() != 0)
    return make_error(ErrorCode::kInvalidArgument, "the %s has a length that does not fit it", what);
  std::vector<std::byte> out(packed.size() + kPadding);
  std::copy(packed.begin(), packed.end(), out.begin());
  return out;
}

}  // namespace

std::vector<std::byte> encode(const WorkerAddress& address) {
  ByteWriter out;
  out.put(kAddressMagic);
  out.put(kAddressVersion);
  out.put(address.machine);
  out.put(address.process);
  out.put(static_cast<std::uint8_t>(address.transports.size()));
  out.put_bytes(std::as_bytes(std::span(address.transports)));
  out.put(address.port);
  out.put(static_cast<std::uint16_t>(address.hosts.size()));
  out.put_bytes(std::as_bytes(std::span(address.hosts)));
  out.put(static_cast<std::uint16_t>(address.packed.size()));
  out.put_bytes(address.packed);
  return seal(out);
}

std::vector<std::byte> encode(const MemoryKey& key) {
  ByteWriter out;
  out.put(kKeyMagic);
  out.put(kKeyVersion);
  out.put(key.address);
  out.put(key.bytes);
  out.put(key.region);
  out.put(key.token);
  out.put(static_cast<std::uint8_t>(key.kind));
  out.put(key.device);
  out.put(static_cast<std::uint8_t>(key.mode));
  out.put(static_cast<std::uint16_t>(key.packed.size()));
  out.put_bytes(key.packed);
  return seal(out);
}

Result<WorkerAddress> decode_address(std::span<const std::byte> bytes) {
  ASHLAR_TRY(ByteReader fields, unseal(bytes, kAddressMagic, kAddressVersion, "address"));
  WorkerAddress out;
  out.machine = fields.get<std::uint64_t>();
  out.process = fields.get<std::uint32_t>();
  const std::span<const std::byte> transports = fields.get_bytes(fields.get<std::uint8_t>());
  out.transports.assign(reinterpret_cast<const char*>(transports.data()), transports.size());
  out.port = fields.get<std::uint16_t>();
  const std::span<const std::byte> hosts = fields.get_bytes(fields.get<std::uint16_t>());
  out.hosts.assign(reinterpret_cast<const char*>(hosts.data()), hosts.size());
  ASHLAR_TRY(out.packed, packed_of(fields, "address"));
  return out;
}

Result<MemoryKey> decode_key(std::span<const std::byte> bytes) {
  ASHLAR_TRY(ByteReader fields, unseal(bytes, kKeyMagic, kKeyVersion, "key"));
  MemoryKey out;
  out.address = fields.get<std::uint64_t>();
  out.bytes = fields.get<std::uint64_t>();
  out.region = fields.get<std::uint64_t>();
  out.token = fields.get<std::uint64_t>();
  out.kind = static_cast<StorageKind>(fields.get<std::uint8_t>());
  out.device = fields.get<std::int32_t>();
  out.mode = static_cast<storage::AccessMode>(fields.get<std::uint8_t>());
  ASHLAR_TRY(out.packed, packed_of(fields, "key"));
  if (out.mode != storage::AccessMode::kRead && out.mode != storage::AccessMode::kReadWrite)
    return make_error(ErrorCode::kInvalidArgument, "the key has access mode %u; it is 1 (read) or 3 (both)",
                      static_cast<unsigned>(out.mode));
  return out;
}

}  // namespace ashlar::backend::ucx
