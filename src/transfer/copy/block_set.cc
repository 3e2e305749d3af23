#include "ashlar/transfer/block_set.h"

#include <algorithm>

#include "ashlar/base/check.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/storage/remote_storage.h"
#include "base/checked_math.h"
#include "base/wide.h"
#include "transfer/copy/region_extent.h"

namespace ashlar::transfer {
namespace {

using layout::Layout;
using layout::LayoutConfig;

Result<void> check_region(const Layout& layout, const RegionMemory& region, std::size_t plane,
                          std::size_t at) {
  if (region.storage == nullptr)
    return make_error(ErrorCode::kInvalidArgument, "region %zu of plane %zu has no storage", at, plane);
  std::uint64_t end = 0;
  if (!add(region.offset, layout.region_bytes(), &end) || end > region.storage->size())
    return make_error(ErrorCode::kInvalidArgument,
                      "region %zu of plane %zu needs %llu bytes from %llu on; its storage has %llu", at,
                      plane, wide(layout.region_bytes()), wide(region.offset), wide(region.storage->size()));
  const std::uint64_t start = reinterpret_cast<std::uintptr_t>(region.storage->address()) + region.offset;
  if (start % layout.config().alignment != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "region %zu of plane %zu starts at %llx, which is not a multiple of its alignment %llu",
                      at, plane, wide(start), wide(layout.config().alignment));
  return {};
}

Result<void> check_plane(const Plane& plane, std::size_t at, const Plane& first) {
  const LayoutConfig& config = plane.layout.config();
  if (plane.shard.layers.count != config.num_layers || plane.shard.heads.count != config.num_heads)
    return make_error(ErrorCode::kInvalidArgument,
                      "the shard of plane %zu has %u layers and %u heads, its layout %u and %u", at,
                      plane.shard.layers.count, plane.shard.heads.count, config.num_layers, config.num_heads);
  ASHLAR_RETURN_IF_ERROR(plane.shard.validate());
  if (plane.shard.rank != first.shard.rank || plane.shard.ranks != first.shard.ranks)
    return make_error(ErrorCode::kInvalidArgument,
                      "plane %zu belongs to rank %u of %u, the first one to %u of %u", at, plane.shard.rank,
                      plane.shard.ranks, first.shard.rank, first.shard.ranks);
  if (config.block_count != first.layout.config().block_count || plane.shard.layers != first.shard.layers)
    return make_error(ErrorCode::kInvalidArgument,
                      "plane %zu has %u blocks and %u layers from %u on, the first one %u and %u from %u on",
                      at, config.block_count, plane.shard.layers.count, plane.shard.layers.first,
                      first.layout.config().block_count, first.shard.layers.count, first.shard.layers.first);
  if (plane.shard.heads != first.shard.heads && config.num_heads != 1)
    return make_error(
        ErrorCode::kInvalidArgument,
        "plane %zu has %u heads from %u on; it needs those of the first plane (%u from %u on), or one for "
        "all of them",
        at, plane.shard.heads.count, plane.shard.heads.first, first.shard.heads.count,
        first.shard.heads.first);
  if (plane.regions.size() != plane.layout.region_count())
    return make_error(ErrorCode::kInvalidArgument, "plane %zu has storage for %zu regions, its layout %u", at,
                      plane.regions.size(), plane.layout.region_count());
  for (std::size_t i = 0; i < plane.regions.size(); ++i) {
    ASHLAR_RETURN_IF_ERROR(check_region(plane.layout, plane.regions[i], at, i));
    const storage::Storage& one = *plane.regions[i].storage;
    const storage::Storage& other = *first.regions[0].storage;
    if (one.kind() != other.kind() || one.device() != other.device())
      return make_error(ErrorCode::kInvalidArgument,
                        "the storage of a set is of one kind; it is '%s' and '%s'", other.describe().c_str(),
                        one.describe().c_str());
  }
  return {};
}

}  // namespace

Result<std::shared_ptr<const BlockSet>> BlockSet::create(std::vector<Plane> planes) {
  if (planes.empty()) return make_error(ErrorCode::kInvalidArgument, "a block set has at least one plane");
  // A plane with one head belongs to all heads of the first plane; its head number has no meaning.
  for (std::size_t i = 1; i < planes.size(); ++i)
    if (planes[i].layout.config().num_heads == 1 && planes[i].shard.heads.count == 1)
      planes[i].shard.heads.first = planes[0].shard.heads.first;
  for (std::size_t i = 0; i < planes.size(); ++i)
    ASHLAR_RETURN_IF_ERROR(check_plane(planes[i], i, planes[0]));
  std::shared_ptr<const BlockSet> set(new BlockSet(std::move(planes)));
  if (const std::optional<std::string> shared = find_overlap(extents_of(*set)))
    return make_error(ErrorCode::kInvalidArgument, "two regions of the set overlap in one storage (%s)",
                      shared->c_str());
  return set;
}

Result<std::shared_ptr<const BlockSet>> BlockSet::allocate(std::span<const PlaneShape> shapes,
                                                           storage::Allocator& allocator) {
  std::vector<Plane> planes;
  for (const PlaneShape& shape : shapes) {
    Plane plane{shape.layout, shape.shard, {}};
    for (std::uint32_t i = 0; i < shape.layout.region_count(); ++i) {
      ASHLAR_TRY(auto storage,
                 allocator.allocate(shape.layout.region_bytes(),
                                    std::max<std::uint64_t>(shape.layout.config().alignment, 4096)));
      plane.regions.push_back({std::move(storage), 0});
    }
    planes.push_back(std::move(plane));
  }
  return create(std::move(planes));
}

Result<std::shared_ptr<const BlockSet>> BlockSet::allocate(const Layout& layout,
                                                           storage::Allocator& allocator) {
  const PlaneShape shape = PlaneShape::whole(layout);
  return allocate(std::span(&shape, 1), allocator);
}

std::uint64_t BlockSet::block_bytes() const noexcept {
  std::uint64_t bytes = 0;
  for (const Plane& plane : planes_) bytes += plane.layout.config().block_bytes();
  return bytes;
}

Result<void> BlockSet::check_writable() const {
  if (kind() != StorageKind::kRemote) return {};
  for (const Plane& plane : planes_)
    for (const RegionMemory& region : plane.regions) {
      const auto* const remote = dynamic_cast<const storage::RemoteStorage*>(region.storage.get());
      if (remote == nullptr || remote->writable()) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "'%s' cannot be written: its owner offers it for reading. Push blocks into memory "
                        "that it offers for writing, such as its landing",
                        remote->describe().c_str());
    }
  return {};
}

layout::LayoutDescriptor BlockSet::describe(std::size_t plane, std::uint64_t block_set,
                                            const tokens::NamespaceFingerprint& keys,
                                            std::uint64_t scheme_fingerprint) const {
  ASHLAR_CHECK(plane < planes_.size(), "plane %zu of %zu", plane, planes_.size());
  layout::LayoutDescriptor descriptor{.layout = planes_[plane].layout,
                                      .storage = kind(),
                                      .device = device(),
                                      .block_set = block_set,
                                      .shard = planes_[plane].shard,
                                      .plane = static_cast<std::uint32_t>(plane),
                                      .keys = keys,
                                      .scheme_fingerprint = scheme_fingerprint};
  // Offsets in a file mean the same everywhere; addresses are those of this process.
  if (host_accessible() || kind() == StorageKind::kDevice)
    descriptor.process = layout::LayoutDescriptor::this_process();
  for (const RegionMemory& region : planes_[plane].regions)
    descriptor.regions.push_back({reinterpret_cast<std::uintptr_t>(region.storage->address()) + region.offset,
                                  planes_[plane].layout.region_bytes()});
  return descriptor;
}

Result<std::shared_ptr<const BlockSet>> BlockSet::view(std::span<const layout::LayoutDescriptor> planes,
                                                       const std::shared_ptr<const void>& owner) {
  std::vector<Plane> views;
  for (std::size_t i = 0; i < planes.size(); ++i) {
    const layout::LayoutDescriptor& one = planes[i];
    ASHLAR_RETURN_IF_ERROR(one.validate());
    if (one.plane != i || one.block_set != planes[0].block_set || one.keys != planes[0].keys ||
        one.scheme_fingerprint != planes[0].scheme_fingerprint)
      return make_error(
          ErrorCode::kInvalidArgument,
          "descriptor %zu is of plane %u of block set %llu; plane %zu of set %llu, with the same "
          "fingerprints, is expected",
          i, one.plane, wide(one.block_set), i, wide(planes[0].block_set));
    Plane plane{
        one.layout, one.shard == layout::Shard{} ? layout::Shard::whole(one.layout.config()) : one.shard, {}};
    if (one.storage != StorageKind::kSystem && one.storage != StorageKind::kPinned &&
        one.storage != StorageKind::kDevice)
      return make_error(ErrorCode::kUnsupported, "%s storage is not reached by addresses",
                        std::string(to_string(one.storage)).c_str());
    if (one.process == 0)
      return make_error(
          ErrorCode::kInvalidArgument,
          "descriptor %zu names no process, so its addresses may be another one's; describe() the "
          "plane again with this version of Ashlar",
          i);
    if (one.process != layout::LayoutDescriptor::this_process())
      return make_error(ErrorCode::kInvalidArgument,
                        "descriptor %zu has addresses of another process (%016llx, this one is %016llx); "
                        "RemoteAgent::import_remote_blockset() reaches the memory of others",
                        i, wide(one.process), wide(layout::LayoutDescriptor::this_process()));
    for (const layout::LayoutDescriptor::Region& region : one.regions) {
      ASHLAR_TRY(auto storage,
                 storage::ExternalStorage::create({.kind = one.storage,
                                                   .address = reinterpret_cast<std::byte*>(region.address),
                                                   .bytes = region.bytes,
                                                   .device = one.device,
                                                   .owner = owner}));
      plane.regions.push_back({std::move(storage), 0});
    }
    views.push_back(std::move(plane));
  }
  return create(std::move(views));
}

}  // namespace ashlar::transfer
