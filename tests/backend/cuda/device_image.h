// store_on_device(), load_from_device(): the bytes of a block set in device memory, from and to its image.
#pragma once

#include <cuda_runtime_api.h>

#include "ashlar/base/check.h"
#include "support/block_images.h"

namespace ashlar::transfer {

inline void copy_image(const BlockSet& set, BlockImage& image, bool store) {
  image.each_region(set, [&](const RegionMemory& region, BlockImage::Bytes& bytes) {
    std::byte* const there = region.storage->address() + region.offset;
    void* const to = store ? static_cast<void*>(there) : bytes.data();
    const void* const from = store ? static_cast<const void*>(bytes.data()) : there;
    ASHLAR_CHECK(cudaMemcpy(to, from, bytes.size(), cudaMemcpyDefault) == cudaSuccess, "no copy");
  });
  ASHLAR_CHECK(cudaStreamSynchronize(cudaStreamLegacy) == cudaSuccess, "the copy has not ended");
}
inline void store_on_device(const BlockSet& set, BlockImage& image) {
  copy_image(set, image, true);
}
inline void load_from_device(const BlockSet& set, BlockImage& image) {
  copy_image(set, image, false);
}

}  // namespace ashlar::transfer
