#include "ashlar/transfer/copy_plan.h"

#include <algorithm>
#include <functional>
#include <string>

#include "ashlar/base/check.h"

namespace ashlar::transfer {

using layout::Axis;
using layout::Layout;
using layout::LayoutConfig;
using layout::Range;
using layout::Regions;

namespace {

Result<void> check_shape(const LayoutConfig& from, const LayoutConfig& to) {
  const auto same = [](const char* what, std::uint64_t left, std::uint64_t right) -> Result<void> {
    if (left != right)
      return make_error(ErrorCode::kInvalidArgument, "%s differ: %llu at the source, %llu at the destination",
                        what, static_cast<unsigned long long>(left), static_cast<unsigned long long>(right));
    return {};
  };
  for (const Result<void>& result : {same("tokens per block", from.block_size, to.block_size),
                                     same("elements per head", from.head_dim, to.head_dim),
                                     same("outer dimensions", from.outer_dim, to.outer_dim),
                                     same("types of elements", static_cast<std::uint64_t>(from.dtype),
                                          static_cast<std::uint64_t>(to.dtype)),
                                     same("opaque flags", from.opaque ? 1 : 0, to.opaque ? 1 : 0)})
    if (!result) return result.error();
  return {};
}

Result<void> check_side(const char* name, const PlanSide& side) {
  const LayoutConfig& config = side.layout.config();
  if (side.shard.layers.count != config.num_layers || side.shard.heads.count != config.num_heads)
    return make_error(ErrorCode::kInvalidArgument,
                      "the shard of the %s has %u layers and %u heads, its layout %u and %u", name,
                      side.shard.layers.count, side.shard.heads.count, config.num_layers, config.num_heads);
  for (std::size_t i = 0; i < side.blocks.size(); ++i)
    if (side.blocks[i] >= config.block_count)
      return make_error(ErrorCode::kInvalidArgument, "block %u at place %zu of the %s; it has %u blocks",
                        side.blocks[i], i, name, config.block_count);
  return {};
}

// The intersection of both sides with the requested range.
Result<Range> select(const char* what, const Range& from, const Range& to,
                     const std::optional<Range>& wanted) {
  const Range common = intersect(from, to);
  if (!wanted) {
    if (common.count == 0)
      return make_error(ErrorCode::kInvalidArgument,
                        "no %s in common: the source has %u from %u on, the destination %u from %u on", what,
                        from.count, from.first, to.count, to.first);
    return common;
  }
  if (wanted->count == 0 || intersect(common, *wanted) != *wanted)
    return make_error(ErrorCode::kInvalidArgument,
                      "%u %s from %u on are wanted; source and destination have %u from %u on in common",
                      wanted->count, what, wanted->first, common.count, common.first);
  return *wanted;
}

bool same_inside(const Layout& from, const Layout& to) {
  for (const Axis axis : {Axis::kOuter, Axis::kToken, Axis::kHead})
    if (from.extent(axis) > 1 && from.strides().of(axis) != to.strides().of(axis)) return false;
  return true;
}

// Opaque content keeps its inner order and moves with all its heads.
Result<void> check_opaque(const PlanSide& from, const PlanSide& to, const Range& heads) {
  if (!from.layout.config().opaque) return {};
  if (heads.count != from.shard.heads.count || heads.count != to.shard.heads.count)
    return make_error(ErrorCode::kUnsupported,
                      "opaque content cannot be cut: %u heads of %u and %u would move; move whole blocks "
                      "between equal shards",
                      heads.count, from.shard.heads.count, to.shard.heads.count);
  if (!same_inside(from.layout, to.layout))
    return make_error(ErrorCode::kUnsupported,
                      "opaque content cannot be rearranged: the orders inside a layer differ");
  return {};
}

}  // namespace

std::uint64_t CopyPattern::pieces() const noexcept {
  std::uint64_t count = 1;
  for (const CopyAxis& axis : axes) count *= axis.count;
  return count;
}

std::uint64_t CopyPlan::pieces() const noexcept {
  std::uint64_t count = 0;
  for (const CopyPattern& pattern : patterns_) count += pattern.pieces();
  return count * pairs_.size();
}

std::uint64_t CopyPlan::bytes() const noexcept {
  std::uint64_t count = 0;
  for (const CopyPattern& pattern : patterns_) count += pattern.pieces() * pattern.bytes;
  return count * pairs_.size();
}

GatheredPlan CopyPlan::gather(Side side, std::uint64_t max_run_bytes) const {
  GatheredPlan out{*this, {}, piece_bytes()};
  if (patterns_.empty()) return out;
  if (patterns_.empty()) return out;
  std::vector<CopyAxis> axes = patterns_[0].axes;
  std::uint64_t run = piece_bytes();
  for (;;) {
    const auto next = std::ranges::find_if(axes, [&](const CopyAxis& axis) {
      return (side == Side::kFrom ? axis.from_stride : axis.to_stride) == run;
    });
    if (next == axes.end()) break;
    // All of the axis, or the largest equal part of it that fits.
    std::uint64_t part = std::min(next->count, max_run_bytes / run);
    while (part > 1 && next->count % part != 0) --part;
    if (part <= 1) break;
    run *= part;
    out.inner.insert(out.inner.begin(), {part, next->from_stride, next->to_stride});
    if (part == next->count) {
      axes.erase(next);
      continue;
    }
    *next = {next->count / part, next->from_stride * part, next->to_stride * part};
    break;
  }
  out.runs.gathered_ = !out.inner.empty();
  for (CopyPattern& pattern : out.runs.patterns_) {
    pattern.bytes = run;
    pattern.axes = axes;
  }
  ASHLAR_DCHECK(out.runs.bytes() == bytes(), "gathering %llu bytes made %llu of them",
                static_cast<unsigned long long>(bytes()), static_cast<unsigned long long>(out.runs.bytes()));
  return out;
}

Result<CopyPlan> plan(const PlanSide& from, const PlanSide& to, const PlanSelection& selection) {
  if (from.blocks.size() != to.blocks.size())
    return make_error(ErrorCode::kInvalidArgument, "%zu source blocks for %zu destinations",
                      from.blocks.size(), to.blocks.size());
  for (const Result<void>& result : {check_shape(from.layout.config(), to.layout.config()),
                                     check_side("source", from), check_side("destination", to)})
    if (!result) return result.error();
  CopyPlan out;
  for (std::size_t i = 0; i < from.blocks.size(); ++i) out.pairs_.push_back({from.blocks[i], to.blocks[i]});
  std::ranges::sort(out.pairs_, {}, &BlockPair::to);
  if (const auto twice = std::ranges::adjacent_find(out.pairs_, {}, &BlockPair::to);
      twice != out.pairs_.end())
    return make_error(ErrorCode::kInvalidArgument, "block %u of the destination is named twice", twice->to);
  ASHLAR_TRY(const Range layers, select("layers", from.shard.layers, to.shard.layers, selection.layers));
  ASHLAR_TRY(const Range heads, select("heads", from.shard.heads, to.shard.heads, selection.heads));
  ASHLAR_RETURN_IF_ERROR(check_opaque(from, to, heads));

  out.from_block_stride_ = from.layout.strides().block;
  out.to_block_stride_ = to.layout.strides().block;

  // The axes of one pattern; axes split by region boundaries need one pattern per part.
  const bool split_layers =
      from.layout.regions() == Regions::kPerLayer || to.layout.regions() == Regions::kPerLayer;
  const LayoutConfig& config = from.layout.config();
  std::vector<CopyAxis> axes;
  const auto add_axis = [&](Axis axis, std::uint64_t count) {
    if (count > 1) axes.push_back({count, from.layout.strides().of(axis), to.layout.strides().of(axis)});
  };
  if (!split_layers) add_axis(Axis::kLayer, layers.count);
  add_axis(Axis::kOuter, config.outer_dim);
  add_axis(Axis::kToken, config.block_size);
  add_axis(Axis::kHead, heads.count);
  // The destination is written front to back; runs contiguous on both sides are merged.
  std::ranges::sort(axes, std::greater<>(), &CopyAxis::to_stride);
  std::uint64_t bytes = config.head_bytes();
  while (!axes.empty() && axes.back().from_stride == bytes && axes.back().to_stride == bytes) {
    bytes *= axes.back().count;
    axes.pop_back();
  }
  for (std::size_t i = axes.size(); i-- > 1;) {
    const CopyAxis& inner = axes[i];
    CopyAxis& outer = axes[i - 1];
    if (outer.from_stride == inner.from_stride * inner.count &&
        outer.to_stride == inner.to_stride * inner.count) {
      outer = {outer.count * inner.count, inner.from_stride, inner.to_stride};
      axes.erase(axes.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  for (std::uint32_t i = 0; i < (split_layers ? layers.count : 1); ++i) {
    const std::uint32_t layer = layers.first + i;
    const auto start = [&](const PlanSide& side) {
      return side.layout.place(
          {.layer = layer - side.shard.layers.first, .head = heads.first - side.shard.heads.first});
    };
    out.patterns_.push_back({start(from), start(to), bytes, axes});
  }
  ASHLAR_DCHECK(out.bytes() == out.pairs_.size() * layers.count * heads.count * config.outer_dim *
                                   config.block_size * config.head_bytes(),
                "a plan for %u layers and %u heads of %zu blocks moves %llu bytes", layers.count, heads.count,
                out.pairs_.size(), static_cast<unsigned long long>(out.bytes()));
  return out;
}

Result<std::vector<ShardSource>> cover(const layout::Shard& wanted, std::span<const layout::Shard> sources) {
  // Rectangles of (layers, heads) still missing; each source removes its part.
  std::vector<layout::Shard> missing = {wanted};
  std::vector<ShardSource> out;
  for (std::size_t s = 0; s < sources.size() && !missing.empty(); ++s) {
    std::vector<layout::Shard> left;
    for (const layout::Shard& part : missing) {
      const Range layers = intersect(part.layers, sources[s].layers);
      const Range heads = intersect(part.heads, sources[s].heads);
      if (layers.count == 0 || heads.count == 0) {
        left.push_back(part);
        continue;
      }
      out.push_back({s, layers, heads});
      const auto keep = [&](Range rest_layers, Range rest_heads) {
        if (rest_layers.count != 0 && rest_heads.count != 0) left.push_back({rest_layers, rest_heads});
      };
      const auto between = [](std::uint64_t first, std::uint64_t end) {
        return Range{static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(end - first)};
      };
      keep(between(part.layers.first, layers.first), part.heads);
      keep(between(layers.end(), part.layers.end()), part.heads);
      keep(layers, between(part.heads.first, heads.first));
      keep(layers, between(heads.end(), part.heads.end()));
    }
    missing = std::move(left);
  }
  if (!missing.empty())
    return make_error(ErrorCode::kNotFound, "no source has layer %u, head %u", missing[0].layers.first,
                      missing[0].heads.first);
  const auto cells = [](const Range& layers, const Range& heads) {
    return std::uint64_t{layers.count} * heads.count;
  };
  std::uint64_t covered = 0;
  for (const ShardSource& part : out) covered += cells(part.layers, part.heads);
  ASHLAR_CHECK(covered == cells(wanted.layers, wanted.heads),
               "%zu sources cover %llu pairs of layer and head; every pair must come from exactly one",
               out.size(), static_cast<unsigned long long>(covered));
  return out;
}

}  // namespace ashlar::transfer
