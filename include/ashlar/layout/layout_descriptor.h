// LayoutDescriptor: a layout with its memory, serialized so that another process can rebuild the view.
//
// docs/formats/layout_descriptor.md has every byte. The bytes are untrusted: deserialize() returns a
// consistent descriptor or an error, and never reads outside them.
//
// Thread safety: plain value; thread-compatible.
// Complexity:    linear in the number of regions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/base/storage_kind.h"
#include "ashlar/layout/layout.h"
#include "ashlar/layout/shard.h"
#include "ashlar/tokens/namespace_fingerprint.h"

namespace ashlar::layout {

// A plane of a block set, as another process sees it.
struct LayoutDescriptor {
  // An address for memory, an offset in the file for disks; the key for objects.
  struct Region {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;

    friend bool operator==(const Region&, const Region&) = default;
  };

  static constexpr std::uint16_t kVersion = 3;
  static constexpr std::int32_t kNoDevice = -1;

  Layout layout;
  StorageKind storage = StorageKind::kSystem;
  std::int32_t device = kNoDevice;
  std::uint64_t block_set = 0;
  Shard shard = {};                        // layers and heads of the model, and the rank; default: everything
  std::uint32_t plane = 0;                 // which plane of the block set
  tokens::NamespaceFingerprint keys = {};  // model, dtype, layout, block size: what the bytes are
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme: how the blocks are named
  std::vector<Region> regions = {};        // layout.region_count() of them
  std::uint64_t process = 0;               // whose addresses the regions have; 0: it names none

  // The number of this process, which no other has: random, and another one after fork(). Never 0.
  static std::uint64_t this_process() noexcept;

  // Errors: kInvalidArgument: a region is missing, too small, overlapping or misaligned; the shard does not
  // match the layout, or the device does not match the storage.
  Result<void> validate() const;

  // Returns: the bytes of version 3, or of version 2 where no process is named. Requires: validate().
  std::vector<std::byte> serialize() const;
  // Also reads version 2, which names no process, and version 1, which has no ranks either. Errors:
  // kInvalidArgument: not a descriptor, or an inconsistent one; kUnsupported: a newer version; kCorruption:
  // truncated or altered bytes.
  static Result<LayoutDescriptor> deserialize(std::span<const std::byte> bytes);

  friend bool operator==(const LayoutDescriptor&, const LayoutDescriptor&) = default;
};

}  // namespace ashlar::layout
