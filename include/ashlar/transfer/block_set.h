// BlockSet: blocks with their memory; what a transfer reads from or writes to.
//
// A set has one or more planes over the same blocks: the first holds keys and values, the others what travels
// with them, such as the scales of FP8 values. Each plane has a layout, and storage for its regions.
//
// Thread safety: immutable.
// Complexity:    accessors are O(1); block_bytes() is O(planes).
// Invariant:     all planes have the same blocks, layers and rank; all storage is of one kind, on one device;
//                no two regions overlap.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/base/storage_kind.h"
#include "ashlar/layout/layout.h"
#include "ashlar/layout/layout_descriptor.h"
#include "ashlar/layout/shard.h"
#include "ashlar/storage/allocator.h"
#include "ashlar/storage/storage.h"

namespace ashlar::transfer {

// Where a region of a layout starts.
struct RegionMemory {
  std::shared_ptr<storage::Storage> storage;
  std::uint64_t offset = 0;
};

struct Plane {
  layout::Layout layout;
  layout::Shard shard;
  std::vector<RegionMemory> regions;  // layout.region_count() of them
};

// A plane before it has memory.
struct PlaneShape {
  layout::Layout layout;
  layout::Shard shard;

  // All layers and heads of the layout.
  static PlaneShape whole(const layout::Layout& layout) {
    return {layout, layout::Shard::whole(layout.config())};
  }
};

class BlockSet {
 public:
  // Errors: kInvalidArgument: no plane; planes with different blocks, layers or ranks; a shard that does not
  // match its layout; a later plane whose heads are neither those of the first nor one for all; storage that
  // is missing, too small, misaligned, or of several kinds.
  static Result<std::shared_ptr<const BlockSet>> create(std::vector<Plane> planes);
  // Allocates one storage per region. Errors: those of the allocator and of create().
  static Result<std::shared_ptr<const BlockSet>> allocate(std::span<const PlaneShape> shapes,
                                                          storage::Allocator& allocator);
  static Result<std::shared_ptr<const BlockSet>> allocate(const layout::Layout& layout,
                                                          storage::Allocator& allocator);

  std::span<const Plane> planes() const noexcept { return planes_; }
  std::uint32_t block_count() const noexcept { return planes_[0].layout.config().block_count; }
  // Of one block, over all planes.
  std::uint64_t block_bytes() const noexcept;
  StorageKind kind() const noexcept { return planes_[0].regions[0].storage->kind(); }
  std::int32_t device() const noexcept { return planes_[0].regions[0].storage->device(); }
  bool host_accessible() const noexcept { return planes_[0].regions[0].storage->host_accessible(); }

  // Errors: kInvalidArgument: memory of a peer, which offers it for reading only.
  Result<void> check_writable() const;

  // The byte at a place of a plane. Requires: memory.
  std::byte* address(std::size_t plane, const layout::Place& place) const noexcept {
    const RegionMemory& region = planes_[plane].regions[place.region];
    return region.storage->address() + region.offset + place.offset;
  }

  // Describes a plane for another process; one of memory names this process. Requires: plane <
  // planes().size().
  layout::LayoutDescriptor describe(std::size_t plane, std::uint64_t block_set,
                                    const tokens::NamespaceFingerprint& keys,
                                    std::uint64_t scheme_fingerprint = 0) const;
  // The set that descriptors of its planes describe, all made by this process: addresses of another one mean
  // other bytes here (RemoteAgent reaches those). `owner` keeps the memory alive. Errors: kInvalidArgument:
  // descriptors of another process, of none (versions 1 and 2), or of different sets, or not of planes 0 to n
  // in order; kUnsupported: storage without addresses; those of create().
  static Result<std::shared_ptr<const BlockSet>> view(std::span<const layout::LayoutDescriptor> planes,
                                                      const std::shared_ptr<const void>& owner = nullptr);

 private:
  explicit BlockSet(std::vector<Plane> planes) noexcept : planes_(std::move(planes)) {}

  std::vector<Plane> planes_;
};

}  // namespace ashlar::transfer
