// The bytes of a block in canonical order (block_checksum.h), as contiguous runs of memory.
//
// Axes in canonical order are merged while they are contiguous, so a block already in that order is one run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/transfer/block_set.h"

namespace ashlar::transfer {

namespace detail {

struct RunStep {
  std::uint64_t count;
  std::uint64_t stride;
};

// `at`: an address, or an offset.
template <class At, class F>
void walk_runs(At at, std::span<const RunStep> steps, std::uint64_t run, F& visit) {
  if (steps.empty()) {
    visit(at, run);
    return;
  }
  for (std::uint64_t i = 0; i < steps[0].count; ++i, at += steps[0].stride)
    walk_runs(at, steps.subspan(1), run, visit);
}

// The steps from run to run of a region, and the bytes of a run.
inline std::uint64_t run_steps(const layout::Layout& layout, const layout::Range& layers,
                               const layout::Range& heads, std::vector<RunStep>& steps) {
  using layout::Axis;
  const auto extent = [&](Axis axis) {
    return axis == Axis::kLayer ? layers.count : axis == Axis::kHead ? heads.count : layout.extent(axis);
  };
  std::vector<Axis> axes = {Axis::kOuter, Axis::kToken, Axis::kHead};
  if (layout.config().opaque)
    std::ranges::sort(axes, std::greater<>(), [&](Axis axis) { return layout.strides().of(axis); });
  if (layout.regions() == layout::Regions::kOne) axes.insert(axes.begin(), Axis::kLayer);
  std::uint64_t run = layout.config().head_bytes();
  while (!axes.empty() && (extent(axes.back()) == 1 || layout.strides().of(axes.back()) == run)) {
    run *= extent(axes.back());
    axes.pop_back();
  }
  steps.reserve(axes.size());
  for (const Axis axis : axes) steps.push_back({extent(axis), layout.strides().of(axis)});
  return run;
}

}  // namespace detail

// Calls visit(first byte, bytes) for each run of these layers and heads, which are counted within the plane.
// Requires: host memory; the plane has them; all heads where the content is opaque.
template <class F>
void for_each_run(const BlockSet& set, std::size_t number, std::uint32_t block, layout::Range layers,
                  layout::Range heads, F&& visit) {
  const Plane& plane = set.planes()[number];
  std::vector<detail::RunStep> steps;
  const std::uint64_t run = detail::run_steps(plane.layout, layers, heads, steps);
  const bool one_region = plane.layout.regions() == layout::Regions::kOne;
  const std::uint32_t regions = one_region ? 1 : layers.count;
  for (std::uint32_t layer = 0; layer < regions; ++layer)
    detail::walk_runs(
        set.address(number,
                    plane.layout.place({.block = block, .layer = layers.first + layer, .head = heads.first})),
        std::span<const detail::RunStep>(steps), run, visit);
}

// Calls visit(offset, bytes) for each run of a whole block. Requires: the layout has one region.
template <class F>
void for_each_run_offset(const layout::Layout& layout, std::uint32_t block, F&& visit) {
  std::vector<detail::RunStep> steps;
  const std::uint64_t run =
      detail::run_steps(layout, {0, layout.config().num_layers}, {0, layout.config().num_heads}, steps);
  detail::walk_runs(layout.place({.block = block}).offset, std::span<const detail::RunStep>(steps), run,
                    visit);
}

// As the first, for all layers and heads.
template <class F>
void for_each_run(const BlockSet& set, std::size_t number, std::uint32_t block, F&& visit) {
  const layout::LayoutConfig& config = set.planes()[number].layout.config();
  for_each_run(set, number, block, {0, config.num_layers}, {0, config.num_heads}, std::forward<F>(visit));
}

}  // namespace ashlar::transfer
