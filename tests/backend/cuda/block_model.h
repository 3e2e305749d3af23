// The image of a block set in memory of a device (support/block_images.h has the model), and sets to try.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "ashlar/transfer/block_set.h"
#include "ashlar/transfer/transfer_plan.h"
#include "support/block_images.h"

namespace ashlar::backend::cuda {

using Bytes = transfer::BlockImage::Bytes;

// A set and the bytes that it has, or should have.
class Mirror {
 public:
  explicit Mirror(std::shared_ptr<const transfer::BlockSet> set, std::uint8_t fill = 0xee)
      : set_(std::move(set)), image_(*set_, fill) {}

  const transfer::BlockSet& set() const { return *set_; }
  transfer::BlockImage& image() { return image_; }
  std::uint8_t* at(std::size_t plane, const layout::Place& place) { return image_.at(plane, place); }
  void scramble(std::uint64_t seed) { image_.scramble(seed); }

  void put() {
    image_.each_region(*set_, [](const transfer::RegionMemory& region, auto& bytes) {
      ASSERT_EQ(cudaMemcpy(region.storage->address() + region.offset, bytes.data(), bytes.size(),
                           cudaMemcpyDefault),
                cudaSuccess);
    });
    ASSERT_EQ(cudaStreamSynchronize(cudaStreamLegacy), cudaSuccess);
  }
  void fetch() {
    image_.each_region(*set_, [](const transfer::RegionMemory& region, auto& bytes) {
      ASSERT_EQ(cudaMemcpy(bytes.data(), region.storage->address() + region.offset, bytes.size(),
                           cudaMemcpyDefault),
                cudaSuccess);
    });
  }
  // The same without CUDA, for host memory.
  void put_on_host() { image_.store(*set_); }
  void fetch_on_host() { image_ = transfer::BlockImage::of(*set_); }

  friend bool operator==(const Mirror& a, const Mirror& b) { return a.image_ == b.image_; }

 private:
  std::shared_ptr<const transfer::BlockSet> set_;
  transfer::BlockImage image_;
};

// What a transfer does to the bytes of `to`.
inline void copy_elements(Mirror& from, std::span<const std::uint32_t> from_blocks, Mirror& to,
                          std::span<const std::uint32_t> to_blocks,
                          const transfer::PlanSelection& selection = {}) {
  transfer::copy_naively(from.set(), from.image(), from_blocks, to.set(), to.image(), to_blocks, selection);
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
