// The bytes of a block in canonical order (block_checksum.h), as contiguous runs of memory.
//
// Axes in canonical order are merged while they are contiguous, so a block already in that order is one run.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ashlar/transfer/block_set.h"

namespace ashlar::transfer {

namespace detail {

struct RunStep {
  std::uint64_t count;
  std::uint64_t stride;
};

template <class F>
void walk_runs(std::byte* at, std::span<const RunStep> steps, std::uint64_t run, F& visit) {
  if (steps.empty()) {
    visit(at, run);
    return;
  }
  for (std::uint64_t i = 0; i < steps[0].count; ++i, at += steps[0].stride)
    walk_runs(at, steps.subspan(1), run, visit);
}

}  // namespace detail

// Calls visit(first byte, bytes) for each run. Requires: host memory.
template <class F>
void for_each_run(const BlockSet& set, std::size_t number, std::uint32_t block, F&& visit) {
  using layout::Axis;
  const Plane& plane = set.planes()[number];
  std::vector<Axis> axes = {Axis::kOuter, Axis::kToken, Axis::kHead};
  if (plane.layout.config().opaque)
    std::ranges::sort(axes, std::greater<>(), [&](Axis axis) { return plane.layout.strides().of(axis); });
  if (plane.layout.regions() == layout::Regions::kOne) axes.insert(axes.begin(), Axis::kLayer);
  std::uint64_t run = plane.layout.config().head_bytes();
  while (!axes.empty() &&
         (plane.layout.extent(axes.back()) == 1 || plane.layout.strides().of(axes.back()) == run)) {
    run *= plane.layout.extent(axes.back());
    axes.pop_back();
  }
  std::vector<detail::RunStep> steps;
  steps.reserve(axes.size());
  for (const Axis axis : axes) steps.push_back({plane.layout.extent(axis), plane.layout.strides().of(axis)});
  const std::uint32_t regions = plane.layout.region_count();
  for (std::uint32_t layer = 0; layer < regions; ++layer)
    detail::walk_runs(set.address(number, plane.layout.place({.block = block, .layer = layer})), steps, run,
                      visit);
}

}  // namespace ashlar::transfer
