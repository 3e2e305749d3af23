// Part of ashlar_c.h: requests, from their prompt to their last token.
#ifndef ASHLAR_C_REQUESTS_H_
#define ASHLAR_C_REQUESTS_H_

#include "ashlar_c/base.h"
#include "ashlar_c/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Requests
//
//   schedule_prefill(n) ... apply_prefill(token?)             n prompt tokens; the last chunk yields one
//   schedule_decode() ... apply_decode(token)                 one token
//   schedule_speculative(k) ... apply_speculative(accepted)   one token and k drafts, a prefix accepted
//
// A step is scheduled (blocks are taken), computed by the engine, then applied (the KV exists) or reverted.
// A block can be found by others when apply has seen all its tokens computed. A request holds blocks of its
// manager until it is released or destroyed. Calls that do not fit the state are refused with
// ASHLAR_NOT_READY or ASHLAR_INVALID_ARGUMENT; those that find no block free with ASHLAR_CAPACITY.

typedef struct ashlar_request {
  uint64_t id;
} ashlar_request;

typedef struct ashlar_request_options {
  uint32_t struct_size;
  uint32_t metadata;         // the caller's own, in the events of its blocks
  ashlar_hasher hasher;      // zero: the default one
  uint64_t max_tokens;       // prompt and generated; 0: no limit
  int32_t reuse_last_token;  // 1: a hit may cover the whole prompt
  uint8_t set_priority;      // 1: `priority` counts, for all its blocks
  uint8_t priority;          // 0 to 100
  uint16_t reserved;
  uint64_t priority_ns;              // from the registration of a block; 0: forever
  const uint32_t* windows;           // one group of layers each: tokens that a token sees; 0: all
  size_t window_count;               // 0: one group that sees all
  uint64_t onboard_max_blocks;       // that a match brings from tiers below; 0: all, ASHLAR_FOREVER: none
  uint64_t onboard_ns;               // how long it may take; 0: as long as it takes
  double compute_tokens_per_second;  // blocks that are recomputed sooner stay below; 0: none
  int32_t onboard_by_layer;          // 1: ashlar_request_begin_match() fills layer by layer
  uint32_t reserved2;
  const ashlar_multimodal_run* runs;  // items among the prompt's tokens, by offset, without overlap
  size_t run_count;
} ashlar_request_options;
#define ASHLAR_REQUEST_OPTIONS_INIT {.struct_size = sizeof(ashlar_request_options)}

// A request with this prompt; takes no block yet. Errors: ASHLAR_INVALID_ARGUMENT: an empty prompt, one
// above max_tokens, or a run that is wrong.
ASHLAR_API ashlar_status ashlar_request_create(ashlar_manager manager, const uint32_t* prompt, size_t n,
                                               const ashlar_request_options* options,
                                               ashlar_request* request);
// Returns its blocks, the last first, and ends the request. While a step is in flight, use
// ashlar_request_destroy_after().
ASHLAR_API ashlar_status ashlar_request_destroy(ashlar_request request);
// The same when the fence passes: for a step in flight that is not waited for. The handle is gone at once.
ASHLAR_API ashlar_status ashlar_request_destroy_after(ashlar_request request, ashlar_fence fence);
// Returns its blocks; tokens stay readable.
ASHLAR_API ashlar_status ashlar_request_release(ashlar_request request);

enum {
  ASHLAR_REQUEST_IDLE = 0,
  ASHLAR_REQUEST_PREFILL_SCHEDULED = 1,
  ASHLAR_REQUEST_DECODE_SCHEDULED = 2,
  ASHLAR_REQUEST_SPECULATIVE_SCHEDULED = 3,
  ASHLAR_REQUEST_ONBOARDING = 4,  // begin_match(): blocks are on their way from below
  ASHLAR_REQUEST_PREEMPTED = 5,
  ASHLAR_REQUEST_RELEASED = 6
};

typedef struct ashlar_request_info {
  uint32_t struct_size;
  int32_t state;  // ASHLAR_REQUEST_...
  size_t tokens;  // prompt and generated
  size_t prompt_tokens;
  size_t computed_tokens;  // leading tokens whose KV exists
  size_t cached_tokens;    // leading tokens that the last match found
  size_t group_count;
  uint64_t tokens_left;  // that may be generated; ASHLAR_FOREVER without max_tokens
} ashlar_request_info;
#define ASHLAR_REQUEST_INFO_INIT {.struct_size = sizeof(ashlar_request_info)}
// Its state and sizes now.
ASHLAR_API ashlar_status ashlar_request_get_info(ashlar_request request, ashlar_request_info* info);
// Its tokens, prompt and generated.
ASHLAR_API ashlar_status ashlar_request_tokens(ashlar_request request, uint32_t* out, size_t capacity,
                                               size_t* count);
// The block table of a group; UINT32_MAX for blocks outside its window. Errors: ASHLAR_INVALID_ARGUMENT: no
// such group.
ASHLAR_API ashlar_status ashlar_request_block_table(ashlar_request request, size_t group, uint32_t* out,
                                                    size_t capacity, size_t* count);
// The names of its full blocks.
ASHLAR_API ashlar_status ashlar_request_hashes(ashlar_request request, ashlar_hash* out, size_t capacity,
                                               size_t* count);

// Shares the longest cached prefix, and brings what tiers below have; before the first step. `cached` gets
// its tokens: at most all but one, unless reuse_last_token.
ASHLAR_API ashlar_status ashlar_request_match(ashlar_request request, size_t* cached);
// The same without waiting for tiers, also in place of ashlar_request_resume(). `pending` becomes 1 while
// blocks are on their way; ashlar_request_finish_match() then takes them.
ASHLAR_API ashlar_status ashlar_request_begin_match(ashlar_request request, size_t* cached, int* pending);
// 1 when ashlar_request_finish_match() will not wait.
ASHLAR_API ashlar_status ashlar_request_match_ready(ashlar_request request, int* ready);
// Waits until a layer of every block on its way is in G1, and writes their numbers, which follow those of the
// block table: computing can begin with the first layer. Needs onboard_by_layer. Errors: ASHLAR_NOT_READY
// unless blocks are on their way; ASHLAR_INVALID_ARGUMENT: no such layer; ASHLAR_TIMEOUT: the copies go on;
// those of the copies, after which none of the blocks may be used.
ASHLAR_API ashlar_status ashlar_request_wait_layer(ashlar_request request, uint32_t layer,
                                                   uint64_t timeout_ns, uint32_t* out, size_t capacity,
                                                   size_t* count);
// Waits for the blocks on their way, and takes them.
ASHLAR_API ashlar_status ashlar_request_finish_match(ashlar_request request, size_t* cached);

// What a scheduled step took.
typedef struct ashlar_step {
  size_t new_blocks;
  size_t copies;  // that the engine must make first: ashlar_request_copies()
} ashlar_step;
// What applying a step did.
typedef struct ashlar_step_outcome {
  size_t registered;  // blocks that others can find now
  size_t replaced;    // blocks in place of which the table has others now
  int32_t at_limit;   // 1: max_tokens is reached
  int32_t reserved;
} ashlar_step_outcome;
// All bytes of a block, to be copied before the step is computed.
typedef struct ashlar_block_copy {
  size_t group;
  uint32_t source;
  uint32_t destination;
} ashlar_block_copy;

// The next `n` tokens of the prompt. `step` may be null, as in the calls below.
ASHLAR_API ashlar_status ashlar_request_schedule_prefill(ashlar_request request, size_t n, ashlar_step* step);
// `next` is the token that the last chunk yields; null for other chunks. `outcome` may be null, as below.
ASHLAR_API ashlar_status ashlar_request_apply_prefill(ashlar_request request, const uint32_t* next,
                                                      ashlar_step_outcome* outcome);
// The one token that has no KV yet.
ASHLAR_API ashlar_status ashlar_request_schedule_decode(ashlar_request request, ashlar_step* step);
// `next` is the token that the step yields.
ASHLAR_API ashlar_status ashlar_request_apply_decode(ashlar_request request, uint32_t next,
                                                     ashlar_step_outcome* outcome);
// One token and `drafts` guesses after it.
ASHLAR_API ashlar_status ashlar_request_schedule_speculative(ashlar_request request, size_t drafts,
                                                             ashlar_step* step);
// The accepted drafts and the token after them: 1 to drafts + 1.
ASHLAR_API ashlar_status ashlar_request_apply_speculative(ashlar_request request, const uint32_t* accepted,
                                                          size_t n, ashlar_step_outcome* outcome);
// The copies that the scheduled step needs first.
ASHLAR_API ashlar_status ashlar_request_copies(ashlar_request request, ashlar_block_copy* out,
                                               size_t capacity, size_t* count);
// Blocks that later apply calls register are complete when the fence passes: for engines that apply a step
// when they launch it. Tiers copy no block before, and no block that the request has now is used again
// before.
ASHLAR_API ashlar_status ashlar_request_set_written_after(ashlar_request request, ashlar_fence fence);
// Drops the scheduled step. Nothing may still write to its blocks.
ASHLAR_API ashlar_status ashlar_request_revert(ashlar_request request);
// Returns all blocks and keeps the tokens; between steps.
ASHLAR_API ashlar_status ashlar_request_preempt(ashlar_request request);
// Restarts from what is still cached; the rest is prefilled again.
ASHLAR_API ashlar_status ashlar_request_resume(ashlar_request request, size_t* cached);
// A second request with the same tokens and blocks. `last` replaces its last token; null: it stays.
ASHLAR_API ashlar_status ashlar_request_fork(ashlar_request request, const uint32_t* last,
                                             ashlar_request* forked);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_REQUESTS_H_
