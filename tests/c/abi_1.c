/* ABI 1: where every field lies and what every constant is, on machines of 64 bits. A line that no longer
 * holds breaks programs that were compiled before. New fields at the end of a growing struct, and new
 * constants, get new lines: tools/c_reference.py --check says which are missing. */
#include <stddef.h>

#include "ashlar_c.h"

/* C99 has no static assertions: an array of negative size. */
#define JOIN(a, b) a##b
#define NAMED(a, b) JOIN(a, b)
#define HOLDS(condition) typedef char NAMED(holds_, __LINE__)[(condition) ? 1 : -1]
#define FIELD(type, field, offset, size) \
  HOLDS(offsetof(type, field) == (offset) && sizeof(((type*)0)->field) == (size))
/* Of structs that do not grow. */
#define SIZE(type, size) HOLDS(sizeof(type) == (size))
#define CONSTANT(name, value) HOLDS((name) == (value))

CONSTANT(ASHLAR_C_ABI_VERSION, 1);
CONSTANT(ASHLAR_FOREVER, UINT64_MAX);
CONSTANT(ASHLAR_OK, 0);
CONSTANT(ASHLAR_INVALID_ARGUMENT, 1);
CONSTANT(ASHLAR_NOT_FOUND, 2);
CONSTANT(ASHLAR_ALREADY_EXISTS, 3);
CONSTANT(ASHLAR_CAPACITY, 4);
CONSTANT(ASHLAR_NOT_READY, 5);
CONSTANT(ASHLAR_TIMEOUT, 6);
CONSTANT(ASHLAR_CANCELLED, 7);
CONSTANT(ASHLAR_CORRUPTION, 8);
CONSTANT(ASHLAR_IO, 9);
CONSTANT(ASHLAR_UNAVAILABLE, 10);
CONSTANT(ASHLAR_UNSUPPORTED, 11);
CONSTANT(ASHLAR_INTERNAL, 12);
CONSTANT(ASHLAR_INVALID_HANDLE, 13);
CONSTANT(ASHLAR_DUPLICATES_ALLOW, 0);
CONSTANT(ASHLAR_DUPLICATES_REJECT, 1);
CONSTANT(ASHLAR_BLOCKS_EMPTY, 0);
CONSTANT(ASHLAR_BLOCKS_COMPLETE, 1);
CONSTANT(ASHLAR_BLOCKS_REGISTERED, 2);
CONSTANT(ASHLAR_EVENT_STORED, 0);
CONSTANT(ASHLAR_EVENT_REMOVED, 1);
CONSTANT(ASHLAR_EVENT_RESYNC, 2);
CONSTANT(ASHLAR_EVENT_ACCESS, 3);
CONSTANT(ASHLAR_EVENT_CLEARED, 4);
CONSTANT(ASHLAR_TIER_G1, 0);
CONSTANT(ASHLAR_TIER_G2, 1);
CONSTANT(ASHLAR_TIER_G3, 2);
CONSTANT(ASHLAR_TIER_G4, 3);
CONSTANT(ASHLAR_TIER_REMOTE, 4);
CONSTANT(ASHLAR_REQUEST_IDLE, 0);
CONSTANT(ASHLAR_REQUEST_PREFILL_SCHEDULED, 1);
CONSTANT(ASHLAR_REQUEST_DECODE_SCHEDULED, 2);
CONSTANT(ASHLAR_REQUEST_SPECULATIVE_SCHEDULED, 3);
CONSTANT(ASHLAR_REQUEST_ONBOARDING, 4);
CONSTANT(ASHLAR_REQUEST_PREEMPTED, 5);
CONSTANT(ASHLAR_REQUEST_RELEASED, 6);
CONSTANT(ASHLAR_DTYPE_U8, 0);
CONSTANT(ASHLAR_DTYPE_F8_E4M3, 1);
CONSTANT(ASHLAR_DTYPE_F8_E5M2, 2);
CONSTANT(ASHLAR_DTYPE_F16, 3);
CONSTANT(ASHLAR_DTYPE_BF16, 4);
CONSTANT(ASHLAR_DTYPE_F32, 5);
CONSTANT(ASHLAR_DTYPE_F64, 6);
CONSTANT(ASHLAR_TRIGGER_ON_ARRIVAL, 0);
CONSTANT(ASHLAR_TRIGGER_NEAR_EVICTION, 1);
CONSTANT(ASHLAR_TRIGGER_ON_CALL, 2);
CONSTANT(ASHLAR_MEMORY_SYSTEM, 0);
CONSTANT(ASHLAR_MEMORY_PINNED, 1);
CONSTANT(ASHLAR_MEMORY_DEVICE, 2);

SIZE(ashlar_hasher, 8);
FIELD(ashlar_hasher, id, 0, 8);

SIZE(ashlar_registry, 8);
FIELD(ashlar_registry, id, 0, 8);

SIZE(ashlar_manager, 8);
FIELD(ashlar_manager, id, 0, 8);

SIZE(ashlar_blocks, 8);
FIELD(ashlar_blocks, id, 0, 8);

SIZE(ashlar_pin, 8);
FIELD(ashlar_pin, id, 0, 8);

SIZE(ashlar_fence, 8);
FIELD(ashlar_fence, id, 0, 8);

SIZE(ashlar_hash, 16);
FIELD(ashlar_hash, hi, 0, 8);
FIELD(ashlar_hash, lo, 8, 8);

SIZE(ashlar_digest, 16);
FIELD(ashlar_digest, hi, 0, 8);
FIELD(ashlar_digest, lo, 8, 8);

SIZE(ashlar_block_hashes, 40);
FIELD(ashlar_block_hashes, local, 0, 8);
FIELD(ashlar_block_hashes, sequence, 8, 16);
FIELD(ashlar_block_hashes, prefix, 24, 16);

FIELD(ashlar_hasher_options, struct_size, 0, 4);
FIELD(ashlar_hasher_options, key_size, 4, 4);
FIELD(ashlar_hasher_options, scheme, 8, 8);
FIELD(ashlar_hasher_options, key, 16, 8);
FIELD(ashlar_hasher_options, lora, 24, 8);
FIELD(ashlar_hasher_options, tenant, 32, 8);

SIZE(ashlar_multimodal_run, 24);
FIELD(ashlar_multimodal_run, mm_hash, 0, 8);
FIELD(ashlar_multimodal_run, offset, 8, 8);
FIELD(ashlar_multimodal_run, length, 16, 4);
FIELD(ashlar_multimodal_run, reserved, 20, 4);

FIELD(ashlar_registry_options, struct_size, 0, 4);
FIELD(ashlar_registry_options, reserved, 4, 4);
FIELD(ashlar_registry_options, frequency_capacity, 8, 8);

FIELD(ashlar_manager_options, struct_size, 0, 4);
FIELD(ashlar_manager_options, block_count, 4, 4);
FIELD(ashlar_manager_options, block_size, 8, 4);
FIELD(ashlar_manager_options, duplicates, 12, 4);
FIELD(ashlar_manager_options, eviction, 16, 8);
FIELD(ashlar_manager_options, registry, 24, 8);
FIELD(ashlar_manager_options, max_pins, 32, 8);
FIELD(ashlar_manager_options, event_capacity, 40, 8);
FIELD(ashlar_manager_options, block_bytes, 48, 4);
FIELD(ashlar_manager_options, keep_tokens, 52, 4);
FIELD(ashlar_manager_options, reset_on_release, 56, 4);
FIELD(ashlar_manager_options, reserved, 60, 4);

FIELD(ashlar_pool_status, struct_size, 0, 4);
FIELD(ashlar_pool_status, block_size, 4, 4);
FIELD(ashlar_pool_status, total, 8, 8);
FIELD(ashlar_pool_status, reset, 16, 8);
FIELD(ashlar_pool_status, inactive, 24, 8);
FIELD(ashlar_pool_status, pinned_inactive, 32, 8);
FIELD(ashlar_pool_status, held_inactive, 40, 8);
FIELD(ashlar_pool_status, active, 48, 8);
FIELD(ashlar_pool_status, owned, 56, 8);
FIELD(ashlar_pool_status, quarantined, 64, 8);
FIELD(ashlar_pool_status, waiters, 72, 8);
FIELD(ashlar_pool_status, guards, 80, 8);

FIELD(ashlar_manager_counters, struct_size, 0, 4);
FIELD(ashlar_manager_counters, reserved, 4, 4);
FIELD(ashlar_manager_counters, allocations, 8, 8);
FIELD(ashlar_manager_counters, evictions, 16, 8);
FIELD(ashlar_manager_counters, registrations, 24, 8);
FIELD(ashlar_manager_counters, duplicates, 32, 8);
FIELD(ashlar_manager_counters, collisions, 40, 8);
FIELD(ashlar_manager_counters, match_hashes_requested, 48, 8);
FIELD(ashlar_manager_counters, match_blocks_returned, 56, 8);

FIELD(ashlar_register_options, struct_size, 0, 4);
FIELD(ashlar_register_options, set_priority, 4, 1);
FIELD(ashlar_register_options, priority, 5, 1);
FIELD(ashlar_register_options, reserved, 6, 2);
FIELD(ashlar_register_options, ttl_ns, 8, 8);
FIELD(ashlar_register_options, after, 16, 8);
FIELD(ashlar_register_options, after_count, 24, 8);
FIELD(ashlar_register_options, metadata, 32, 4);
FIELD(ashlar_register_options, reserved2, 36, 4);

SIZE(ashlar_event, 96);
FIELD(ashlar_event, hash, 0, 16);
FIELD(ashlar_event, parent, 16, 16);
FIELD(ashlar_event, root, 32, 16);
FIELD(ashlar_event, sequence, 48, 8);
FIELD(ashlar_event, name, 56, 8);
FIELD(ashlar_event, local, 64, 8);
FIELD(ashlar_event, block, 72, 4);
FIELD(ashlar_event, bytes, 76, 4);
FIELD(ashlar_event, metadata, 80, 4);
FIELD(ashlar_event, location, 84, 2);
FIELD(ashlar_event, group, 86, 2);
FIELD(ashlar_event, kind, 88, 1);
FIELD(ashlar_event, tier, 89, 1);
FIELD(ashlar_event, has_parent, 90, 1);
FIELD(ashlar_event, has_root, 91, 1);
FIELD(ashlar_event, has_name, 92, 1);
FIELD(ashlar_event, has_local, 93, 1);
FIELD(ashlar_event, reserved, 94, 2);

SIZE(ashlar_request, 8);
FIELD(ashlar_request, id, 0, 8);

FIELD(ashlar_request_options, struct_size, 0, 4);
FIELD(ashlar_request_options, metadata, 4, 4);
FIELD(ashlar_request_options, hasher, 8, 8);
FIELD(ashlar_request_options, max_tokens, 16, 8);
FIELD(ashlar_request_options, reuse_last_token, 24, 4);
FIELD(ashlar_request_options, set_priority, 28, 1);
FIELD(ashlar_request_options, priority, 29, 1);
FIELD(ashlar_request_options, reserved, 30, 2);
FIELD(ashlar_request_options, priority_ns, 32, 8);
FIELD(ashlar_request_options, windows, 40, 8);
FIELD(ashlar_request_options, window_count, 48, 8);
FIELD(ashlar_request_options, onboard_max_blocks, 56, 8);
FIELD(ashlar_request_options, onboard_ns, 64, 8);
FIELD(ashlar_request_options, compute_tokens_per_second, 72, 8);
FIELD(ashlar_request_options, onboard_by_layer, 80, 4);
FIELD(ashlar_request_options, reserved2, 84, 4);
FIELD(ashlar_request_options, runs, 88, 8);
FIELD(ashlar_request_options, run_count, 96, 8);

FIELD(ashlar_request_info, struct_size, 0, 4);
FIELD(ashlar_request_info, state, 4, 4);
FIELD(ashlar_request_info, tokens, 8, 8);
FIELD(ashlar_request_info, prompt_tokens, 16, 8);
FIELD(ashlar_request_info, computed_tokens, 24, 8);
FIELD(ashlar_request_info, cached_tokens, 32, 8);
FIELD(ashlar_request_info, group_count, 40, 8);
FIELD(ashlar_request_info, tokens_left, 48, 8);

SIZE(ashlar_step, 16);
FIELD(ashlar_step, new_blocks, 0, 8);
FIELD(ashlar_step, copies, 8, 8);

SIZE(ashlar_step_outcome, 24);
FIELD(ashlar_step_outcome, registered, 0, 8);
FIELD(ashlar_step_outcome, replaced, 8, 8);
FIELD(ashlar_step_outcome, at_limit, 16, 4);
FIELD(ashlar_step_outcome, reserved, 20, 4);

SIZE(ashlar_block_copy, 16);
FIELD(ashlar_block_copy, group, 0, 8);
FIELD(ashlar_block_copy, source, 8, 4);
FIELD(ashlar_block_copy, destination, 12, 4);

SIZE(ashlar_sequences, 8);
FIELD(ashlar_sequences, id, 0, 8);

SIZE(ashlar_sequence, 8);
FIELD(ashlar_sequence, id, 0, 8);

FIELD(ashlar_sequences_options, struct_size, 0, 4);
FIELD(ashlar_sequences_options, metadata, 4, 4);
FIELD(ashlar_sequences_options, hasher, 8, 8);
FIELD(ashlar_sequences_options, register_at_once, 16, 4);
FIELD(ashlar_sequences_options, reuse_last_token, 20, 4);
FIELD(ashlar_sequences_options, set_priority, 24, 1);
FIELD(ashlar_sequences_options, priority, 25, 1);
FIELD(ashlar_sequences_options, reserved, 26, 2);
FIELD(ashlar_sequences_options, reserved2, 28, 4);
FIELD(ashlar_sequences_options, priority_ns, 32, 8);
FIELD(ashlar_sequences_options, onboard_max_blocks, 40, 8);
FIELD(ashlar_sequences_options, onboard_ns, 48, 8);
FIELD(ashlar_sequences_options, compute_tokens_per_second, 56, 8);
FIELD(ashlar_sequences_options, onboard_by_layer, 64, 4);
FIELD(ashlar_sequences_options, reserved3, 68, 4);

FIELD(ashlar_sequence_info, struct_size, 0, 4);
FIELD(ashlar_sequence_info, reserved, 4, 4);
FIELD(ashlar_sequence_info, tokens, 8, 8);
FIELD(ashlar_sequence_info, block_count, 16, 8);
FIELD(ashlar_sequence_info, cached_tokens, 24, 8);
FIELD(ashlar_sequence_info, computed_tokens, 32, 8);

SIZE(ashlar_tiers, 8);
FIELD(ashlar_tiers, id, 0, 8);

SIZE(ashlar_offload, 8);
FIELD(ashlar_offload, id, 0, 8);

SIZE(ashlar_onboard, 8);
FIELD(ashlar_onboard, id, 0, 8);

SIZE(ashlar_region, 16);
FIELD(ashlar_region, address, 0, 8);
FIELD(ashlar_region, bytes, 8, 8);

FIELD(ashlar_tiers_options, struct_size, 0, 4);
FIELD(ashlar_tiers_options, num_layers, 4, 4);
FIELD(ashlar_tiers_options, num_heads, 8, 4);
FIELD(ashlar_tiers_options, head_dim, 12, 4);
FIELD(ashlar_tiers_options, outer_dim, 16, 4);
FIELD(ashlar_tiers_options, block_size, 20, 4);
FIELD(ashlar_tiers_options, dtype, 24, 4);
FIELD(ashlar_tiers_options, read_back, 28, 4);
FIELD(ashlar_tiers_options, model, 32, 8);
FIELD(ashlar_tiers_options, g1_blocks, 40, 4);
FIELD(ashlar_tiers_options, g1_memory_kind, 44, 4);
FIELD(ashlar_tiers_options, g1_eviction, 48, 8);
FIELD(ashlar_tiers_options, g1_order, 56, 8);
FIELD(ashlar_tiers_options, g1_regions, 64, 8);
FIELD(ashlar_tiers_options, g1_region_count, 72, 8);
FIELD(ashlar_tiers_options, g2_blocks, 80, 4);
FIELD(ashlar_tiers_options, to_g2, 84, 4);
FIELD(ashlar_tiers_options, g2_eviction, 88, 8);
FIELD(ashlar_tiers_options, g3_blocks, 96, 4);
FIELD(ashlar_tiers_options, to_g3, 100, 4);
FIELD(ashlar_tiers_options, g3_eviction, 104, 8);
FIELD(ashlar_tiers_options, g3_paths, 112, 8);
FIELD(ashlar_tiers_options, g3_path_count, 120, 8);
FIELD(ashlar_tiers_options, g3_no_sync, 128, 4);
FIELD(ashlar_tiers_options, to_g4, 132, 4);
FIELD(ashlar_tiers_options, g4_blocks, 136, 4);
FIELD(ashlar_tiers_options, onboard_threads, 140, 4);
FIELD(ashlar_tiers_options, g4_directories, 144, 8);
FIELD(ashlar_tiers_options, g4_directory_count, 152, 8);
FIELD(ashlar_tiers_options, event_capacity, 160, 8);
FIELD(ashlar_tiers_options, max_pins, 168, 8);
FIELD(ashlar_tiers_options, g1_device, 176, 4);
FIELD(ashlar_tiers_options, remote_no_serve, 180, 4);
FIELD(ashlar_tiers_options, remote_listen, 184, 8);
FIELD(ashlar_tiers_options, remote_advertise, 192, 8);
FIELD(ashlar_tiers_options, remote_secret, 200, 8);
FIELD(ashlar_tiers_options, remote_name, 208, 8);
FIELD(ashlar_tiers_options, remote_peers, 216, 8);
FIELD(ashlar_tiers_options, remote_peer_count, 224, 8);
FIELD(ashlar_tiers_options, remote_blocks, 232, 4);
FIELD(ashlar_tiers_options, reserved, 236, 4);
FIELD(ashlar_tiers_options, remote_ucx, 240, 8);
FIELD(ashlar_tiers_options, rank, 248, 4);
FIELD(ashlar_tiers_options, ranks, 252, 4);
FIELD(ashlar_tiers_options, model_heads, 256, 4);
FIELD(ashlar_tiers_options, first_layer, 260, 4);
FIELD(ashlar_tiers_options, model_layers, 264, 4);
FIELD(ashlar_tiers_options, reserved2, 268, 4);
FIELD(ashlar_tiers_options, other_ranks, 272, 8);
FIELD(ashlar_tiers_options, other_rank_count, 280, 8);
FIELD(ashlar_tiers_options, hash_scheme, 288, 8);
FIELD(ashlar_tiers_options, hash_key, 296, 8);
FIELD(ashlar_tiers_options, prefix_key, 304, 8);
FIELD(ashlar_tiers_options, hash_key_size, 312, 4);
FIELD(ashlar_tiers_options, prefix_key_size, 316, 4);

FIELD(ashlar_volume_options, struct_size, 0, 4);
FIELD(ashlar_volume_options, read_only, 4, 4);
FIELD(ashlar_volume_options, name, 8, 8);
FIELD(ashlar_volume_options, kind, 16, 8);
FIELD(ashlar_volume_options, location, 24, 8);
FIELD(ashlar_volume_options, option_names, 32, 8);
FIELD(ashlar_volume_options, option_values, 40, 8);
FIELD(ashlar_volume_options, option_count, 48, 8);

FIELD(ashlar_offload_options, struct_size, 0, 4);
FIELD(ashlar_offload_options, set_priority, 4, 1);
FIELD(ashlar_offload_options, priority, 5, 1);
FIELD(ashlar_offload_options, reserved, 6, 2);
FIELD(ashlar_offload_options, after, 8, 8);
FIELD(ashlar_offload_options, after_count, 16, 8);
FIELD(ashlar_offload_options, deadline_ns, 24, 8);

FIELD(ashlar_offload_progress, struct_size, 0, 4);
FIELD(ashlar_offload_progress, done, 4, 4);
FIELD(ashlar_offload_progress, total, 8, 8);
FIELD(ashlar_offload_progress, arrived, 16, 8);
FIELD(ashlar_offload_progress, present, 24, 8);
FIELD(ashlar_offload_progress, filtered, 32, 8);
FIELD(ashlar_offload_progress, gone, 40, 8);
FIELD(ashlar_offload_progress, failed, 48, 8);
FIELD(ashlar_offload_progress, refused, 56, 8);
FIELD(ashlar_offload_progress, cancelled, 64, 8);
FIELD(ashlar_offload_progress, late, 72, 8);

FIELD(ashlar_onboard_options, struct_size, 0, 4);
FIELD(ashlar_onboard_options, reserved, 4, 4);
FIELD(ashlar_onboard_options, prefixes, 8, 8);
FIELD(ashlar_onboard_options, deadline_ns, 16, 8);
FIELD(ashlar_onboard_options, compute_tokens_per_second, 24, 8);
FIELD(ashlar_onboard_options, by_layer, 32, 4);
FIELD(ashlar_onboard_options, reserved2, 36, 4);

FIELD(ashlar_tier_status, struct_size, 0, 4);
FIELD(ashlar_tier_status, reserved, 4, 4);
FIELD(ashlar_tier_status, total, 8, 8);
FIELD(ashlar_tier_status, reset, 16, 8);
FIELD(ashlar_tier_status, inactive, 24, 8);
FIELD(ashlar_tier_status, active, 32, 8);
FIELD(ashlar_tier_status, hits, 40, 8);
FIELD(ashlar_tier_status, onboarded, 48, 8);
FIELD(ashlar_tier_status, evictions, 56, 8);
FIELD(ashlar_tier_status, damaged, 64, 8);
FIELD(ashlar_tier_status, failed, 72, 8);
FIELD(ashlar_tier_status, arrived, 80, 8);

SIZE(ashlar_index, 8);
FIELD(ashlar_index, id, 0, 8);

SIZE(ashlar_feed, 8);
FIELD(ashlar_feed, id, 0, 8);

FIELD(ashlar_index_options, struct_size, 0, 4);
FIELD(ashlar_index_options, jump_size, 4, 4);
FIELD(ashlar_index_options, kind, 8, 8);
FIELD(ashlar_index_options, threads, 16, 4);
FIELD(ashlar_index_options, forget_behind, 20, 4);
FIELD(ashlar_index_options, queue_capacity, 24, 8);

SIZE(ashlar_worker, 16);
FIELD(ashlar_worker, id, 0, 8);
FIELD(ashlar_worker, rank, 8, 4);
FIELD(ashlar_worker, reserved, 12, 4);

SIZE(ashlar_stored_block, 16);
FIELD(ashlar_stored_block, local, 0, 8);
FIELD(ashlar_stored_block, name, 8, 8);

SIZE(ashlar_match, 56);
FIELD(ashlar_match, worker, 0, 16);
FIELD(ashlar_match, depth, 16, 4);
FIELD(ashlar_match, device_depth, 20, 4);
FIELD(ashlar_match, tiers, 24, 32);

FIELD(ashlar_index_sizes, struct_size, 0, 4);
FIELD(ashlar_index_sizes, reserved, 4, 4);
FIELD(ashlar_index_sizes, workers, 8, 8);
FIELD(ashlar_index_sizes, blocks, 16, 8);
FIELD(ashlar_index_sizes, contents, 24, 8);
FIELD(ashlar_index_sizes, bytes, 32, 8);

FIELD(ashlar_feed_options, struct_size, 0, 4);
FIELD(ashlar_feed_options, block_size, 4, 4);
FIELD(ashlar_feed_options, worker, 8, 8);
FIELD(ashlar_feed_options, scheme, 16, 8);
FIELD(ashlar_feed_options, lora, 24, 8);
FIELD(ashlar_feed_options, tenant, 32, 8);

SIZE(ashlar_client, 8);
FIELD(ashlar_client, id, 0, 8);

SIZE(ashlar_answer, 8);
FIELD(ashlar_answer, id, 0, 8);

FIELD(ashlar_client_options, struct_size, 0, 4);
FIELD(ashlar_client_options, timeout_ms, 4, 4);
FIELD(ashlar_client_options, url, 8, 8);
FIELD(ashlar_client_options, token, 16, 8);
FIELD(ashlar_client_options, max_bytes, 24, 8);

FIELD(ashlar_route_query, struct_size, 0, 4);
FIELD(ashlar_route_query, reserved, 4, 4);
FIELD(ashlar_route_query, model, 8, 8);
FIELD(ashlar_route_query, routing_group, 16, 8);
FIELD(ashlar_route_query, lora, 24, 8);
FIELD(ashlar_route_query, tenant, 32, 8);

SIZE(ashlar_route_score, 40);
FIELD(ashlar_route_score, instance, 0, 8);
FIELD(ashlar_route_score, longest, 8, 8);
FIELD(ashlar_route_score, device, 16, 8);
FIELD(ashlar_route_score, host, 24, 8);
FIELD(ashlar_route_score, disk, 32, 8);
