// Part of ashlar_c.h: managers, lists of blocks, events.
#ifndef ASHLAR_C_BLOCKS_H_
#define ASHLAR_C_BLOCKS_H_

#include "ashlar_c/base.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Managers: allocate, name, share and evict the blocks of one pool

typedef struct ashlar_registry_options {
  uint32_t struct_size;
  uint32_t reserved;
  // Hashes whose uses are counted, for eviction "multi_lru": 16 per block; 0: none.
  uint64_t frequency_capacity;
} ashlar_registry_options;
#define ASHLAR_REGISTRY_OPTIONS_INIT {.struct_size = sizeof(ashlar_registry_options)}

// The names that several managers share. Errors: ASHLAR_INVALID_ARGUMENT: the capacity.
ASHLAR_API ashlar_status ashlar_registry_create(const ashlar_registry_options* options,
                                                ashlar_registry* registry);
// Its managers keep it.
ASHLAR_API ashlar_status ashlar_registry_destroy(ashlar_registry registry);
// How many names are registered.
ASHLAR_API ashlar_status ashlar_registry_count(ashlar_registry registry, size_t* count);

enum {
  ASHLAR_DUPLICATES_ALLOW = 0,  // a second block of one name is kept while it is in use
  ASHLAR_DUPLICATES_REJECT = 1  // the caller gets the first one
};

typedef struct ashlar_manager_options {
  uint32_t struct_size;
  uint32_t block_count;      // required; at most 2^26
  uint32_t block_size;       // tokens; 0: 16
  int32_t duplicates;        // ASHLAR_DUPLICATES_...
  const char* eviction;      // null: "lru"; the names are in docs/eviction.md
  ashlar_registry registry;  // zero: one of its own, which counts uses where `eviction` needs it
  uint64_t max_pins;         // 0: a quarter of the blocks
  uint64_t event_capacity;   // events that wait for ashlar_manager_drain_events(), at most 2^22; 0: none
  uint32_t block_bytes;      // told in events; 0: none
  int32_t keep_tokens;       // 1: keeps the tokens of registered blocks: ashlar_manager_tokens_of()
  int32_t reset_on_release;  // 1: blocks are not cached after their last release
  uint32_t reserved;
} ashlar_manager_options;
#define ASHLAR_MANAGER_OPTIONS_INIT {.struct_size = sizeof(ashlar_manager_options)}

// The blocks of a pool by number, from 0; the bytes are the caller's. Errors: ASHLAR_INVALID_ARGUMENT with
// the option; ASHLAR_NOT_FOUND: the eviction.
ASHLAR_API ashlar_status ashlar_manager_create(const ashlar_manager_options* options,
                                               ashlar_manager* manager);
// Errors: ASHLAR_NOT_READY while lists of blocks or requests are open, with their number, and while a call
// with this manager runs: of another thread, or the drain of events whose callback this is;
// ASHLAR_INVALID_ARGUMENT: the manager of tiers, which goes with them.
ASHLAR_API ashlar_status ashlar_manager_destroy(ashlar_manager manager);

// The blocks of a manager, at one moment.
typedef struct ashlar_pool_status {
  uint32_t struct_size;
  uint32_t block_size;  // tokens
  size_t total;
  size_t reset;            // empty, free
  size_t inactive;         // cached, without users, evictable
  size_t pinned_inactive;  // cached, without users, pinned
  size_t held_inactive;    // cached, without users, being copied
  size_t active;           // registered and in use
  size_t owned;            // allocated, not registered
  size_t quarantined;      // wait for their fence
  size_t waiters;          // allocations that wait for room
  size_t guards;           // open lists and requests of this interface
} ashlar_pool_status;
#define ASHLAR_POOL_STATUS_INIT {.struct_size = sizeof(ashlar_pool_status)}
// The pools now. An allocation of up to reset + inactive blocks succeeds.
ASHLAR_API ashlar_status ashlar_manager_status(ashlar_manager manager, ashlar_pool_status* status);

typedef struct ashlar_manager_counters {
  uint32_t struct_size;
  uint32_t reserved;
  uint64_t allocations;
  uint64_t evictions;
  uint64_t registrations;
  uint64_t duplicates;
  uint64_t collisions;
  uint64_t match_hashes_requested;
  uint64_t match_blocks_returned;
} ashlar_manager_counters;
#define ASHLAR_MANAGER_COUNTERS_INIT {.struct_size = sizeof(ashlar_manager_counters)}
// What the manager has done since its creation, in blocks.
ASHLAR_API ashlar_status ashlar_manager_get_counters(ashlar_manager manager,
                                                     ashlar_manager_counters* counters);

// `n` empty blocks, all or none: free ones first, then cached ones, which are evicted. Errors:
// ASHLAR_CAPACITY; ASHLAR_INVALID_ARGUMENT: more than there are in all.
ASHLAR_API ashlar_status ashlar_manager_allocate(ashlar_manager manager, size_t n, ashlar_blocks* blocks);
// The same, waiting for room. Waiting calls are served in their order. Errors: also ASHLAR_TIMEOUT.
ASHLAR_API ashlar_status ashlar_manager_allocate_within(ashlar_manager manager, size_t n, uint64_t timeout_ns,
                                                        ashlar_blocks* blocks);
// ASHLAR_OK if ashlar_manager_allocate() would succeed now, else why not.
ASHLAR_API ashlar_status ashlar_manager_can_allocate(ashlar_manager manager, size_t n);
// The longest cached prefix of these names, as a registered list, which may be empty. With `prefixes`, one
// per name, a block of other tokens is a miss; null: names are trusted.
ASHLAR_API ashlar_status ashlar_manager_match(ashlar_manager manager, const ashlar_hash* hashes,
                                              const ashlar_digest* prefixes, size_t n, ashlar_blocks* blocks);
// The same for the full blocks of tokens from the start of a sequence, which it hashes: a zero hasher is the
// default one.
ASHLAR_API ashlar_status ashlar_manager_match_tokens(ashlar_manager manager, ashlar_hasher hasher,
                                                     const uint32_t* tokens, size_t token_count,
                                                     ashlar_blocks* blocks);
// present[i] becomes 1 if the manager has a block of hashes[i]. Does not count as a use.
ASHLAR_API ashlar_status ashlar_manager_presence(ashlar_manager manager, const ashlar_hash* hashes, size_t n,
                                                 uint8_t* present);
// Keeps a cached block from eviction for a time. Errors: ASHLAR_NOT_FOUND; ASHLAR_CAPACITY: too many pins;
// ASHLAR_INVALID_ARGUMENT: a time of 0.
ASHLAR_API ashlar_status ashlar_manager_pin(ashlar_manager manager, const ashlar_hash* hash, uint64_t ttl_ns,
                                            ashlar_pin* pin);
// How much a cached block is worth: 0 to 100, 35 by default. After `ttl_ns` the priority decays;
// ASHLAR_FOREVER: never. Errors: ASHLAR_NOT_FOUND; ASHLAR_INVALID_ARGUMENT: the priority.
ASHLAR_API ashlar_status ashlar_manager_set_retention(ashlar_manager manager, const ashlar_hash* hash,
                                                      uint8_t priority, uint64_t ttl_ns);
// Evicts every cached block that is not in use or pinned. `evicted` may be null.
ASHLAR_API ashlar_status ashlar_manager_reset(ashlar_manager manager, size_t* evicted);
// The tokens of a registered block, for publishers in formats of engines. Errors: ASHLAR_NOT_FOUND: no such
// block, no keep_tokens, or it was registered by its name (ashlar_blocks_stage()).
ASHLAR_API ashlar_status ashlar_manager_tokens_of(ashlar_manager manager, const ashlar_hash* hash,
                                                  uint32_t* out, size_t capacity, size_t* count);
// The next victims in order, at most `capacity`; `count` gets how many were written.
ASHLAR_API ashlar_status ashlar_manager_eviction_candidates(ashlar_manager manager, ashlar_hash* out,
                                                            size_t capacity, size_t* count);

// 1 while a pin holds, or while a pin of tiers has time left.
ASHLAR_API ashlar_status ashlar_pin_active(ashlar_pin pin, int* active);
// Ends the pin.
ASHLAR_API ashlar_status ashlar_pin_release(ashlar_pin pin);

// ---- Lists of blocks
//
//   empty ── complete, stage ──▶ complete ── register ──▶ registered ── share ──▶ two registered lists
//     ◀────────── reset ────────────┘
//
// A transition consumes its list and returns another handle; refused, it leaves the list as it was. Releasing
// an empty or complete list frees its blocks; releasing a registered one leaves them cached.

enum { ASHLAR_BLOCKS_EMPTY = 0, ASHLAR_BLOCKS_COMPLETE = 1, ASHLAR_BLOCKS_REGISTERED = 2 };

// How many blocks the list has, and its state (ASHLAR_BLOCKS_...). Either output may be null.
ASHLAR_API ashlar_status ashlar_blocks_info(ashlar_blocks blocks, size_t* count, int32_t* state);
// The numbers of the blocks in their pool, in order.
ASHLAR_API ashlar_status ashlar_blocks_ids(ashlar_blocks blocks, uint32_t* out, size_t capacity,
                                           size_t* count);
// The names of complete or registered blocks, in order. Errors: ASHLAR_NOT_READY: empty blocks.
ASHLAR_API ashlar_status ashlar_blocks_hashes(ashlar_blocks blocks, ashlar_hash* out, size_t capacity,
                                              size_t* count);
// The KV of these empty blocks exists: they hold the blocks of a sequence from number `first_block` on.
// `tokens` are those of the sequence from its start to the end of the last block. A zero hasher is the
// default one. Errors: ASHLAR_INVALID_ARGUMENT: too few tokens; ASHLAR_NOT_READY: not an empty list.
ASHLAR_API ashlar_status ashlar_blocks_complete(ashlar_blocks blocks, ashlar_hasher hasher,
                                                const uint32_t* tokens, size_t token_count,
                                                size_t first_block, ashlar_blocks* complete);
// The same where `runs` of these tokens stand for other items (ashlar_hash_blocks_with_runs()). Errors: also
// ASHLAR_INVALID_ARGUMENT: a run that is wrong, or goes past the last token.
ASHLAR_API ashlar_status ashlar_blocks_complete_with_runs(ashlar_blocks blocks, ashlar_hasher hasher,
                                                          const uint32_t* tokens, size_t token_count,
                                                          const ashlar_multimodal_run* runs, size_t run_count,
                                                          size_t first_block, ashlar_blocks* complete);
// The same with hashes of ashlar_hash_blocks(), one per block, which are trusted; a digest of zero is
// unknown. `parent` is the block before the first, `root` the first of the sequence; null: unknown. Errors:
// ASHLAR_INVALID_ARGUMENT: another number of hashes.
ASHLAR_API ashlar_status ashlar_blocks_stage(ashlar_blocks blocks, const ashlar_block_hashes* hashes,
                                             size_t n, const ashlar_hash* parent, const ashlar_hash* root,
                                             ashlar_blocks* complete);
// A complete list becomes empty again.
ASHLAR_API ashlar_status ashlar_blocks_reset(ashlar_blocks blocks, ashlar_blocks* empty);

typedef struct ashlar_register_options {
  uint32_t struct_size;
  uint8_t set_priority;  // 1: `priority` counts
  uint8_t priority;      // 0 to 100
  uint16_t reserved;
  uint64_t ttl_ns;            // of the priority; 0: forever
  const ashlar_fence* after;  // the bytes are complete when these have passed
  size_t after_count;         // 0, 1 for all, or one per block
  uint32_t metadata;          // the caller's own, in events
  uint32_t reserved2;
} ashlar_register_options;
#define ASHLAR_REGISTER_OPTIONS_INIT {.struct_size = sizeof(ashlar_register_options)}
// A complete list can be found by its names from now on. With ASHLAR_DUPLICATES_REJECT the registered list
// may have other block numbers. Errors: ASHLAR_CORRUPTION: a name has a block of other tokens.
ASHLAR_API ashlar_status ashlar_blocks_register(ashlar_blocks blocks, const ashlar_register_options* options,
                                                ashlar_blocks* registered);
// One more reference to each block of a registered list.
ASHLAR_API ashlar_status ashlar_blocks_share(ashlar_blocks blocks, ashlar_blocks* shared);
// Consumes a list: its first `at` blocks, and the rest. Errors: ASHLAR_INVALID_ARGUMENT: `at` is beyond it.
ASHLAR_API ashlar_status ashlar_blocks_split(ashlar_blocks blocks, size_t at, ashlar_blocks* head,
                                             ashlar_blocks* tail);
// ashlar_manager_set_retention() for each block of a registered list.
ASHLAR_API ashlar_status ashlar_blocks_set_retention(ashlar_blocks blocks, uint8_t priority, uint64_t ttl_ns);
// Whether the last release of these registered blocks frees them instead of leaving them cached.
ASHLAR_API ashlar_status ashlar_blocks_set_reset_on_release(ashlar_blocks blocks, int reset);
// Keeps the blocks of a registered list from eviction for a time after their release. Errors:
// ASHLAR_CAPACITY: too many pins; then none is pinned.
ASHLAR_API ashlar_status ashlar_blocks_pin(ashlar_blocks blocks, uint64_t ttl_ns, ashlar_pin* pin);
// Releases the blocks, the last first.
ASHLAR_API ashlar_status ashlar_blocks_release(ashlar_blocks blocks);
// The same when the fence passes: for work in flight that still uses them. The handle is gone at once.
ASHLAR_API ashlar_status ashlar_blocks_release_after(ashlar_blocks blocks, ashlar_fence fence);

// ---- Events

enum {
  ASHLAR_EVENT_STORED = 0,   // a block can be found in a tier
  ASHLAR_EVENT_REMOVED = 1,  // it no longer can
  ASHLAR_EVENT_RESYNC = 2,   // events were lost, `block` of them, of some tier: ask each what it holds now
  ASHLAR_EVENT_ACCESS = 3,   // a sample of hits, `block` of them
  ASHLAR_EVENT_CLEARED = 4   // a tier holds nothing any more
};

// Tiers, from the fastest down. The numbers are also those of an index.
enum {
  ASHLAR_TIER_G1 = 0,     // where blocks are computed: a device
  ASHLAR_TIER_G2 = 1,     // host memory
  ASHLAR_TIER_G3 = 2,     // files
  ASHLAR_TIER_G4 = 3,     // volumes
  ASHLAR_TIER_REMOTE = 4  // the memory of another node
};

// One change of what a tier holds. A field counts where its has_... is 1.
typedef struct ashlar_event {
  ashlar_hash hash;
  ashlar_hash parent;  // the block before it
  ashlar_hash root;    // the first block of its sequence
  uint64_t sequence;   // its number in the log, from 0
  uint64_t name;       // the producer's own name
  uint64_t local;      // the hash of the block's own tokens
  uint32_t block;      // its number in the tier
  uint32_t bytes;      // its size; 0: unknown
  uint32_t metadata;   // the producer's own
  uint16_t location;   // a file or volume of the tier
  uint16_t group;      // a group of layers
  uint8_t kind;        // ASHLAR_EVENT_...
  uint8_t tier;        // ASHLAR_TIER_...; 255: all
  uint8_t has_parent;
  uint8_t has_root;
  uint8_t has_name;
  uint8_t has_local;
  uint16_t reserved;
} ashlar_event;

// Gets events in order. The array is valid during the call. The callback may call any function of this
// header; a drain inside it delivers nothing. It must return: neither throw nor jump.
typedef void (*ashlar_event_callback)(void* user, const ashlar_event* events, size_t count);

// Hands the waiting events of a manager to the callback, in batches, on this thread. `delivered` may be null.
// Nothing without event_capacity, and while another thread drains the same manager.
ASHLAR_API ashlar_status ashlar_manager_drain_events(ashlar_manager manager, ashlar_event_callback callback,
                                                     void* user, size_t* delivered);
// What a manager holds now, as a first state or after ASHLAR_EVENT_RESYNC: hands its registered blocks to the
// callback at once, as ASHLAR_EVENT_STORED, parents before children. `next`, written before, gets the number
// of its next event: skip those that a drain still delivers with a smaller `sequence`. Errors:
// ASHLAR_NOT_READY: no event_capacity.
ASHLAR_API ashlar_status ashlar_manager_list_stored(ashlar_manager manager, ashlar_event_callback callback,
                                                    void* user, uint64_t* next);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_BLOCKS_H_
