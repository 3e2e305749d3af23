// Layout: where each byte of a set of KV blocks lies.
//
// A layout has one stride per axis (block, layer, K/V, token, head); the elements of a head are contiguous.
// Every order that an engine uses is a choice of strides, so code that copies needs no special cases. The
// bytes lie in one region, or in one region per layer, as frameworks allocate them; the caller maps a region
// to an address or a file.
//
//   offset = block * strides.block + layer * strides.layer + outer * strides.outer + token * strides.token
//            + head * strides.head            (with a region per layer, strides.layer is 0)
//
// A layout is a value: it owns no memory. docs/layouts.md has the formulas with pictures.
//
// Thread safety: immutable once made.
// Complexity:    O(1).
// Invariant:     no two elements overlap, and all lie inside region_bytes().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/layout/layout_config.h"

namespace ashlar::layout {

// The coordinates of a head. kOuter is K or V.
enum class Axis : std::uint8_t { kBlock, kLayer, kOuter, kToken, kHead };
inline constexpr std::size_t kAxes = 5;

std::string_view to_string(Axis axis) noexcept;

// Distances in bytes between neighbours along each axis.
struct Strides {
  std::uint64_t block = 0;
  std::uint64_t layer = 0;
  std::uint64_t outer = 0;
  std::uint64_t token = 0;
  std::uint64_t head = 0;

  std::uint64_t of(Axis axis) const noexcept;
  std::uint64_t& of(Axis axis) noexcept;
  friend bool operator==(const Strides&, const Strides&) = default;
};

// Axes from the outermost to the innermost.
using AxisOrder = std::array<Axis, kAxes>;

namespace order {

using enum Axis;

// Blocks one after the other, each with all its layers. NHD: a token's heads side by side; HND: a head's
// tokens.
inline constexpr AxisOrder kFullyContiguousNhd = {kBlock, kLayer, kOuter, kToken, kHead};
inline constexpr AxisOrder kFullyContiguousHnd = {kBlock, kLayer, kOuter, kHead, kToken};
// Layer after layer; in each, blocks with K and V side by side, or all K blocks before all V blocks.
inline constexpr AxisOrder kBlockFirstNhd = {kLayer, kBlock, kOuter, kToken, kHead};
inline constexpr AxisOrder kBlockFirstHnd = {kLayer, kBlock, kOuter, kHead, kToken};
inline constexpr AxisOrder kBlockSecondNhd = {kLayer, kOuter, kBlock, kToken, kHead};
inline constexpr AxisOrder kBlockSecondHnd = {kLayer, kOuter, kBlock, kHead, kToken};
// Heads, or layers and heads, outermost in the block, so that a shard of either is one piece.
inline constexpr AxisOrder kUniversalTp = {kBlock, kHead, kLayer, kOuter, kToken};
inline constexpr AxisOrder kUniversalPp = {kBlock, kLayer, kHead, kOuter, kToken};
// The orders of vLLM, whose rows hold K and V of a token and head side by side (C).
inline constexpr AxisOrder kLbhnc = {kLayer, kBlock, kHead, kToken, kOuter};
inline constexpr AxisOrder kLbnhc = {kLayer, kBlock, kToken, kHead, kOuter};
inline constexpr AxisOrder kLhbnc = {kLayer, kHead, kBlock, kToken, kOuter};
inline constexpr AxisOrder kBlhnc = {kBlock, kLayer, kHead, kToken, kOuter};
inline constexpr AxisOrder kBlnhc = {kBlock, kLayer, kToken, kHead, kOuter};
inline constexpr AxisOrder kBhlnc = {kBlock, kHead, kLayer, kToken, kOuter};

// The orders by name, for options and benchmarks.
struct NamedOrder {
  std::string_view name;
  AxisOrder order;
};
inline constexpr std::array<NamedOrder, 14> kAll = {{{"fully_contiguous_nhd", kFullyContiguousNhd},
                                                     {"fully_contiguous_hnd", kFullyContiguousHnd},
                                                     {"block_first_nhd", kBlockFirstNhd},
                                                     {"block_first_hnd", kBlockFirstHnd},
                                                     {"block_second_nhd", kBlockSecondNhd},
                                                     {"block_second_hnd", kBlockSecondHnd},
                                                     {"universal_tp", kUniversalTp},
                                                     {"universal_pp", kUniversalPp},
                                                     {"lbhnc", kLbhnc},
                                                     {"lbnhc", kLbnhc},
                                                     {"lhbnc", kLhbnc},
                                                     {"blhnc", kBlhnc},
                                                     {"blnhc", kBlnhc},
                                                     {"bhlnc", kBhlnc}}};

}  // namespace order

// One head of one token.
struct Position {
  std::uint32_t block = 0;
  std::uint32_t layer = 0;
  std::uint32_t outer = 0;
  std::uint32_t token = 0;
  std::uint32_t head = 0;
};

// Its start: an offset in a region.
struct Place {
  std::uint32_t region = 0;
  std::uint64_t offset = 0;

  friend bool operator==(const Place&, const Place&) = default;
};

// One region for everything, or one per layer.
enum class Regions : std::uint8_t { kOne, kPerLayer };

// Layout: see the top of this file. Equal layouts (==) place every byte alike.
class Layout {
 public:
  // Derives the strides from an order of axes, aligned as the config says.
  // Errors: kInvalidArgument: the config, an order that names an axis twice, regions per layer where the
  // layer is not the outermost axis, or more than kMaxLayoutBytes.
  static Result<Layout> create(const LayoutConfig& config, const AxisOrder& order,
                               Regions regions = Regions::kOne);
  // Takes the strides of existing memory. Errors: kInvalidArgument, also when elements would overlap, or when
  // the block or layer stride breaks the alignment of the config.
  static Result<Layout> create(const LayoutConfig& config, const Strides& strides,
                               Regions regions = Regions::kOne);

  const LayoutConfig& config() const noexcept { return config_; }
  const Strides& strides() const noexcept { return strides_; }
  Regions regions() const noexcept { return regions_; }
  std::uint32_t region_count() const noexcept { return regions_ == Regions::kOne ? 1 : config_.num_layers; }
  // Bytes of each region, including the padding after the last block where blocks are outermost.
  std::uint64_t region_bytes() const noexcept { return region_bytes_; }
  std::uint32_t extent(Axis axis) const noexcept;

  // Requires: every index is below its extent; always checked.
  Place place(const Position& position) const;

  // Whether the bytes of a (block, layer), or of a block, are contiguous.
  bool layer_is_contiguous() const noexcept;
  bool block_is_contiguous() const noexcept;

  friend bool operator==(const Layout&, const Layout&) = default;

 private:
  Layout(const LayoutConfig& config, const Strides& strides, Regions regions,
         std::uint64_t region_bytes) noexcept
      : config_(config), strides_(strides), regions_(regions), region_bytes_(region_bytes) {}
  bool is_contiguous(std::uint64_t bytes, bool with_layers) const noexcept;

  LayoutConfig config_;
  Strides strides_;
  Regions regions_;
  std::uint64_t region_bytes_;
};

}  // namespace ashlar::layout
