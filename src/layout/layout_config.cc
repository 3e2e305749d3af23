#include "ashlar/layout/layout_config.h"

#include <bit>

#include "base/checked_math.h"

namespace ashlar::layout {

Result<void> LayoutConfig::validate() const {
  const auto positive = [](const char* field, std::uint32_t value) -> Result<void> {
    if (value == 0) return make_error(ErrorCode::kInvalidArgument, "%s is 0; it must be at least 1", field);
    return {};
  };
  for (const auto& checked :
       {positive("block_count", block_count), positive("num_layers", num_layers),
        positive("block_size", block_size), positive("num_heads", num_heads), positive("head_dim", head_dim)})
    if (!checked) return checked.error();
  if (outer_dim != 1 && outer_dim != 2)
    return make_error(ErrorCode::kInvalidArgument,
                      "outer_dim is %u; it is 2 for separate K and V and 1 for a joint vector", outer_dim);
  if (!is_known(dtype))
    return make_error(ErrorCode::kInvalidArgument, "unknown dtype %u", static_cast<unsigned>(dtype));
  if (std::uint64_t{num_heads} * head_dim != inner_dim)
    return make_error(ErrorCode::kInvalidArgument,
                      "inner_dim is %u; it must be num_heads x head_dim = %u x %u, the elements per token",
                      inner_dim, num_heads, head_dim);
  for (const auto& [field, value] :
       {std::pair("alignment", alignment), std::pair("layer_alignment", layer_alignment)})
    if (!std::has_single_bit(value) || value > (std::uint64_t{1} << 40))
      return make_error(ErrorCode::kInvalidArgument, "%s is %llu; it must be a power of two up to 2^40",
                        field, static_cast<unsigned long long>(value));
  std::uint64_t bytes = width_of(dtype);
  for (const std::uint64_t factor :
       {std::uint64_t{inner_dim}, std::uint64_t{block_size}, std::uint64_t{outer_dim},
        std::uint64_t{num_layers}, std::uint64_t{block_count}}) {
    if (!multiply(bytes, factor, &bytes) || bytes > kMaxLayoutBytes)
      return make_error(
          ErrorCode::kInvalidArgument,
          "%u blocks of %u layers, %u tokens and %u elements of %u bytes are more than 2^56 bytes",
          block_count, num_layers, block_size, inner_dim, width_of(dtype));
  }
  return {};
}

}  // namespace ashlar::layout
