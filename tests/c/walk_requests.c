/* Requests: prefill, decode, speculation, preemption, forks. */
#include "tests/c/walk.h"

#define PROMPT 10

static ashlar_request_info info_of(ashlar_request request) {
  ashlar_request_info info = ASHLAR_REQUEST_INFO_INIT;
  OK(ashlar_request_get_info(request, &info));
  return info;
}

/* The whole prompt in two chunks, then some tokens. */
static void walk_steps(ashlar_request request) {
  ashlar_step step = {99, 99};
  ashlar_step_outcome outcome = {99, 99, 99, 99};
  uint32_t accepted[3] = {101, 102, 103};
  uint32_t next = 100;
  uint32_t table[8];
  uint32_t tokens[32];
  ashlar_hash names[8];
  size_t count = 0;

  EXPECT(ASHLAR_NOT_READY, ashlar_request_apply_decode(request, 5, NULL));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_schedule_prefill(request, PROMPT + 1, &step));
  OK(ashlar_request_schedule_prefill(request, 6, &step));
  TRUE(step.new_blocks == 2 && step.copies == 0);
  TRUE(info_of(request).state == ASHLAR_REQUEST_PREFILL_SCHEDULED);
  OK(ashlar_request_revert(request));
  OK(ashlar_request_schedule_prefill(request, 6, &step));
  OK(ashlar_request_apply_prefill(request, NULL, &outcome));
  TRUE(outcome.registered == 1);
  OK(ashlar_request_schedule_prefill(request, 4, NULL));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_apply_prefill(request, NULL, &outcome));
  OK(ashlar_request_apply_prefill(request, &next, &outcome));
  TRUE(outcome.registered == 1 && outcome.at_limit == 0);
  OK(ashlar_request_schedule_decode(request, &step));
  OK(ashlar_request_apply_decode(request, 101, &outcome));
  OK(ashlar_request_schedule_speculative(request, 2, &step));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_apply_speculative(request, accepted, 4, &outcome));
  OK(ashlar_request_apply_speculative(request, accepted, 2, &outcome));
  OK(ashlar_request_block_table(request, 0, table, 8, &count));
  TRUE(count == 4);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_block_table(request, 1, table, 8, &count));
  OK(ashlar_request_tokens(request, tokens, 32, &count));
  TRUE(count == 14 && tokens[10] == 100 && tokens[13] == 102);
  OK(ashlar_request_hashes(request, names, 8, &count));
  TRUE(count == 3);
}

/* A fork shares the last block until one of the two writes to it. */
static void walk_fork(ashlar_request request) {
  ashlar_request forked;
  ashlar_block_copy copies[2];
  ashlar_step step;
  uint32_t last = 7;
  size_t count = 0;
  OK(ashlar_request_fork(request, &last, &forked));
  OK(ashlar_request_schedule_decode(forked, &step));
  TRUE(step.new_blocks == 1 && step.copies == 1);
  OK(ashlar_request_copies(forked, copies, 2, &count));
  TRUE(count == 1 && copies[0].source != copies[0].destination && copies[0].group == 0);
  OK(ashlar_request_apply_decode(forked, 8, NULL));
  OK(ashlar_request_destroy(forked));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_request_destroy(forked));
}

void walk_requests(void) {
  ashlar_manager_options pool = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_request_options options = ASHLAR_REQUEST_OPTIONS_INIT;
  ashlar_pool_status status = ASHLAR_POOL_STATUS_INIT;
  ashlar_manager manager;
  ashlar_request request, second;
  ashlar_fence fence;
  uint32_t prompt[PROMPT];
  const uint32_t windows[2] = {0, 4};
  size_t cached = 9;
  int pending = 9, ready = 9;
  int i;
  for (i = 0; i < PROMPT; ++i) prompt[i] = (uint32_t)i;

  pool.block_count = 16;
  pool.block_size = 4;
  OK(ashlar_manager_create(&pool, &manager));
  options.max_tokens = 20;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_create(manager, prompt, 0, &options, &request));
  OK(ashlar_request_create(manager, prompt, PROMPT, &options, &request));
  TRUE(info_of(request).tokens_left == 10 && info_of(request).group_count == 1);
  OK(ashlar_request_match(request, &cached));
  TRUE(cached == 0);
  walk_steps(request);
  walk_fork(request);

  /* Preempted, it starts again from what is cached. */
  OK(ashlar_request_preempt(request));
  TRUE(info_of(request).state == ASHLAR_REQUEST_PREEMPTED);
  OK(ashlar_request_resume(request, &cached));
  TRUE(cached == 12);

  /* A second request finds the prefix of the first. */
  options.set_priority = 1;
  options.priority = 50;
  options.priority_ns = 1000000;
  OK(ashlar_request_create(manager, prompt, PROMPT, &options, &second));
  OK(ashlar_request_begin_match(second, &cached, &pending));
  TRUE(cached == 8 && pending == 0);
  EXPECT(ASHLAR_NOT_READY, ashlar_request_match_ready(second, &ready));
  EXPECT(ASHLAR_NOT_READY, ashlar_request_finish_match(second, &cached));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  TRUE(info_of(second).cached_tokens == 8);
  OK(ashlar_request_release(second));
  TRUE(info_of(second).state == ASHLAR_REQUEST_RELEASED);
  OK(ashlar_request_destroy(second));

  /* Windows: blocks outside of them are none. */
  options.windows = windows;
  options.window_count = 2;
  OK(ashlar_request_create(manager, prompt, PROMPT, &options, &second));
  TRUE(info_of(second).group_count == 2);
  OK(ashlar_request_destroy(second));
  options.compute_tokens_per_second = -1;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_request_create(manager, prompt, PROMPT, &options, &second));

  /* A step in flight that is not waited for. */
  OK(ashlar_fence_create(&fence));
  OK(ashlar_request_set_written_after(request, fence));
  OK(ashlar_request_schedule_prefill(request, 1, NULL));
  OK(ashlar_request_destroy_after(request, fence));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_request_preempt(request));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_destroy(manager));
  OK(ashlar_fence_signal(fence));
  OK(ashlar_fence_destroy(fence));
  OK(ashlar_manager_status(manager, &status));
  TRUE(status.active == 0 && status.owned == 0 && status.guards == 0);
  OK(ashlar_manager_destroy(manager));
}
