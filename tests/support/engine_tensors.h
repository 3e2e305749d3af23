// EngineTensors: the KV cache as an engine allocates it, one tensor per plane and layer or one per plane,
// addressed by the engine's own arithmetic: an oracle for layouts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ashlar/layout/layout.h"
#include "ashlar/storage/external_storage.h"
#include "ashlar/tiers/kv_options.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar {

// The axes of one layer's tensor, from the outermost to the innermost.
enum class TensorAxes : std::uint8_t {
  kBlockKvTokenHead,  // FlashInfer
  kKvBlockTokenHead,  // FlashAttention in vLLM
  kBlockKvHeadToken,  // HND
};

struct EnginePlane {
  layout::LayoutConfig config;  // of the plane; its block_count is not used
  TensorAxes axes = TensorAxes::kBlockKvTokenHead;
  bool tensor_per_layer = true;
  std::uint32_t extra_blocks = 0;  // in the tensor, after those of Ashlar
  std::uint64_t gap = 0;           // bytes after each block; only where the block is the outermost axis
};

class EngineTensors {
 public:
  static constexpr std::byte kUntouched{0x5A};

  EngineTensors(std::vector<EnginePlane> planes, std::uint32_t blocks)
      : planes_(std::move(planes)), blocks_(blocks) {
    for (const EnginePlane& plane : planes_) {
      const std::uint64_t layer_bytes = (plane.config.layer_bytes() + plane.gap) * total(plane);
      const std::uint32_t layers = plane.config.num_layers;
      auto& tensors = tensors_.emplace_back();
      if (plane.tensor_per_layer) {
        for (std::uint32_t l = 0; l < layers; ++l) tensors.push_back(make(layer_bytes));
      } else {
        tensors.push_back(make(layer_bytes * layers));
      }
    }
  }

  // What an engine hands to KvOptions. `at` maps the bytes of a tensor to where the engine keeps it; the
  // tensors themselves, on the host, if it is empty.
  using Where = std::function<storage::ExternalMemory(std::size_t plane, std::size_t tensor)>;
  std::vector<tiers::PlaneMemory> memory(const Where& at = {}) const {
    std::vector<tiers::PlaneMemory> out;
    for (std::size_t p = 0; p < planes_.size(); ++p) {
      tiers::PlaneMemory& plane = out.emplace_back();
      for (std::size_t i = 0; i < tensors_[p].size(); ++i)
        plane.regions.push_back(at ? at(p, i)
                                   : storage::ExternalMemory{.address = tensors_[p][i]->data(),
                                                             .bytes = tensors_[p][i]->size(),
                                                             .owner = tensors_[p][i]});
      if (planes_[p].extra_blocks != 0 || planes_[p].gap != 0) {
        plane.strides = strides(planes_[p]);
      } else if (planes_[p].axes != TensorAxes::kBlockKvTokenHead || !planes_[p].tensor_per_layer) {
        plane.order = planes_[p].axes == TensorAxes::kBlockKvTokenHead   ? layout::order::kBlockFirstNhd
                      : planes_[p].axes == TensorAxes::kKvBlockTokenHead ? layout::order::kBlockSecondNhd
                                                                         : layout::order::kBlockFirstHnd;
      }
    }
    return out;
  }

  std::size_t planes() const { return planes_.size(); }
  std::vector<std::byte>& tensor(std::size_t plane, std::size_t i) { return *tensors_[plane][i]; }
  std::size_t tensor_count(std::size_t plane) const { return tensors_[plane].size(); }

  // Writes the KV of a block as its computation would; and whether it has it, in one layer or in all.
  void compute(std::uint32_t block, const tokens::SequenceHash& hash) {
    each_byte(block, {}, [&](std::byte& byte, std::uint64_t i) { byte = byte_of(hash, i); });
  }
  bool has(std::uint32_t block, const tokens::SequenceHash& hash, std::optional<std::uint32_t> layer = {}) {
    bool good = true;
    each_byte(block, layer,
              [&](const std::byte& byte, std::uint64_t i) { good &= byte == byte_of(hash, i); });
    return good;
  }
  // Of a block, in the last plane.
  std::byte& last_byte(std::uint32_t block) {
    std::byte* last = nullptr;
    each_byte(block, {}, [&](std::byte& byte, std::uint64_t) { last = &byte; });
    return *last;
  }
  // Overwrites every block with something else.
  void scribble() {
    for (std::uint32_t b = 0; b < blocks_; ++b)
      each_byte(b, {}, [](std::byte& byte, std::uint64_t) { byte = std::byte{0x77}; });
  }
  // Whether gaps and extra blocks still have what they had.
  bool rest_is_untouched() {
    std::vector<std::vector<std::byte>> before;
    for (const auto& plane : tensors_)
      for (const auto& tensor : plane) before.push_back(*tensor);
    for (std::uint32_t b = 0; b < blocks_; ++b)
      each_byte(b, {}, [](std::byte& byte, std::uint64_t) { byte = kUntouched; });
    bool good = true;
    std::size_t i = 0;
    for (auto& plane : tensors_)
      for (auto& tensor : plane) {
        for (const std::byte byte : *tensor) good &= byte == kUntouched;
        *tensor = before[i++];
      }
    return good;
  }

 private:
  static std::shared_ptr<std::vector<std::byte>> make(std::uint64_t bytes) {
    return std::make_shared<std::vector<std::byte>>(bytes, kUntouched);
  }
  static std::byte byte_of(const tokens::SequenceHash& hash, std::uint64_t i) {
    return static_cast<std::byte>(hash.chain() * 131 + i * 7 + (i >> 8) * 13);
  }
  std::uint32_t total(const EnginePlane& plane) const { return blocks_ + plane.extra_blocks; }
  // As torch's stride(), in bytes.
  layout::Strides strides(const EnginePlane& plane) const {
    const layout::LayoutConfig& c = plane.config;
    const std::uint64_t head = c.head_bytes();
    const std::uint64_t half = head * c.num_heads * c.block_size;  // K or V of a block
    layout::Strides out{.head = head};
    out.token = head * c.num_heads;
    if (plane.axes == TensorAxes::kBlockKvHeadToken) {
      out.token = head;
      out.head = head * c.block_size;
    }
    out.outer = half;
    out.block = half * c.outer_dim + plane.gap;
    if (plane.axes == TensorAxes::kKvBlockTokenHead) {
      out.block = half;
      out.outer = half * total(plane);
    }
    if (!plane.tensor_per_layer) out.layer = (c.layer_bytes() + plane.gap) * total(plane);
    return out;
  }
  template <class F>
  void each_byte(std::uint32_t block, std::optional<std::uint32_t> only, F&& fn) {
    std::uint64_t i = 0;
    for (std::size_t p = 0; p < planes_.size(); ++p) {
      const layout::LayoutConfig& c = planes_[p].config;
      const layout::Strides s = strides(planes_[p]);
      const std::uint64_t head_bytes = c.head_bytes();
      for (std::uint32_t l = 0; l < c.num_layers; ++l) {
        std::byte* const base = tensors_[p][planes_[p].tensor_per_layer ? l : 0]->data() + l * s.layer;
        for (std::uint32_t o = 0; o < c.outer_dim; ++o)
          for (std::uint32_t t = 0; t < c.block_size; ++t)
            for (std::uint32_t h = 0; h < c.num_heads; ++h) {
              std::byte* const bytes = base + block * s.block + o * s.outer + t * s.token + h * s.head;
              if (!only || *only == l)
                for (std::uint64_t b = 0; b < head_bytes; ++b) fn(bytes[b], i + b);
              i += head_bytes;
            }
      }
    }
  }

  std::vector<EnginePlane> planes_;
  std::uint32_t blocks_;
  std::vector<std::vector<std::shared_ptr<std::vector<std::byte>>>> tensors_;  // by plane
};

}  // namespace ashlar
