// The sizes that structs of ashlar_c.h had in ABI 1, up to the end of their last field then. A struct only
// grows, so a smaller one was never in a header: its struct_size is wrong.
//
// Thread safety: constants.
#pragma once

#include <cstddef>

#include "ashlar_c.h"

namespace ashlar::c_interface {

// Not defined for a struct that is not listed: add it below, with its last field.
template <class T>
inline constexpr std::size_t kLeastSize = T::not_listed_in_struct_sizes;

#define ASHLAR_LEAST_SIZE(type, last) \
  template <>                         \
  inline constexpr std::size_t kLeastSize<type> = offsetof(type, last) + sizeof(type::last)

ASHLAR_LEAST_SIZE(ashlar_hasher_options, tenant);
ASHLAR_LEAST_SIZE(ashlar_registry_options, frequency_capacity);
ASHLAR_LEAST_SIZE(ashlar_manager_options, reserved);
ASHLAR_LEAST_SIZE(ashlar_pool_status, guards);
ASHLAR_LEAST_SIZE(ashlar_manager_counters, match_blocks_returned);
ASHLAR_LEAST_SIZE(ashlar_register_options, reserved2);
ASHLAR_LEAST_SIZE(ashlar_request_options, compute_tokens_per_second);
ASHLAR_LEAST_SIZE(ashlar_request_info, tokens_left);
ASHLAR_LEAST_SIZE(ashlar_index_options, queue_capacity);
ASHLAR_LEAST_SIZE(ashlar_index_sizes, bytes);
ASHLAR_LEAST_SIZE(ashlar_feed_options, tenant);
ASHLAR_LEAST_SIZE(ashlar_client_options, max_bytes);
ASHLAR_LEAST_SIZE(ashlar_route_query, tenant);
ASHLAR_LEAST_SIZE(ashlar_tiers_options, max_pins);
ASHLAR_LEAST_SIZE(ashlar_offload_options, deadline_ns);
ASHLAR_LEAST_SIZE(ashlar_offload_progress, late);
ASHLAR_LEAST_SIZE(ashlar_onboard_options, compute_tokens_per_second);
ASHLAR_LEAST_SIZE(ashlar_tier_status, arrived);
ASHLAR_LEAST_SIZE(ashlar_sequences_options, compute_tokens_per_second);
ASHLAR_LEAST_SIZE(ashlar_volume_options, option_count);
ASHLAR_LEAST_SIZE(ashlar_sequence_info, computed_tokens);

#undef ASHLAR_LEAST_SIZE

}  // namespace ashlar::c_interface
