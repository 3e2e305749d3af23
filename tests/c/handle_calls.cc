#include "tests/c/handle_calls.h"

#include <gtest/gtest.h>

namespace ashlar::testing {
namespace {

thread_local CallOutputs outputs;
constexpr std::uint32_t kSomeTokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
constexpr ashlar_worker kSomeWorker = {1, 0, 0};
constexpr ashlar_stored_block kSomeBlock = {1, 1};

template <class T>
T sized() {
  T value = {};
  value.struct_size = sizeof(T);
  return value;
}

void ignore_events(void*, const ashlar_event*, std::size_t) {}

// The call with a fence that has passed.
template <class F>
ashlar_status with_fence(F&& run) {
  ashlar_fence fence = {};
  EXPECT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
  EXPECT_EQ(ashlar_fence_signal(fence), ASHLAR_OK);
  const ashlar_status status = run(fence);
  EXPECT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);
  return status;
}

}  // namespace

#define CALL(kind, name, ...)                                                 \
  HandleCall {                                                                \
    HandleOf::kind, #name, [](std::uint64_t id) { return name(__VA_ARGS__); } \
  }
#define CALL_AFTER(kind, name)                                                                              \
  HandleCall {                                                                                              \
    HandleOf::kind, #name,                                                                                  \
        [](std::uint64_t id) { return with_fence([id](ashlar_fence fence) { return name({id}, fence); }); } \
  }
#define OUT (&outputs)

std::vector<HandleCall> handle_calls() {
  static ashlar_blocks blocks, more_blocks;
  static ashlar_pin pin;
  static ashlar_request request;
  static ashlar_sequences sequences;
  static ashlar_sequence sequence;
  static ashlar_hasher hasher;
  static ashlar_manager manager;
  static ashlar_offload offload;
  static ashlar_onboard onboard;
  static ashlar_feed feed;
  static ashlar_answer answer;
  static auto pool_status = sized<ashlar_pool_status>();
  static auto counters = sized<ashlar_manager_counters>();
  static auto info = sized<ashlar_request_info>();
  static auto progress = sized<ashlar_offload_progress>();
  static auto tier_status = sized<ashlar_tier_status>();
  static auto sizes = sized<ashlar_index_sizes>();
  static auto sequence_info = sized<ashlar_sequence_info>();
  static auto volume = sized<ashlar_volume_options>();
  volume.name = volume.kind = volume.location = "volume";
  static ashlar_block_copy copies[4];
  static ashlar_match matches[4];
  static ashlar_route_score scores[4];
  return {
      CALL(kHasher, ashlar_hasher_destroy, {id}),
      CALL(kHasher, ashlar_hasher_fingerprint, {id}, OUT->wide),
      CALL(kHasher, ashlar_hash_blocks, {id}, nullptr, kSomeTokens, 8, 4, OUT->block_hashes, 64, &OUT->count),
      CALL(kHasher, ashlar_hash_blocks_with_runs, {id}, nullptr, kSomeTokens, 8, 4, nullptr, 0,
           OUT->block_hashes, 64, &OUT->count),
      CALL(kRegistry, ashlar_registry_destroy, {id}),
      CALL(kRegistry, ashlar_registry_count, {id}, &OUT->count),
      CALL(kManager, ashlar_manager_destroy, {id}),
      CALL(kManager, ashlar_manager_status, {id}, &pool_status),
      CALL(kManager, ashlar_manager_get_counters, {id}, &counters),
      CALL(kManager, ashlar_manager_allocate, {id}, 1, &blocks),
      CALL(kManager, ashlar_manager_allocate_within, {id}, 1, 0, &blocks),
      CALL(kManager, ashlar_manager_can_allocate, {id}, 1),
      CALL(kManager, ashlar_manager_match, {id}, OUT->hashes, nullptr, 2, &blocks),
      CALL(kManager, ashlar_manager_match_tokens, {id}, {0}, kSomeTokens, 8, &blocks),
      CALL(kManager, ashlar_manager_presence, {id}, OUT->hashes, 2, OUT->bytes),
      CALL(kManager, ashlar_manager_pin, {id}, OUT->hashes, 1000, &pin),
      CALL(kManager, ashlar_manager_set_retention, {id}, OUT->hashes, 50, 1000),
      CALL(kManager, ashlar_manager_reset, {id}, &OUT->count),
      CALL(kManager, ashlar_manager_eviction_candidates, {id}, OUT->hashes, 4, &OUT->count),
      CALL(kManager, ashlar_manager_drain_events, {id}, ignore_events, nullptr, &OUT->count),
      CALL(kManager, ashlar_manager_list_stored, {id}, ignore_events, nullptr, OUT->wide),
      CALL(kManager, ashlar_manager_tokens_of, {id}, OUT->hashes, OUT->numbers, 64, &OUT->count),
      CALL(kManager, ashlar_request_create, {id}, kSomeTokens, 8, nullptr, &request),
      CALL(kManager, ashlar_sequences_create, {id}, nullptr, &sequences),
      CALL(kSequences, ashlar_sequence_create, {id}, kSomeTokens, 8, &sequence),
      CALL(kSequences, ashlar_sequences_destroy, {id}),
      CALL(kSequence, ashlar_sequence_destroy, {id}),
      CALL(kSequence, ashlar_sequence_can_allocate, {id}),
      CALL(kSequence, ashlar_sequence_allocate, {id}, &OUT->count),
      CALL(kSequence, ashlar_sequence_begin_allocate, {id}, &OUT->count, &OUT->flag),
      CALL(kSequence, ashlar_sequence_arrived, {id}, &OUT->flag),
      CALL(kSequence, ashlar_sequence_wait_layer, {id}, 0, 0, OUT->numbers, 64, &OUT->count),
      CALL(kSequence, ashlar_sequence_finish_allocate, {id}, &OUT->count),
      CALL(kSequence, ashlar_sequence_deallocate, {id}),
      CALL(kSequence, ashlar_sequence_append, {id}, 1),
      CALL(kSequence, ashlar_sequence_can_append, {id}),
      CALL(kSequence, ashlar_sequence_may_append, {id}, &OUT->flag, &OUT->flag),
      CALL(kSequence, ashlar_sequence_computed, {id}, 1, nullptr, &OUT->count),
      CALL(kSequence, ashlar_sequence_get_info, {id}, &sequence_info),
      CALL(kSequence, ashlar_sequence_block_table, {id}, OUT->numbers, 64, &OUT->count),
      CALL(kSequence, ashlar_sequence_tokens, {id}, OUT->numbers, 64, &OUT->count),
      CALL(kSequence, ashlar_sequence_hashes, {id}, OUT->hashes, 64, &OUT->count),
      CALL(kPin, ashlar_pin_active, {id}, &OUT->flag),
      CALL(kPin, ashlar_pin_release, {id}),
      CALL(kFence, ashlar_fence_signal, {id}),
      CALL(kFence, ashlar_fence_fail, {id}),
      CALL(kFence, ashlar_fence_passed, {id}, &OUT->flag),
      CALL(kFence, ashlar_fence_destroy, {id}),
      CALL(kBlocks, ashlar_blocks_info, {id}, &OUT->count, &OUT->state),
      CALL(kBlocks, ashlar_blocks_ids, {id}, OUT->numbers, 64, &OUT->count),
      CALL(kBlocks, ashlar_blocks_hashes, {id}, OUT->hashes, 64, &OUT->count),
      CALL(kBlocks, ashlar_blocks_complete, {id}, {0}, kSomeTokens, 8, 0, &blocks),
      CALL(kBlocks, ashlar_blocks_complete_with_runs, {id}, {0}, kSomeTokens, 8, nullptr, 0, 0, &blocks),
      CALL(kBlocks, ashlar_blocks_stage, {id}, OUT->block_hashes, 1, nullptr, nullptr, &blocks),
      CALL(kBlocks, ashlar_blocks_reset, {id}, &blocks),
      CALL(kBlocks, ashlar_blocks_register, {id}, nullptr, &blocks),
      CALL(kBlocks, ashlar_blocks_share, {id}, &blocks),
      CALL(kBlocks, ashlar_blocks_split, {id}, 0, &blocks, &more_blocks),
      CALL(kBlocks, ashlar_blocks_set_retention, {id}, 50, 1000),
      CALL(kBlocks, ashlar_blocks_set_reset_on_release, {id}, 0),
      CALL(kBlocks, ashlar_blocks_pin, {id}, 1000, &pin),
      CALL(kBlocks, ashlar_blocks_release, {id}),
      CALL_AFTER(kBlocks, ashlar_blocks_release_after),
      CALL(kRequest, ashlar_request_destroy, {id}),
      CALL_AFTER(kRequest, ashlar_request_destroy_after),
      CALL_AFTER(kRequest, ashlar_request_set_written_after),
      CALL(kRequest, ashlar_request_release, {id}),
      CALL(kRequest, ashlar_request_get_info, {id}, &info),
      CALL(kRequest, ashlar_request_tokens, {id}, OUT->numbers, 64, &OUT->count),
      CALL(kRequest, ashlar_request_block_table, {id}, 0, OUT->numbers, 64, &OUT->count),
      CALL(kRequest, ashlar_request_hashes, {id}, OUT->hashes, 64, &OUT->count),
      CALL(kRequest, ashlar_request_match, {id}, &OUT->count),
      CALL(kRequest, ashlar_request_begin_match, {id}, &OUT->count, &OUT->flag),
      CALL(kRequest, ashlar_request_match_ready, {id}, &OUT->flag),
      CALL(kRequest, ashlar_request_wait_layer, {id}, 0, 0, OUT->numbers, 64, &OUT->count),
      CALL(kRequest, ashlar_request_finish_match, {id}, &OUT->count),
      CALL(kRequest, ashlar_request_schedule_prefill, {id}, 1, nullptr),
      CALL(kRequest, ashlar_request_apply_prefill, {id}, nullptr, nullptr),
      CALL(kRequest, ashlar_request_schedule_decode, {id}, nullptr),
      CALL(kRequest, ashlar_request_apply_decode, {id}, 1, nullptr),
      CALL(kRequest, ashlar_request_schedule_speculative, {id}, 1, nullptr),
      CALL(kRequest, ashlar_request_apply_speculative, {id}, kSomeTokens, 1, nullptr),
      CALL(kRequest, ashlar_request_copies, {id}, copies, 4, &OUT->count),
      CALL(kRequest, ashlar_request_revert, {id}),
      CALL(kRequest, ashlar_request_preempt, {id}),
      CALL(kRequest, ashlar_request_resume, {id}, &OUT->count),
      CALL(kRequest, ashlar_request_fork, {id}, nullptr, &request),
      CALL(kTiers, ashlar_tiers_destroy, {id}),
      CALL(kTiers, ashlar_tiers_manager, {id}, &manager),
      CALL(kTiers, ashlar_tiers_hasher, {id}, nullptr, &hasher),
      CALL(kTiers, ashlar_tiers_block_memory, {id}, 0, 0, 0, &OUT->address, OUT->wide),
      CALL(kTiers, ashlar_tiers_remote_address, {id}, OUT->text, 64, &OUT->count),
      CALL(kTiers, ashlar_tiers_register_volume, {id}, &volume),
      CALL(kTiers, ashlar_tiers_unregister_volume, {id}, "volume", 0, &OUT->count),
      CALL(kTiers, ashlar_tiers_offload, {id}, 1, OUT->hashes, 1, nullptr, &offload),
      CALL(kTiers, ashlar_tiers_drain, {id}, 0),
      CALL(kTiers, ashlar_tiers_onboard, {id}, OUT->hashes, 1, nullptr, &blocks),
      CALL(kTiers, ashlar_tiers_onboard_async, {id}, OUT->hashes, 1, nullptr, &onboard),
      CALL(kTiers, ashlar_tiers_prefetch, {id}, OUT->hashes, 1, nullptr, &onboard),
      CALL(kTiers, ashlar_tiers_presence, {id}, OUT->hashes, 2, OUT->bytes),
      CALL(kTiers, ashlar_tiers_pin, {id}, OUT->hashes, 1, 1000, &pin),
      CALL(kTiers, ashlar_tiers_set_retention, {id}, OUT->hashes, 1, 50, 1000, &OUT->count),
      CALL(kTiers, ashlar_tiers_reset, {id}, 0, 0, &OUT->count),
      CALL(kTiers, ashlar_tiers_reset_blocks, {id}, OUT->hashes, 1, 0),
      CALL(kTiers, ashlar_tiers_shutdown, {id}, 0),
      CALL(kTiers, ashlar_tiers_status, {id}, 0, &tier_status),
      CALL(kTiers, ashlar_tiers_drain_events, {id}, ignore_events, nullptr, &OUT->count),
      CALL(kTiers, ashlar_tiers_metrics, {id}, OUT->text, 64, &OUT->count),
      CALL(kTiers, ashlar_tiers_list_stored, {id}, 0, ignore_events, nullptr, OUT->wide),
      CALL(kOffload, ashlar_offload_get_progress, {id}, &progress),
      CALL(kOffload, ashlar_offload_wait, {id}, 0, &progress),
      CALL(kOffload, ashlar_offload_cancel, {id}),
      CALL(kOffload, ashlar_offload_destroy, {id}),
      CALL(kOnboard, ashlar_onboard_done, {id}, &OUT->flag),
      CALL(kOnboard, ashlar_onboard_wait, {id}, 0, &blocks),
      CALL(kOnboard, ashlar_onboard_wait_layer, {id}, 0, 0, OUT->numbers, 64, &OUT->count),
      CALL(kOnboard, ashlar_onboard_cancel, {id}),
      CALL(kOnboard, ashlar_onboard_destroy, {id}),
      CALL(kIndex, ashlar_index_destroy, {id}),
      CALL(kIndex, ashlar_index_store, {id}, &kSomeWorker, 0, nullptr, &kSomeBlock, 1),
      CALL(kIndex, ashlar_index_remove, {id}, &kSomeWorker, 0, OUT->wide, 1, &OUT->count),
      CALL(kIndex, ashlar_index_clear, {id}, &kSomeWorker),
      CALL(kIndex, ashlar_index_remove_worker, {id}, 1),
      CALL(kIndex, ashlar_index_settle, {id}),
      CALL(kIndex, ashlar_index_find, {id}, OUT->wide, 2, matches, 4, &OUT->count),
      CALL(kIndex, ashlar_index_get_sizes, {id}, &sizes),
      CALL(kIndex, ashlar_feed_create, {id}, nullptr, &feed),
      CALL(kFeed, ashlar_feed_destroy, {id}),
      CALL(kFeed, ashlar_feed_apply_message, {id}, OUT->text, 1, &OUT->count),
      CALL(kFeed, ashlar_feed_apply_events, {id}, 0, nullptr, 0),
      CALL(kFeed, ashlar_feed_resync, {id}),
      CALL(kClient, ashlar_client_destroy, {id}),
      CALL(kClient, ashlar_client_health, {id}),
      CALL(kClient, ashlar_client_ready, {id}, &OUT->flag),
      CALL(kClient, ashlar_client_route, {id}, nullptr, kSomeTokens, 8, scores, 4, &OUT->count),
      CALL(kClient, ashlar_client_workers, {id}, nullptr, &answer),
      CALL(kClient, ashlar_client_explain, {id}, "1", &answer),
      CALL(kClient, ashlar_client_request, {id}, "GET", "/", nullptr, 0, &answer),
      CALL(kAnswer, ashlar_answer_info, {id}, &OUT->state, &OUT->count),
      CALL(kAnswer, ashlar_answer_body, {id}, OUT->text, 64, &OUT->count),
      CALL(kAnswer, ashlar_answer_destroy, {id}),
  };
}

}  // namespace ashlar::testing
