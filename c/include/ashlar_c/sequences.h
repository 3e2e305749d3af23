// Part of ashlar_c.h: sequences, which get all their blocks at once.
#ifndef ASHLAR_C_SEQUENCES_H_
#define ASHLAR_C_SEQUENCES_H_

#include "ashlar_c/base.h"
#include "ashlar_c/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Sequences
//
// The simple interface beside requests: a sequence shares the cached prefix, gets blocks for the rest at
// once, grows by one token at a time, and returns everything.
//
//   create(prompt), allocate()          the engine computes the prompt
//   computed(n)                         the KV of n tokens exists: others find their full blocks
//   append(token), may_append()         a block for it, if one is needed
//   deallocate(), or destroy()
//
// Calls that do not fit the state are refused with ASHLAR_NOT_READY or ASHLAR_INVALID_ARGUMENT; those that
// find no block free with ASHLAR_CAPACITY. docs/sequences.md.

// What sequences of one kind share. It holds its manager as an open list of blocks does.
typedef struct ashlar_sequences {
  uint64_t id;
} ashlar_sequences;
typedef struct ashlar_sequence {
  uint64_t id;
} ashlar_sequence;

typedef struct ashlar_sequences_options {
  uint32_t struct_size;
  uint32_t metadata;         // the caller's own, in the events of their blocks
  ashlar_hasher hasher;      // zero: the default one
  int32_t register_at_once;  // 1: blocks are found when they are allocated or filled, before computed()
  int32_t reuse_last_token;  // 1: a hit may cover the whole sequence
  uint8_t set_priority;      // 1: `priority` counts, for all their blocks
  uint8_t priority;          // 0 to 100
  uint16_t reserved;
  uint32_t reserved2;
  uint64_t priority_ns;              // from the registration of a block; 0: forever
  uint64_t onboard_max_blocks;       // that allocate() brings from below; 0: all, ASHLAR_FOREVER: none
  uint64_t onboard_ns;               // how long it may take; 0: as long as it takes
  double compute_tokens_per_second;  // blocks that are recomputed sooner stay below; 0: none
  int32_t onboard_by_layer;          // 1: ashlar_sequence_begin_allocate() fills layer by layer
  uint32_t reserved3;
} ashlar_sequences_options;
#define ASHLAR_SEQUENCES_OPTIONS_INIT {.struct_size = sizeof(ashlar_sequences_options)}

// Makes sequences over a manager, of which there may be several. Errors: ASHLAR_INVALID_ARGUMENT with the
// option.
ASHLAR_API ashlar_status ashlar_sequences_create(ashlar_manager manager,
                                                 const ashlar_sequences_options* options,
                                                 ashlar_sequences* sequences);
// Sequences that were made keep what they need of it.
ASHLAR_API ashlar_status ashlar_sequences_destroy(ashlar_sequences sequences);

// A sequence of these tokens; takes no block yet. Errors: ASHLAR_INVALID_ARGUMENT: more blocks than there are
// positions.
ASHLAR_API ashlar_status ashlar_sequence_create(ashlar_sequences sequences, const uint32_t* tokens, size_t n,
                                                ashlar_sequence* sequence);
// Returns its blocks, the last first, and ends it.
ASHLAR_API ashlar_status ashlar_sequence_destroy(ashlar_sequence sequence);
// Whether ashlar_sequence_allocate() would find room now. Errors: ASHLAR_CAPACITY.
ASHLAR_API ashlar_status ashlar_sequence_can_allocate(ashlar_sequence sequence);
// Shares the cached prefix, of which `cached`, which may be null, gets the tokens, and takes blocks for the
// rest. Errors: ASHLAR_NOT_READY when it has blocks; ASHLAR_INVALID_ARGUMENT without a token;
// ASHLAR_CAPACITY.
ASHLAR_API ashlar_status ashlar_sequence_allocate(ashlar_sequence sequence, size_t* cached);
// The same without waiting for tiers below. `pending` becomes 1 while blocks are on their way:
// ashlar_sequence_finish_allocate() then takes them, and blocks for the rest; 0: it has allocated. `cached`
// may be null.
ASHLAR_API ashlar_status ashlar_sequence_begin_allocate(ashlar_sequence sequence, size_t* cached,
                                                        int* pending);
// 1 when ashlar_sequence_finish_allocate() will not wait.
ASHLAR_API ashlar_status ashlar_sequence_arrived(ashlar_sequence sequence, int* arrived);
// ashlar_request_wait_layer() of a sequence. Needs onboard_by_layer.
ASHLAR_API ashlar_status ashlar_sequence_wait_layer(ashlar_sequence sequence, uint32_t layer,
                                                    uint64_t timeout_ns, uint32_t* out, size_t capacity,
                                                    size_t* count);
// Waits for the blocks on their way, and takes them and blocks for the rest. Errors: ASHLAR_NOT_READY unless
// some are on their way; ASHLAR_CAPACITY: the sequence has no blocks, as before.
ASHLAR_API ashlar_status ashlar_sequence_finish_allocate(ashlar_sequence sequence, size_t* cached);
// Returns the blocks, the last first; tokens stay. Errors: ASHLAR_NOT_READY when it has none.
ASHLAR_API ashlar_status ashlar_sequence_deallocate(ashlar_sequence sequence);
// Adds a token; ashlar_sequence_may_append() then assigns it a block.
ASHLAR_API ashlar_status ashlar_sequence_append(ashlar_sequence sequence, uint32_t token);
// Whether ashlar_sequence_may_append() would find room now. Errors: ASHLAR_CAPACITY.
ASHLAR_API ashlar_status ashlar_sequence_can_append(ashlar_sequence sequence);
// Blocks for the tokens that have none. `new_block` and `block_full`, which may be null, become 1 when the
// last token is in a new block, and when it fills its block. Errors: ASHLAR_NOT_READY when nothing is
// allocated; ASHLAR_CAPACITY.
ASHLAR_API ashlar_status ashlar_sequence_may_append(ashlar_sequence sequence, int* new_block,
                                                    int* block_full);
// The KV of the first `tokens` tokens exists: registers the full blocks among them. `after`, which may be
// null, is the fence of the step that writes them; `registered`, which may be null, gets how many. Errors:
// ASHLAR_NOT_READY when nothing is allocated; ASHLAR_INVALID_ARGUMENT: more tokens than have blocks, or fewer
// than before.
ASHLAR_API ashlar_status ashlar_sequence_computed(ashlar_sequence sequence, size_t tokens,
                                                  const ashlar_fence* after, size_t* registered);

typedef struct ashlar_sequence_info {
  uint32_t struct_size;
  uint32_t reserved;
  size_t tokens;
  size_t block_count;      // that the tokens fill or begin
  size_t cached_tokens;    // leading tokens that allocate() found in the cache
  size_t computed_tokens;  // leading tokens whose KV exists
} ashlar_sequence_info;
#define ASHLAR_SEQUENCE_INFO_INIT {.struct_size = sizeof(ashlar_sequence_info)}
// Its sizes now.
ASHLAR_API ashlar_status ashlar_sequence_get_info(ashlar_sequence sequence, ashlar_sequence_info* info);
// Its blocks in order; none while nothing is allocated.
ASHLAR_API ashlar_status ashlar_sequence_block_table(ashlar_sequence sequence, uint32_t* out, size_t capacity,
                                                     size_t* count);
// Its tokens.
ASHLAR_API ashlar_status ashlar_sequence_tokens(ashlar_sequence sequence, uint32_t* out, size_t capacity,
                                                size_t* count);
// The names of its full blocks.
ASHLAR_API ashlar_status ashlar_sequence_hashes(ashlar_sequence sequence, ashlar_hash* out, size_t capacity,
                                                size_t* count);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_SEQUENCES_H_
