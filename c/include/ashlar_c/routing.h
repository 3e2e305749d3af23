// Part of ashlar_c.h: indexes of what workers hold, feeds of engines' events, a client of `ashlar serve`.
#ifndef ASHLAR_C_ROUTING_H_
#define ASHLAR_C_ROUTING_H_

#include "ashlar_c/base.h"
#include "ashlar_c/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Indexes: which worker holds how much of a prefix

typedef struct ashlar_index {
  uint64_t id;
} ashlar_index;
typedef struct ashlar_feed {
  uint64_t id;
} ashlar_feed;

typedef struct ashlar_index_options {
  uint32_t struct_size;
  uint32_t jump_size;       // of "positional": positions between look-ups; 0: 32
  const char* kind;         // null: "flash"; "positional", "concurrent_radix_tree" or "radix_tree"
  uint32_t threads;         // that apply writes later; 0: a write is applied when it returns
  int32_t forget_behind;    // 1: a removed block takes those behind it along ("flash" alone)
  uint64_t queue_capacity;  // blocks that may wait for a thread; 0: 65536
} ashlar_index_options;
#define ASHLAR_INDEX_OPTIONS_INIT {.struct_size = sizeof(ashlar_index_options)}

// Errors: ASHLAR_INVALID_ARGUMENT: an option; ASHLAR_CAPACITY: no thread.
ASHLAR_API ashlar_status ashlar_index_create(const ashlar_index_options* options, ashlar_index* index);
// Its feeds keep it.
ASHLAR_API ashlar_status ashlar_index_destroy(ashlar_index index);

// A holder of blocks: a process, and one of its data-parallel ranks.
typedef struct ashlar_worker {
  uint64_t id;
  uint32_t rank;
  uint32_t reserved;
} ashlar_worker;
// A block as a worker stores it: the hash of its own tokens, and the worker's name for it.
typedef struct ashlar_stored_block {
  uint64_t local;
  uint64_t name;
} ashlar_stored_block;

// The worker holds these consecutive blocks in a tier (ASHLAR_TIER_...). `parent` is the name of the block
// before them, which the worker holds; null at the start of a sequence. All are stored, or none. Errors:
// ASHLAR_NOT_FOUND: the parent; ASHLAR_ALREADY_EXISTS: a name stands for other content there;
// ASHLAR_CAPACITY: full, a later call may succeed; ASHLAR_INVALID_ARGUMENT: no blocks, or no such tier.
ASHLAR_API ashlar_status ashlar_index_store(ashlar_index index, const ashlar_worker* worker, int32_t tier,
                                            const uint64_t* parent, const ashlar_stored_block* blocks,
                                            size_t n);
// The worker no longer holds these names in a tier. Unknown names are skipped; `removed`, which may be null,
// gets the number of the others.
ASHLAR_API ashlar_status ashlar_index_remove(ashlar_index index, const ashlar_worker* worker, int32_t tier,
                                             const uint64_t* names, size_t n, size_t* removed);
// The worker holds nothing any more; it may store again.
ASHLAR_API ashlar_status ashlar_index_clear(ashlar_index index, const ashlar_worker* worker);
// The same for all ranks of a worker.
ASHLAR_API ashlar_status ashlar_index_remove_worker(ashlar_index index, uint64_t worker);
// Waits until earlier writes are applied; for an index with threads.
ASHLAR_API ashlar_status ashlar_index_settle(ashlar_index index);

// How much of a prefix a worker holds, in blocks from the start.
typedef struct ashlar_match {
  ashlar_worker worker;
  uint32_t depth;         // each in some tier
  uint32_t device_depth;  // all in G1
  uint32_t tiers[8];      // those within `depth`, by their fastest tier (ASHLAR_TIER_...)
} ashlar_match;

// The workers that hold the first of these blocks (local hashes of a request), in no order; docs/index.md.
ASHLAR_API ashlar_status ashlar_index_find(ashlar_index index, const uint64_t* locals, size_t n,
                                           ashlar_match* out, size_t capacity, size_t* count);

typedef struct ashlar_index_sizes {
  uint32_t struct_size;
  uint32_t reserved;
  size_t workers;   // that hold something
  size_t blocks;    // counted per worker and tier
  size_t contents;  // distinct ones
  size_t bytes;     // of memory
} ashlar_index_sizes;
#define ASHLAR_INDEX_SIZES_INIT {.struct_size = sizeof(ashlar_index_sizes)}
// What the index holds now.
ASHLAR_API ashlar_status ashlar_index_get_sizes(ashlar_index index, ashlar_index_sizes* sizes);

// ---- Feeds: the events of one worker, into an index
//
// A feed takes what an engine publishes (vLLM, SGLang), or the events of ashlar_manager_drain_events() and
// ashlar_tiers_drain_events(): one of the two, as its first call decides.

typedef struct ashlar_feed_options {
  uint32_t struct_size;
  uint32_t block_size;  // tokens; 0: that of the engine's first block
  uint64_t worker;      // whose events these are
  const char* scheme;   // null: "xxh3_chain", as routers hash
  const char* lora;     // used where the engine names none
  const char* tenant;   // used where the engine names none
} ashlar_feed_options;
#define ASHLAR_FEED_OPTIONS_INIT {.struct_size = sizeof(ashlar_feed_options)}

// Errors: ASHLAR_NOT_FOUND: the scheme; ASHLAR_INVALID_ARGUMENT: the block size.
ASHLAR_API ashlar_status ashlar_feed_create(ashlar_index index, const ashlar_feed_options* options,
                                            ashlar_feed* feed);
// What the worker holds stays in the index; ashlar_index_remove_worker() takes it out.
ASHLAR_API ashlar_status ashlar_feed_destroy(ashlar_feed feed);
// One message of an engine: the msgpack payload, without topic and number. `changes`, which may be null, gets
// how many blocks came or went. Errors: ASHLAR_CORRUPTION: no such message; the index is unchanged.
ASHLAR_API ashlar_status ashlar_feed_apply_message(ashlar_feed feed, const void* payload, size_t bytes,
                                                   size_t* changes);
// Events of a manager or of tiers, in order, for one rank of the worker. Errors: ASHLAR_INVALID_ARGUMENT: a
// kind or tier that is none; then none is applied.
ASHLAR_API ashlar_status ashlar_feed_apply_events(ashlar_feed feed, uint32_t rank, const ashlar_event* events,
                                                  size_t n);
// Messages were lost: forgets what the worker held, and starts anew.
ASHLAR_API ashlar_status ashlar_feed_resync(ashlar_feed feed);

// ---- Client of `ashlar serve` (docs/http.md)

typedef struct ashlar_client {
  uint64_t id;
} ashlar_client;
typedef struct ashlar_answer {
  uint64_t id;
} ashlar_answer;

typedef struct ashlar_client_options {
  uint32_t struct_size;
  uint32_t timeout_ms;  // of a whole call; 0: 5000
  const char* url;      // "http://host:port"
  const char* token;    // sent in x-ashlar-token; null: none
  uint64_t max_bytes;   // of an answer; 0: 64 MiB
} ashlar_client_options;
#define ASHLAR_CLIENT_OPTIONS_INIT {.struct_size = sizeof(ashlar_client_options)}

// Connects to nothing yet. Errors of all calls: ASHLAR_UNAVAILABLE: no connection, or a service that refuses
// for now; ASHLAR_TIMEOUT; ASHLAR_CORRUPTION: no answer of HTTP; ASHLAR_CAPACITY: a longer answer than
// max_bytes; ASHLAR_INVALID_ARGUMENT: an address, token or target that is none; ASHLAR_UNSUPPORTED: https.
ASHLAR_API ashlar_status ashlar_client_create(const ashlar_client_options* options, ashlar_client* client);
// Calls that run keep what they need.
ASHLAR_API ashlar_status ashlar_client_destroy(ashlar_client client);
// ASHLAR_OK while the service lives.
ASHLAR_API ashlar_status ashlar_client_health(ashlar_client client);
// `ready` becomes 1 if a worker is up, else 0.
ASHLAR_API ashlar_status ashlar_client_ready(ashlar_client client, int* ready);

typedef struct ashlar_route_query {
  uint32_t struct_size;
  uint32_t reserved;
  const char* model;
  const char* routing_group;  // null: none, as below
  const char* lora;
  const char* tenant;  // the cache salt
} ashlar_route_query;
#define ASHLAR_ROUTE_QUERY_INIT {.struct_size = sizeof(ashlar_route_query)}

// What an instance holds of a prompt, in tokens. Tiers are cumulative.
typedef struct ashlar_route_score {
  uint64_t instance;
  uint64_t longest;  // in any tier
  uint64_t device;
  uint64_t host;
  uint64_t disk;
} ashlar_route_score;

// Which instances hold how much of the prompt. Errors: also ASHLAR_NOT_FOUND: the model.
ASHLAR_API ashlar_status ashlar_client_route(ashlar_client client, const ashlar_route_query* query,
                                             const uint32_t* tokens, size_t n, ashlar_route_score* out,
                                             size_t capacity, size_t* count);
// The workers of a model as JSON; null: of all.
ASHLAR_API ashlar_status ashlar_client_workers(ashlar_client client, const char* model,
                                               ashlar_answer* answer);
// Why a request went where it went, as JSON; by the x-ashlar-decision-id of its answer. Errors: also
// ASHLAR_NOT_FOUND.
ASHLAR_API ashlar_status ashlar_client_explain(ashlar_client client, const char* decision,
                                               ashlar_answer* answer);
// Any request. `target` begins with '/'; the answer may have any status.
ASHLAR_API ashlar_status ashlar_client_request(ashlar_client client, const char* method, const char* target,
                                               const void* body, size_t bytes, ashlar_answer* answer);
// The status of HTTP, and how many bytes the body has. Either output may be null.
ASHLAR_API ashlar_status ashlar_answer_info(ashlar_answer answer, int32_t* http_status, size_t* bytes);
// The body, without a zero at its end.
ASHLAR_API ashlar_status ashlar_answer_body(ashlar_answer answer, char* out, size_t capacity, size_t* count);
// Frees the answer.
ASHLAR_API ashlar_status ashlar_answer_destroy(ashlar_answer answer);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_ROUTING_H_
