/* Managers and lists of blocks. */
#include "tests/c/walk.h"

#define BLOCK_SIZE 4
#define TOKENS 16

struct seen_events {
  size_t stored;
  size_t removed;
  ashlar_manager manager;
};

/* Calls back into the library, as a callback may. */
static void count_events(void* user, const ashlar_event* events, size_t count) {
  struct seen_events* seen = user;
  ashlar_pool_status status = ASHLAR_POOL_STATUS_INIT;
  size_t delivered = 1;
  size_t i;
  for (i = 0; i < count; ++i) {
    if (events[i].kind == ASHLAR_EVENT_STORED) ++seen->stored;
    if (events[i].kind == ASHLAR_EVENT_REMOVED) ++seen->removed;
    TRUE(events[i].tier == ASHLAR_TIER_G1);
  }
  OK(ashlar_manager_status(seen->manager, &status));
  OK(ashlar_manager_drain_events(seen->manager, count_events, user, &delivered));
  TRUE(delivered == 0);
}

static ashlar_pool_status status_of(ashlar_manager manager) {
  ashlar_pool_status status = ASHLAR_POOL_STATUS_INIT;
  OK(ashlar_manager_status(manager, &status));
  return status;
}

/* empty -> complete -> registered, by tokens and by hashes; refusals leave the list as it was. */
static void walk_transitions(ashlar_manager manager, ashlar_hasher hasher, const uint32_t* tokens) {
  ashlar_block_hashes hashes[TOKENS / BLOCK_SIZE];
  ashlar_hash names[TOKENS / BLOCK_SIZE];
  ashlar_register_options options = ASHLAR_REGISTER_OPTIONS_INIT;
  ashlar_blocks empty, complete, registered, shared, head, tail, found;
  ashlar_fence fences[2];
  ashlar_pin pin;
  uint32_t ids[4];
  uint8_t present[4];
  size_t count = 0, evicted = 0;
  int32_t state = -1;
  int active = 0;
  int i;

  OK(ashlar_manager_allocate(manager, 2, &empty));
  OK(ashlar_blocks_info(empty, &count, &state));
  TRUE(count == 2 && state == ASHLAR_BLOCKS_EMPTY);
  EXPECT(ASHLAR_NOT_READY, ashlar_blocks_register(empty, NULL, &registered));
  EXPECT(ASHLAR_NOT_READY, ashlar_blocks_hashes(empty, names, 4, &count));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_blocks_complete(empty, hasher, tokens, 7, 0, &complete));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_blocks_complete(empty, hasher, tokens, 8, 1, &complete));
  OK(ashlar_blocks_complete(empty, hasher, tokens, 8, 0, &complete));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_blocks_info(empty, &count, &state));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_blocks_release(empty));
  OK(ashlar_blocks_reset(complete, &empty));
  OK(ashlar_blocks_complete_with_runs(empty, hasher, tokens, 8, NULL, 0, 0, &complete));

  OK(ashlar_fence_create(&fences[0]));
  OK(ashlar_fence_create(&fences[1]));
  options.after = fences;
  options.after_count = 2;
  options.set_priority = 1;
  options.priority = 101;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_blocks_register(complete, &options, &registered));
  options.priority = 60;
  OK(ashlar_blocks_register(complete, &options, &registered));
  OK(ashlar_fence_signal(fences[0]));
  OK(ashlar_fence_signal(fences[1]));
  OK(ashlar_blocks_ids(registered, ids, 4, &count));
  TRUE(count == 2 && ids[0] != ids[1]);
  EXPECT(ASHLAR_CAPACITY, ashlar_blocks_ids(registered, ids, 1, &count));
  OK(ashlar_blocks_hashes(registered, names, 4, &count));
  TRUE(count == 2);

  /* The next two by their hashes. */
  OK(ashlar_hash_blocks(hasher, NULL, tokens, TOKENS, BLOCK_SIZE, hashes, 4, &count));
  TRUE(memcmp(&names[1], &hashes[1].sequence, sizeof names[1]) == 0);
  OK(ashlar_manager_allocate_within(manager, 2, 0, &empty));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_blocks_stage(empty, hashes, 1, NULL, NULL, &complete));
  OK(ashlar_blocks_stage(empty, &hashes[2], 2, &hashes[1].sequence, &hashes[0].sequence, &complete));
  OK(ashlar_blocks_register(complete, NULL, &tail));
  for (i = 0; i < 4; ++i) names[i] = hashes[i].sequence;
  OK(ashlar_manager_presence(manager, names, 4, present));
  TRUE(present[0] && present[1] && present[2] && present[3]);
  OK(ashlar_manager_match(manager, names, NULL, 4, &found));
  OK(ashlar_blocks_info(found, &count, &state));
  TRUE(count == 4 && state == ASHLAR_BLOCKS_REGISTERED);
  OK(ashlar_blocks_share(found, &shared));
  OK(ashlar_blocks_release(found));
  OK(ashlar_blocks_split(shared, 1, &head, &found));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_blocks_release(shared));
  OK(ashlar_blocks_info(found, &count, NULL));
  TRUE(count == 3);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_blocks_split(found, 4, &head, &shared));

  /* The manager cannot go while lists are open. */
  TRUE(status_of(manager).guards == 4);
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  TRUE(strstr(ashlar_last_error(), "4 lists") != NULL);

  OK(ashlar_blocks_set_retention(found, 80, ASHLAR_FOREVER));
  OK(ashlar_blocks_pin(found, 1000000000000u, &pin));
  OK(ashlar_pin_active(pin, &active));
  TRUE(active == 1);
  OK(ashlar_blocks_release(found));
  OK(ashlar_blocks_release(head));
  OK(ashlar_blocks_release(tail));
  TRUE(status_of(manager).pinned_inactive == 2);
  OK(ashlar_pin_release(pin));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_pin_active(pin, &active));
  OK(ashlar_manager_pin(manager, &names[2], 1000000000000u, &pin));
  OK(ashlar_pin_release(pin));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_pin(manager, &names[2], 0, &pin));
  OK(ashlar_manager_set_retention(manager, &names[2], 10, 1000));
  OK(ashlar_manager_eviction_candidates(manager, names, 4, &count));
  TRUE(count == 2);

  /* A reference that work in flight still needs. */
  OK(ashlar_blocks_release_after(registered, fences[0]));
  TRUE(status_of(manager).guards == 0);
  OK(ashlar_manager_match_tokens(manager, hasher, tokens, TOKENS, &found));
  OK(ashlar_blocks_info(found, &count, NULL));
  TRUE(count == 4);
  OK(ashlar_fence_destroy(fences[0]));
  OK(ashlar_fence_create(&fences[0]));
  OK(ashlar_blocks_release_after(found, fences[0]));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_blocks_release(found));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  TRUE(status_of(manager).active == 4);
  OK(ashlar_fence_signal(fences[0]));
  TRUE(status_of(manager).active == 0 && status_of(manager).inactive == 4);
  OK(ashlar_manager_reset(manager, &evicted));
  TRUE(evicted == 4);
  OK(ashlar_fence_destroy(fences[0]));
  OK(ashlar_fence_destroy(fences[1]));
}

void walk_blocks(void) {
  ashlar_registry_options registry_options = ASHLAR_REGISTRY_OPTIONS_INIT;
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_manager_counters counters = ASHLAR_MANAGER_COUNTERS_INIT;
  struct seen_events seen = {0, 0, {0}};
  ashlar_registry registry;
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_blocks blocks;
  uint32_t tokens[TOKENS];
  size_t count = 9;
  int i;
  for (i = 0; i < TOKENS; ++i) tokens[i] = (uint32_t)(i * i);

  OK(ashlar_hasher_create(NULL, &hasher));
  registry_options.frequency_capacity = 1024;
  OK(ashlar_registry_create(&registry_options, &registry));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_create(NULL, &manager));
  options.block_count = 8;
  options.block_size = BLOCK_SIZE;
  options.event_capacity = 64;
  options.max_pins = 8;
  options.registry = registry;
  options.eviction = "no such order";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_manager_create(&options, &manager));
  options.eviction = "multi_lru";
  options.duplicates = 7;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_create(&options, &manager));
  options.duplicates = ASHLAR_DUPLICATES_REJECT;
  OK(ashlar_manager_create(&options, &manager));

  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_allocate(manager, 9, &blocks));
  OK(ashlar_manager_can_allocate(manager, 8));
  OK(ashlar_manager_allocate(manager, 8, &blocks));
  EXPECT(ASHLAR_CAPACITY, ashlar_manager_can_allocate(manager, 1));
  OK(ashlar_blocks_release(blocks));
  walk_transitions(manager, hasher, tokens);
  OK(ashlar_registry_count(registry, &count));
  TRUE(count == 0);
  seen.manager = manager;
  OK(ashlar_manager_drain_events(manager, count_events, &seen, &count));
  TRUE(seen.stored == 4 && seen.removed == 4 && count == 8);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_drain_events(manager, NULL, NULL, NULL));
  OK(ashlar_manager_get_counters(manager, &counters));
  TRUE(counters.allocations == 12 && counters.registrations == 4);

  /* Blocks that are not cached once they are released. */
  OK(ashlar_manager_allocate(manager, 1, &blocks));
  OK(ashlar_blocks_complete(blocks, hasher, tokens, TOKENS, 0, &blocks));
  OK(ashlar_blocks_register(blocks, NULL, &blocks));
  OK(ashlar_blocks_set_reset_on_release(blocks, 1));
  OK(ashlar_blocks_release(blocks));
  TRUE(status_of(manager).reset == 8);

  OK(ashlar_manager_destroy(manager));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_manager_destroy(manager));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_manager_allocate(manager, 1, &blocks));
  OK(ashlar_registry_destroy(registry));
  OK(ashlar_hasher_destroy(hasher));
}
