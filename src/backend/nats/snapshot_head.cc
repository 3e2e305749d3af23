#include "backend/nats/snapshot_head.h"

#include <utility>

#include "ashlar/base/check.h"
#include "base/byte_io.h"

namespace ashlar::backend::nats {
namespace {

constexpr std::uint32_t kMagic = 0x4853'4B41;  // "AKSH"
constexpr std::uint16_t kVersion = 1;

}  // namespace

std::vector<std::byte> SnapshotHead::bytes() const {
  ASHLAR_CHECK(place <= 1 && parts != 0 && parts <= events::kMaxSnapshotParts,
               "read() would refuse a head of %u parts at place %u", parts, unsigned{place});
  ByteWriter out;
  out.put(kMagic);
  out.put(kVersion);
  out.put(place);
  out.put(parts);
  out.put(incarnation);
  out.put(first);
  out.put(published_ns);
  return std::move(out.bytes());
}

std::optional<SnapshotHead> SnapshotHead::read(std::span<const std::byte> bytes) {
  ByteReader in(bytes);
  const bool ours = in.get<std::uint32_t>() == kMagic && in.get<std::uint16_t>() == kVersion;
  SnapshotHead head;
  head.place = in.get<std::uint8_t>();
  head.parts = in.get<std::uint32_t>();
  head.incarnation = in.get<std::uint64_t>();
  head.first = in.get<std::uint64_t>();
  head.published_ns = in.get<std::int64_t>();
  if (!ours || !in.ok() || in.left() != 0 || head.place > 1 || head.parts == 0 ||
      head.parts > events::kMaxSnapshotParts)
    return std::nullopt;
  return head;
}

bool SnapshotHead::has_part(const events::EventBatch& batch, std::uint32_t part) const noexcept {
  return batch.kind == events::BatchKind::kSnapshot && batch.stream.incarnation == incarnation &&
         batch.first == first && batch.published_ns == published_ns && batch.parts == parts &&
         batch.part == part;
}

}  // namespace ashlar::backend::nats
