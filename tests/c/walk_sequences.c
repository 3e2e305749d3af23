/* Sequences: all blocks at once, then token by token. */
#include "tests/c/walk.h"

#define PROMPT 10

static ashlar_sequence_info info_of(ashlar_sequence sequence) {
  ashlar_sequence_info info = ASHLAR_SEQUENCE_INFO_INIT;
  OK(ashlar_sequence_get_info(sequence, &info));
  return info;
}

/* The first sequence computes; its full blocks are found by others, at the fence if there is one. */
static void walk_first(ashlar_sequence sequence, ashlar_fence fence) {
  uint32_t table[8], tokens[16];
  ashlar_hash names[4];
  size_t cached = 9, registered = 0, count = 0;
  int new_block = 9, block_full = 9;
  EXPECT(ASHLAR_NOT_READY, ashlar_sequence_may_append(sequence, NULL, NULL));
  EXPECT(ASHLAR_NOT_READY, ashlar_sequence_deallocate(sequence));
  OK(ashlar_sequence_can_allocate(sequence));
  OK(ashlar_sequence_allocate(sequence, &cached));
  TRUE(cached == 0);
  EXPECT(ASHLAR_NOT_READY, ashlar_sequence_allocate(sequence, &cached));
  OK(ashlar_sequence_computed(sequence, 4, &fence, &registered));
  TRUE(registered == 1);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_sequence_computed(sequence, 99, NULL, &registered));
  OK(ashlar_fence_signal(fence));
  OK(ashlar_sequence_computed(sequence, PROMPT, NULL, &registered));
  TRUE(registered == 1);
  OK(ashlar_sequence_append(sequence, 100));
  OK(ashlar_sequence_can_append(sequence));
  OK(ashlar_sequence_may_append(sequence, &new_block, &block_full));
  TRUE(new_block == 0 && block_full == 0);
  OK(ashlar_sequence_append(sequence, 101));
  OK(ashlar_sequence_may_append(sequence, &new_block, &block_full));
  TRUE(new_block == 0 && block_full == 1);
  OK(ashlar_sequence_append(sequence, 102));
  OK(ashlar_sequence_may_append(sequence, &new_block, &block_full));
  TRUE(new_block == 1 && block_full == 0);
  OK(ashlar_sequence_block_table(sequence, table, 8, &count));
  TRUE(count == 4);
  EXPECT(ASHLAR_CAPACITY, ashlar_sequence_block_table(sequence, table, 3, &count));
  OK(ashlar_sequence_tokens(sequence, tokens, 16, &count));
  TRUE(count == PROMPT + 3 && tokens[PROMPT + 2] == 102);
  OK(ashlar_sequence_hashes(sequence, names, 4, &count));
  TRUE(count == 3);
  TRUE(info_of(sequence).computed_tokens == PROMPT && info_of(sequence).block_count == 4);
}

void walk_sequences(void) {
  ashlar_manager_options pool = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_sequences_options options = ASHLAR_SEQUENCES_OPTIONS_INIT;
  ashlar_pool_status status = ASHLAR_POOL_STATUS_INIT;
  ashlar_manager manager;
  ashlar_sequences sequences;
  ashlar_sequence first, second, large;
  ashlar_fence fence;
  uint32_t prompt[40];
  size_t cached = 0;
  unsigned i;
  for (i = 0; i < 40; ++i) prompt[i] = i * 5;
  pool.block_count = 8;
  pool.block_size = 4;
  OK(ashlar_manager_create(&pool, &manager));
  OK(ashlar_fence_create(&fence));
  options.set_priority = 1;
  options.priority = 200;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_sequences_create(manager, &options, &sequences));
  options.priority = 80;
  options.compute_tokens_per_second = -1;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_sequences_create(manager, &options, &sequences));
  options.compute_tokens_per_second = 0;
  OK(ashlar_sequences_create(manager, &options, &sequences));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  OK(ashlar_sequence_create(sequences, prompt, PROMPT, &first));
  walk_first(first, fence);

  OK(ashlar_sequence_create(sequences, prompt, PROMPT, &second));
  OK(ashlar_sequence_create(sequences, prompt, 40, &large));
  OK(ashlar_sequences_destroy(sequences)); /* its sequences go on */
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_sequences_destroy(sequences));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_sequence_create(sequences, prompt, PROMPT, &second));
  OK(ashlar_sequence_allocate(second, &cached));
  TRUE(cached == 8 && info_of(second).cached_tokens == 8);
  EXPECT(ASHLAR_CAPACITY, ashlar_sequence_allocate(large, &cached));
  OK(ashlar_sequence_deallocate(second));
  OK(ashlar_sequence_destroy(second));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_sequence_destroy(second));
  OK(ashlar_sequence_destroy(large));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  OK(ashlar_sequence_destroy(first));
  OK(ashlar_manager_status(manager, &status));
  TRUE(status.guards == 0 && status.active == 0);
  OK(ashlar_fence_destroy(fence));
  OK(ashlar_manager_destroy(manager));
}
