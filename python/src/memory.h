// The bytes of G1 as Python sees them: memory that a caller brings, and views of blocks; neither is copied.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <string>

#include "ashlar/layout/layout_config.h"
#include "ashlar/tiers/kv_options.h"
#include "kv.h"

namespace ashlar::python {

// What a caller's object says about the memory of a tier.
struct BroughtMemory {
  tiers::PlaneMemory plane;
  std::uint32_t block_count = 0;            // of an array with a block axis; 0: not known
  std::optional<std::int32_t> device = {};  // of device memory
};

// `memory` is an array (buffer protocol or DLPack, host or device), or a list or tuple with one per layer. An
// array of the shape (blocks, layers, outer, tokens, heads, dim), without the layers for one per layer, may
// have any strides between heads; another shape must be contiguous and is read in the tier's order. Raises
// InvalidArgument for what cannot be used; the memory is kept alive by the result. Call with the GIL held.
// `name`: the argument, for messages.
BroughtMemory memory_of(nanobind::handle memory, const layout::LayoutConfig& model, const std::string& name);

}  // namespace ashlar::python
