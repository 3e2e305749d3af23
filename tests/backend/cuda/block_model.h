// A naive model of block sets: every byte of every region on the host, copies element by element through
// Layout::place().
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/transfer_plan.h"

namespace ashlar::backend::cuda {

using Bytes = std::vector<std::uint8_t>;

// The bytes of a set, plane by plane and region by region.
class Mirror {
 public:
  explicit Mirror(std::shared_ptr<const transfer::BlockSet> set, std::uint8_t fill = 0xee)
      : set_(std::move(set)) {
    for (const transfer::Plane& plane : set_->planes())
      planes_.emplace_back(plane.regions.size(), Bytes(plane.layout.region_bytes(), fill));
  }

  const transfer::BlockSet& set() const { return *set_; }
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
  void put() {
    for_each_region([](std::byte* memory, Bytes& bytes) {
      ASSERT_EQ(cudaMemcpy(memory, bytes.data(), bytes.size(), cudaMemcpyDefault), cudaSuccess);
    });
    ASSERT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
  }
  void fetch() {
    for_each_region([](std::byte* memory, Bytes& bytes) {
      ASSERT_EQ(cudaMemcpy(bytes.data(), memory, bytes.size(), cudaMemcpyDefault), cudaSuccess);
    });
  }
  // The same without CUDA, for host memory.
  void put_on_host() {
    for_each_region([](std::byte* memory, Bytes& bytes) { std::memcpy(memory, bytes.data(), bytes.size()); });
  }
  void fetch_on_host() {
    for_each_region([](std::byte* memory, Bytes& bytes) { std::memcpy(bytes.data(), memory, bytes.size()); });
  }

  // Byte for byte, also what no block owns.
  friend bool operator==(const Mirror& a, const Mirror& b) { return a.planes_ == b.planes_; }

 private:
  template <class F>
  void for_each_region(F&& fn) {
    for (std::size_t plane = 0; plane < planes_.size(); ++plane)
      for (std::uint32_t region = 0; region < planes_[plane].size(); ++region)
        fn(set_->address(plane, {region, 0}), planes_[plane][region]);
  }

  std::shared_ptr<const transfer::BlockSet> set_;
  std::vector<std::vector<Bytes>> planes_;
};

// What a transfer does to the bytes of `to`.
inline void copy_elements(Mirror& from, std::span<const std::uint32_t> from_blocks, Mirror& to,
                          std::span<const std::uint32_t> to_blocks,
                          const transfer::PlanSelection& selection = {}) {
  for (std::size_t plane = 0; plane < from.set().planes().size(); ++plane) {
    const transfer::Plane& source = from.set().planes()[plane];
    const transfer::Plane& target = to.set().planes()[plane];
    const layout::LayoutConfig& config = source.layout.config();
    const bool shared = plane > 0 && config.num_heads == 1;
    const layout::Range layers =
        selection.layers.value_or(intersect(source.shard.layers, target.shard.layers));
    const layout::Range heads =
        shared ? layout::Range{0, 1}
               : selection.heads.value_or(intersect(source.shard.heads, target.shard.heads));
    const std::uint32_t from_head = shared ? 0 : source.shard.heads.first;
    const std::uint32_t to_head = shared ? 0 : target.shard.heads.first;
    for (std::size_t i = 0; i < from_blocks.size(); ++i)
      for (std::uint32_t layer = layers.first; layer < layers.end(); ++layer)
        for (std::uint32_t outer = 0; outer < config.outer_dim; ++outer)
          for (std::uint32_t token = 0; token < config.block_size; ++token)
            for (std::uint32_t head = heads.first; head < heads.end(); ++head)
              std::memcpy(
                  to.at(plane, target.layout.place({to_blocks[i], layer - target.shard.layers.first, outer,
                                                    token, head - to_head})),
                  from.at(plane, source.layout.place({from_blocks[i], layer - source.shard.layers.first,
                                                      outer, token, head - from_head})),
                  config.head_bytes());
  }
}

struct Shape {
  std::uint32_t blocks = 6;
  std::uint32_t layers = 3;
  std::uint32_t tokens = 4;
  std::uint32_t heads = 2;
  std::uint32_t head_dim = 8;
  layout::Dtype dtype = layout::Dtype::kBF16;
  std::uint64_t alignment = 1;
};

inline layout::LayoutConfig config_of(const Shape& shape) {
  return {.block_count = shape.blocks,
          .num_layers = shape.layers,
          .outer_dim = 2,
          .block_size = shape.tokens,
          .num_heads = shape.heads,
          .head_dim = shape.head_dim,
          .inner_dim = shape.heads * shape.head_dim,
          .dtype = shape.dtype,
          .alignment = shape.alignment};
}

inline layout::Layout layout_of(const Shape& shape, const layout::AxisOrder& order,
                                layout::Regions regions = layout::Regions::kOne) {
  return *layout::Layout::create(config_of(shape), order, regions);
}

inline std::shared_ptr<const transfer::BlockSet> allocate(const layout::Layout& layout,
                                                          storage::Allocator& allocator) {
  return *transfer::BlockSet::allocate(layout, allocator);
}

}  // namespace ashlar::backend::cuda
