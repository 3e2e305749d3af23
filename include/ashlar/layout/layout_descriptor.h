// LayoutDescriptor: a layout with its memory, as bytes that another process can rebuild the view from.
//
// docs/formats/layout_descriptor.md has every byte. The bytes come from outside: whatever they are,
// deserialize() answers with a descriptor that holds together or with the reason why not; it never reads
// outside them.
//
// Thread safety: thread-compatible.
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

struct LayoutDescriptor {
  // An address for memory, an offset in the file for disks; the key for objects.
  struct Region {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;

    friend bool operator==(const Region&, const Region&) = default;
  };

  static constexpr std::uint16_t kVersion = 2;
  static constexpr std::int32_t kNoDevice = -1;

  Layout layout;
  StorageKind storage = StorageKind::kSystem;
  std::int32_t device = kNoDevice;
  std::uint64_t block_set = 0;
  Shard shard = {};         // which layers and heads of the model, and the rank; everything unless said
  std::uint32_t plane = 0;  // which plane of the block set
  tokens::NamespaceFingerprint keys = {};  // model, dtype, layout, block size: what the bytes are
  std::uint64_t scheme_fingerprint = 0;    // of the hash scheme: how the blocks are named
  std::vector<Region> regions = {};        // layout.region_count() of them

  // Errors: kInvalidArgument: a region is missing, too small, on top of another, or not where the alignment
  // asks for it; a shard that does not fit the layout, or a device that does not fit the storage.
  Result<void> validate() const;

  // Requires: validate().
  std::vector<std::byte> serialize() const;
  // Reads version 1 too, which knows no ranks. Errors: kInvalidArgument for bytes that are no descriptor, or
  // one that contradicts itself; kUnsupported for a newer version; kCorruption for bytes that were cut off or
  // changed on the way.
  static Result<LayoutDescriptor> deserialize(std::span<const std::byte> bytes);

  friend bool operator==(const LayoutDescriptor&, const LayoutDescriptor&) = default;
};

}  // namespace ashlar::layout
