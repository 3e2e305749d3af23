// RegionExtent: the bytes that a region of a block set covers, used to detect overlaps across storages.
//
// Thread safety: immutable values.
#pragma once

#include <algorithm>
#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ashlar/transfer/block_set.h"

namespace ashlar::transfer {

struct RegionExtent {
  // Host memory is one space, each GPU and each file another.
  std::pair<std::uint64_t, std::uint64_t> space;
  std::uint64_t first = 0;
  std::uint64_t end = 0;
  // Blocks repeat every `stride` bytes, and each lies inside `span` of them.
  std::uint64_t stride = 0;
  std::uint64_t span = 0;
  std::size_t plane = 0;
  std::size_t region = 0;
  const storage::Storage* storage = nullptr;

  friend auto operator<=>(const RegionExtent&, const RegionExtent&) = default;
};

inline RegionExtent extent_of(const Plane& plane, const RegionMemory& region) {
  const storage::Storage& storage = *region.storage;
  RegionExtent out{.space = {0, 0},
                   .first = region.offset,
                   .stride = plane.layout.strides().block,
                   .span = plane.layout.config().head_bytes(),
                   .storage = &storage};
  for (const layout::Axis axis :
       {layout::Axis::kLayer, layout::Axis::kOuter, layout::Axis::kToken, layout::Axis::kHead})
    out.span += plane.layout.strides().of(axis) * (plane.layout.extent(axis) - 1);
  if (const storage::FileAccess* file = storage.file()) {
    out.space = {file->device_id + 3, file->inode};
  } else {
    // No address of another process is one of this.
    if (storage.kind() == StorageKind::kRemote) out.space = {2, reinterpret_cast<std::uintptr_t>(&storage)};
    if (storage.device() >= 0) out.space = {1, static_cast<std::uint64_t>(storage.device())};
    out.first += reinterpret_cast<std::uintptr_t>(storage.address());
  }
  out.end = out.first + plane.layout.region_bytes();
  return out;
}

inline std::vector<RegionExtent> extents_of(const BlockSet& set) {
  std::vector<RegionExtent> out;
  for (std::size_t p = 0; p < set.planes().size(); ++p)
    for (std::size_t r = 0; r < set.planes()[p].regions.size(); ++r) {
      out.push_back(extent_of(set.planes()[p], set.planes()[p].regions[r]));
      out.back().plane = p;
      out.back().region = r;
    }
  return out;
}

// Whether they share no byte although their ranges overlap: blocks of one lie in the gaps between blocks of
// the other, e.g. values next to their scales.
inline bool interleave(const RegionExtent& a, const RegionExtent& b) noexcept {
  if (a.stride != b.stride || a.span > a.stride || b.span > b.stride) return false;
  const std::uint64_t apart = (b.first >= a.first ? b.first - a.first : a.first - b.first) % a.stride;
  const RegionExtent& front = b.first >= a.first ? a : b;
  const RegionExtent& back = b.first >= a.first ? b : a;
  return apart >= front.span && apart + back.span <= a.stride;
}

// Which two of them overlap, and in which storage.
inline std::optional<std::string> find_overlap(std::vector<RegionExtent> extents) {
  std::ranges::sort(extents);
  for (std::size_t i = 0; i < extents.size(); ++i)
    for (std::size_t j = i + 1; j < extents.size(); ++j) {
      const RegionExtent& one = extents[i];
      const RegionExtent& other = extents[j];
      if (other.space != one.space || other.first >= one.end) break;  // later ones begin even further on
      if (interleave(one, other)) continue;
      return "region " + std::to_string(one.region) + " of plane " + std::to_string(one.plane) +
             " and region " + std::to_string(other.region) + " of plane " + std::to_string(other.plane) +
             ": " + other.storage->describe();
    }
  return std::nullopt;
}

}  // namespace ashlar::transfer
