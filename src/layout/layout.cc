#include "ashlar/layout/layout.h"

#include <algorithm>
#include <vector>

#include "ashlar/base/check.h"
#include "base/checked_math.h"

namespace ashlar::layout {

namespace {

constexpr std::array<Axis, kAxes> kAllAxes = {Axis::kBlock, Axis::kLayer, Axis::kOuter, Axis::kToken,
                                              Axis::kHead};

constexpr bool names_every_axis(const AxisOrder& order) {
  for (const Axis axis : kAllAxes)
    if (std::ranges::count(order, axis) != 1) return false;
  return true;
}
static_assert(std::ranges::all_of(order::kAll, names_every_axis, &order::NamedOrder::order),
              "a named order has each axis once");

std::uint32_t extent_of(const LayoutConfig& config, Axis axis) noexcept {
  switch (axis) {
    case Axis::kBlock:
      return config.block_count;
    case Axis::kLayer:
      return config.num_layers;
    case Axis::kOuter:
      return config.outer_dim;
    case Axis::kToken:
      return config.block_size;
    case Axis::kHead:
      return config.num_heads;
  }
  return 0;
}

std::uint64_t alignment_of(const LayoutConfig& config, Axis axis) noexcept {
  if (axis == Axis::kBlock) return config.alignment;
  return axis == Axis::kLayer ? config.layer_alignment : 1;
}

Error too_large(const char* what) {
  return make_error(ErrorCode::kInvalidArgument, "%s: the layout would have more than 2^56 bytes", what);
}

}  // namespace

std::string_view to_string(Axis axis) noexcept {
  constexpr std::array<std::string_view, kAxes> kNames = {"block", "layer", "outer", "token", "head"};
  const auto i = static_cast<std::size_t>(axis);
  return i < kAxes ? kNames[i] : "unknown";
}

std::uint64_t Strides::of(Axis axis) const noexcept {
  return const_cast<Strides*>(this)->of(axis);
}

std::uint64_t& Strides::of(Axis axis) noexcept {
  switch (axis) {
    case Axis::kBlock:
      return block;
    case Axis::kLayer:
      return layer;
    case Axis::kOuter:
      return outer;
    case Axis::kToken:
      return token;
    case Axis::kHead:
      break;
  }
  return head;
}

Result<Layout> Layout::create(const LayoutConfig& config, const AxisOrder& order, Regions regions) {
  ASHLAR_RETURN_IF_ERROR(config.validate());
  for (const Axis axis : kAllAxes)
    if (std::ranges::count(order, axis) != 1)
      return make_error(ErrorCode::kInvalidArgument,
                        "the order must name each axis once; %s is there %d times", to_string(axis).data(),
                        static_cast<int>(std::ranges::count(order, axis)));
  if (regions == Regions::kPerLayer && order[0] != Axis::kLayer)
    return make_error(ErrorCode::kInvalidArgument,
                      "a region per layer needs the layer as the outermost axis; it is the %s",
                      to_string(order[0]).data());
  Strides strides;
  std::uint64_t inside = config.head_bytes();
  for (std::size_t i = kAxes; i-- > 0;) {
    const Axis axis = order[i];
    if (regions == Regions::kPerLayer && axis == Axis::kLayer) break;
    std::uint64_t& stride = strides.of(axis);
    if (!align_up(inside, alignment_of(config, axis), &stride) ||
        !multiply(stride, extent_of(config, axis), &inside) || inside > kMaxLayoutBytes)
      return too_large("with these alignments");
  }
  return create(config, strides, regions);
}

Result<Layout> Layout::create(const LayoutConfig& config, const Strides& strides, Regions regions) {
  ASHLAR_RETURN_IF_ERROR(config.validate());
  const bool per_layer = regions == Regions::kPerLayer;
  if (per_layer && strides.layer != 0)
    return make_error(ErrorCode::kInvalidArgument,
                      "layers in regions of their own have no stride; it is %llu",
                      static_cast<unsigned long long>(strides.layer));
  for (const Axis axis : {Axis::kBlock, Axis::kLayer})
    if (strides.of(axis) % alignment_of(config, axis) != 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "the %s stride %llu is no multiple of the alignment %llu", to_string(axis).data(),
                        static_cast<unsigned long long>(strides.of(axis)),
                        static_cast<unsigned long long>(alignment_of(config, axis)));
  // From the innermost axis to the outermost: the extent inside an axis must fit into its stride. An axis of
  // extent 1 has no neighbours to collide with.
  std::vector<Axis> axes;
  for (const Axis axis : kAllAxes)
    if (extent_of(config, axis) > 1 && !(per_layer && axis == Axis::kLayer)) axes.push_back(axis);
  std::ranges::sort(axes, {}, [&](Axis axis) { return strides.of(axis); });
  std::uint64_t end = config.head_bytes();  // of the extent inside
  for (const Axis axis : axes) {
    const std::uint64_t stride = strides.of(axis);
    if (stride < end)
      return make_error(
          ErrorCode::kInvalidArgument,
          "the %s stride is %llu, but %llu bytes lie between two neighbours: they would overlap",
          to_string(axis).data(), static_cast<unsigned long long>(stride),
          static_cast<unsigned long long>(end));
    std::uint64_t rest = 0;
    if (!multiply(stride, extent_of(config, axis) - 1, &rest) || !add(end, rest, &end) ||
        end > kMaxLayoutBytes)
      return too_large("with these strides");
  }
  // Where blocks are outermost, the padding after the last block belongs to it, so that whole blocks can be
  // read and written.
  if (!axes.empty() && axes.back() == Axis::kBlock)
    end = strides.block * config.block_count;
  else if (config.block_count == 1 && strides.block > end)
    end = strides.block;
  if (end > kMaxLayoutBytes) return too_large("with the padding of its last block");
  ASHLAR_CHECK(end >= config.block_bytes() * config.block_count / (per_layer ? config.num_layers : 1),
               "a region of %llu bytes is smaller than its elements", static_cast<unsigned long long>(end));
  return Layout(config, strides, regions, end);
}

std::uint32_t Layout::extent(Axis axis) const noexcept {
  return extent_of(config_, axis);
}

Place Layout::place(const Position& position) const {
  const std::array<std::uint32_t, kAxes> indices = {position.block, position.layer, position.outer,
                                                    position.token, position.head};
  Place place;
  for (std::size_t i = 0; i < kAxes; ++i) {
    const Axis axis = kAllAxes[i];
    ASHLAR_CHECK(indices[i] < extent(axis), "%s %u of %u", to_string(axis).data(), indices[i], extent(axis));
    place.offset += indices[i] * strides_.of(axis);
  }
  ASHLAR_DCHECK(place.offset + config_.head_bytes() <= region_bytes_,
                "a head at %llu passes the end of a region of %llu bytes",
                static_cast<unsigned long long>(place.offset),
                static_cast<unsigned long long>(region_bytes_));
  if (regions_ == Regions::kPerLayer) place.region = position.layer;
  return place;
}

bool Layout::is_contiguous(std::uint64_t bytes, bool with_layers) const noexcept {
  // The last byte is exactly as far from the first as the byte count implies, so nothing overlaps.
  std::uint64_t end = config_.head_bytes();
  for (const Axis axis : {Axis::kLayer, Axis::kOuter, Axis::kToken, Axis::kHead})
    if (axis != Axis::kLayer || with_layers) end += strides_.of(axis) * (extent(axis) - 1);
  return end == bytes;
}

bool Layout::layer_is_contiguous() const noexcept {
  return is_contiguous(config_.layer_bytes(), false);
}

bool Layout::block_is_contiguous() const noexcept {
  if (regions_ == Regions::kPerLayer && config_.num_layers > 1) return false;
  return is_contiguous(config_.block_bytes(), true);
}

}  // namespace ashlar::layout
