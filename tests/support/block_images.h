// BlockImage: the bytes of a block set as vectors, for tests to fill and to compare, whatever storage the set
// has; and the model of a transfer: element by element.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/layout/layout.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::transfer {

inline layout::LayoutConfig small_shape(std::uint32_t blocks, std::uint32_t layers, std::uint32_t heads) {
  return {.block_count = blocks,
          .num_layers = layers,
          .outer_dim = 2,
          .block_size = 3,
          .num_heads = heads,
          .head_dim = 2,
          .inner_dim = heads * 2,
          .dtype = layout::Dtype::kF16};
}

// Every preset: packed, aligned, and with a region per layer where the order allows it.
inline std::vector<layout::Layout> every_layout(const layout::LayoutConfig& plain,
                                                std::uint64_t alignment = 64) {
  std::vector<layout::Layout> layouts;
  layout::LayoutConfig padded = plain;
  padded.alignment = alignment;
  padded.layer_alignment = 16;
  for (const layout::order::NamedOrder& named : layout::order::kAll) {
    layouts.push_back(layout::Layout::create(plain, named.order).value());
    layouts.push_back(layout::Layout::create(padded, named.order).value());
    if (named.order[0] == layout::Axis::kLayer)
      layouts.push_back(layout::Layout::create(padded, named.order, layout::Regions::kPerLayer).value());
  }
  return layouts;
}

class BlockImage {
 public:
  using Bytes = std::vector<std::uint8_t>;

  BlockImage(const BlockSet& set, std::uint8_t fill) {
    for (const Plane& plane : set.planes())
      planes_.emplace_back(plane.layout.region_count(), Bytes(plane.layout.region_bytes(), fill));
  }
  // What a set holds now. Requires: host memory or files.
  static BlockImage of(const BlockSet& set) {
    BlockImage image(set, 0);
    image.each_region(set, [](const RegionMemory& region, Bytes& bytes) {
      if (const storage::FileAccess* file = region.storage->file()) {
        ASSERT_EQ(pread(file->buffered, bytes.data(), bytes.size(), static_cast<off_t>(region.offset)),
                  static_cast<ssize_t>(bytes.size()));
      } else {
        std::memcpy(bytes.data(), region.storage->address() + region.offset, bytes.size());
      }
    });
    return image;
  }
  void store(const BlockSet& set) const {
    const_cast<BlockImage*>(this)->each_region(set, [](const RegionMemory& region, Bytes& bytes) {
      if (const storage::FileAccess* file = region.storage->file()) {
        ASSERT_EQ(pwrite(file->buffered, bytes.data(), bytes.size(), static_cast<off_t>(region.offset)),
                  static_cast<ssize_t>(bytes.size()));
      } else {
        std::memcpy(region.storage->address() + region.offset, bytes.data(), bytes.size());
      }
    });
  }

  std::uint8_t* at(std::size_t plane, const layout::Place& place) {
    return planes_[plane][place.region].data() + place.offset;
  }

  // Random bytes everywhere, padding included.
  void scramble(std::uint64_t seed) {
    Random random(seed);
    for (std::vector<Bytes>& regions : planes_)
      for (Bytes& bytes : regions)
        for (std::uint8_t& byte : bytes) byte = static_cast<std::uint8_t>(random.next());
  }
  // Elements whose bytes say which element of the model they are.
  void number(const BlockSet& set, std::uint64_t salt = 0) {
    for (std::size_t p = 0; p < set.planes().size(); ++p) {
      const Plane& plane = set.planes()[p];
      const layout::LayoutConfig& c = plane.layout.config();
      for_each_position(c, [&](const layout::Position& at_position) {
        Random random((((salt * 8 + p) * 4096 + at_position.block) * 64 + at_position.layer +
                       plane.shard.layers.first) *
                          8192 +
                      at_position.outer * 4096 + at_position.token * 64 + at_position.head +
                      plane.shard.heads.first);
        std::uint8_t* bytes = at(p, plane.layout.place(at_position));
        for (std::uint64_t i = 0; i < c.head_bytes(); ++i)
          bytes[i] = static_cast<std::uint8_t>(random.next());
      });
    }
  }

  template <class F>
  static void for_each_position(const layout::LayoutConfig& c, F&& fn) {
    for (std::uint32_t b = 0; b < c.block_count; ++b)
      for (std::uint32_t l = 0; l < c.num_layers; ++l)
        for (std::uint32_t o = 0; o < c.outer_dim; ++o)
          for (std::uint32_t t = 0; t < c.block_size; ++t)
            for (std::uint32_t h = 0; h < c.num_heads; ++h) fn(layout::Position{b, l, o, t, h});
  }

  // Byte for byte, also what no block owns.
  friend bool operator==(const BlockImage&, const BlockImage&) = default;

  // Calls fn(memory of the set, bytes of the image) for every region.
  template <class F>
  void each_region(const BlockSet& set, F&& fn) {
    for (std::size_t p = 0; p < planes_.size(); ++p)
      for (std::size_t r = 0; r < planes_[p].size(); ++r) fn(set.planes()[p].regions[r], planes_[p][r]);
  }

 private:
  std::vector<std::vector<Bytes>> planes_;  // [plane][region]
};

// The model of a transfer. Layers and heads are those of the model, for each plane.
inline void copy_naively(const BlockSet& from, BlockImage& source, std::span<const std::uint32_t> from_blocks,
                         const BlockSet& to, BlockImage& target, std::span<const std::uint32_t> to_blocks,
                         const PlanSelection& selection = {}) {
  for (std::size_t p = 0; p < from.planes().size(); ++p) {
    const Plane& a = from.planes()[p];
    const Plane& b = to.planes()[p];
    const bool shared =
        p > 0 && a.layout.config().num_heads == 1 && from.planes()[0].layout.config().num_heads > 1;
    const layout::Range layers = selection.layers.value_or(intersect(a.shard.layers, b.shard.layers));
    const layout::Range heads =
        shared ? b.shard.heads : selection.heads.value_or(intersect(a.shard.heads, b.shard.heads));
    for (std::size_t i = 0; i < from_blocks.size(); ++i)
      for (std::uint32_t l = layers.first; l < layers.end(); ++l)
        for (std::uint32_t o = 0; o < a.layout.config().outer_dim; ++o)
          for (std::uint32_t t = 0; t < a.layout.config().block_size; ++t)
            for (std::uint32_t h = heads.first; h < heads.end(); ++h)
              std::memcpy(target.at(p, b.layout.place({to_blocks[i], l - b.shard.layers.first, o, t,
                                                       h - b.shard.heads.first})),
                          source.at(p, a.layout.place({from_blocks[i], l - a.shard.layers.first, o, t,
                                                       shared ? 0 : h - a.shard.heads.first})),
                          a.layout.config().head_bytes());
  }
}

}  // namespace ashlar::transfer
