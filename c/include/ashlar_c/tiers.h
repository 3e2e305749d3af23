// Part of ashlar_c.h: blocks with their bytes, over device, host, files and volumes.
#ifndef ASHLAR_C_TIERS_H_
#define ASHLAR_C_TIERS_H_

#include "ashlar_c/base.h"
#include "ashlar_c/blocks.h"

#ifdef __cplusplus
extern "C" {
#endif

// ---- Tiers
//
// G1 is where blocks are computed, and has a manager: ashlar_tiers_manager(). Blocks registered there, by
// lists or by requests, are copied down as the triggers say, and onboarding brings them back. docs/tiers.md.

typedef struct ashlar_tiers {
  uint64_t id;
} ashlar_tiers;
typedef struct ashlar_offload {
  uint64_t id;
} ashlar_offload;
typedef struct ashlar_onboard {
  uint64_t id;
} ashlar_onboard;

enum {
  ASHLAR_DTYPE_U8 = 0,
  ASHLAR_DTYPE_F8_E4M3 = 1,
  ASHLAR_DTYPE_F8_E5M2 = 2,
  ASHLAR_DTYPE_F16 = 3,
  ASHLAR_DTYPE_BF16 = 4,
  ASHLAR_DTYPE_F32 = 5,
  ASHLAR_DTYPE_F64 = 6
};
enum {
  ASHLAR_TRIGGER_ON_ARRIVAL = 0,     // a block is copied down as soon as it is registered above
  ASHLAR_TRIGGER_NEAR_EVICTION = 1,  // when it is among the next victims above
  ASHLAR_TRIGGER_ON_CALL = 2         // only by ashlar_tiers_offload()
};
enum {
  ASHLAR_MEMORY_SYSTEM = 0,  // host memory
  ASHLAR_MEMORY_PINNED = 1,  // host memory that a device may read
  ASHLAR_MEMORY_DEVICE = 2   // memory of the GPU `g1_device`, where CUDA is built in
};

// Memory that the caller has for G1. It must outlive the tiers.
typedef struct ashlar_region {
  void* address;
  uint64_t bytes;
} ashlar_region;

typedef struct ashlar_tiers_options {
  uint32_t struct_size;
  // The shape of a block, as far as this rank holds it.
  uint32_t num_layers;
  uint32_t num_heads;
  uint32_t head_dim;
  uint32_t outer_dim;   // 0: 2, K and V; 1: joint
  uint32_t block_size;  // tokens; 0: 16
  int32_t dtype;        // ASHLAR_DTYPE_...
  int32_t read_back;    // 1: reads back what it writes to files and volumes
  // Names the weights. Files, volumes and peers are shared by those with the same name, dtype, block size and
  // shape of the whole model, from every interface.
  const char* model;
  // G1.
  uint32_t g1_blocks;
  int32_t g1_memory_kind;   // ASHLAR_MEMORY_..., of `g1_regions`, or of what is allocated: not PINNED
  const char* g1_eviction;  // null: "lru"
  const char* g1_order;     // of the axes in memory; null: "fully_contiguous_nhd" (docs/layouts.md)
  const ashlar_region*
      g1_regions;  // memory of the caller: one for all layers, or one per layer; null: allocated
  size_t g1_region_count;
  // G2; no blocks: no such tier, as below.
  uint32_t g2_blocks;
  int32_t to_g2;  // ASHLAR_TRIGGER_...
  const char* g2_eviction;
  // G3.
  uint32_t g3_blocks;
  int32_t to_g3;
  const char* g3_eviction;
  const char* const* g3_paths;  // files, each on a device of its own; not without g3_blocks
  size_t g3_path_count;
  int32_t g3_no_sync;  // 1: what was written survives the end of the process, not a loss of power
  // G4.
  int32_t to_g4;
  uint32_t g4_blocks;
  uint32_t onboard_threads;           // 0: 2
  const char* const* g4_directories;  // volumes: existing directories; not without g4_blocks
  size_t g4_directory_count;
  uint64_t event_capacity;  // events of each tier that wait for a drain, at most 2^22; 0: none are made
  uint64_t max_pins;        // of each tier; 0: a quarter of its blocks
  int32_t g1_device;        // of ASHLAR_MEMORY_DEVICE: the number of the GPU; else 0
  // Blocks in G2 of other processes, which find this one's at remote_listen (docs/remote.md).
  int32_t remote_no_serve;          // 1: they may not read them
  const char* remote_listen;        // HOST:PORT; port 0: any; null: no such tier
  const char* remote_advertise;     // what they connect to; null: the address listened on
  const char* remote_secret;        // shared by all agents; needed unless both ends are on this machine
  const char* remote_name;          // for messages
  const char* const* remote_peers;  // HOST:PORT of other agents, connected when first needed
  size_t remote_peer_count;
  uint32_t remote_blocks;  // of others that are tracked; 0: 65536
  uint32_t reserved;
  // How bytes travel, the same for all agents: null within one machine; "tcp" or "tcp,shm" over UCX where
  // that is built in, also between machines. Whoever reaches a port of UCX can write this process's memory:
  // agents elsewhere than on loopback are refused, unless the variable UCX_NET_DEVICES names devices of a
  // network of peers.
  const char* remote_ucx;
  // Which part of the whole model num_layers and num_heads are. Ranks that share volumes or peers must say
  // so, or they take each other's blocks for their own; each needs g3_paths of its own (docs/tiers.md#ranks).
  uint32_t rank;          // tensor-parallel, from 0
  uint32_t ranks;         // 0: 1
  uint32_t model_heads;   // KV heads of the whole model; 0: num_heads times ranks
  uint32_t first_layer;   // of a pipeline stage; layers of this interface count from there
  uint32_t model_layers;  // 0: num_layers, there are no stages
  uint32_t reserved2;
  const uint32_t* other_ranks;  // how many ranks other fleets have that share the volumes: their blocks are
                                // cut or put together where this rank has none of its own; needs g4_blocks
  size_t other_rank_count;
  // How blocks are named, for every hasher that is used with the tiers. Files, volumes and peers of another
  // scheme or key are refused, or have other objects.
  const char* hash_scheme;    // as ashlar_hasher_options.scheme; null: "xxh3_chain"
  const uint8_t* hash_key;    // of keyed128
  const uint8_t* prefix_key;  // of the digests of prefixes; null: made from model and shape, and no secret
  uint32_t hash_key_size;     // 16, or 0
  uint32_t prefix_key_size;   // 16, or 0
} ashlar_tiers_options;
#define ASHLAR_TIERS_OPTIONS_INIT {.struct_size = sizeof(ashlar_tiers_options)}

// Errors: ASHLAR_INVALID_ARGUMENT with the option; ASHLAR_CAPACITY: memory; those of files and directories;
// of a GPU ASHLAR_UNSUPPORTED where CUDA is not built in, ASHLAR_UNAVAILABLE where there is no such device;
// of remote_ucx ASHLAR_UNSUPPORTED where UCX is not built in, or cannot be loaded.
ASHLAR_API ashlar_status ashlar_tiers_create(const ashlar_tiers_options* options, ashlar_tiers* tiers);
// Finishes copies in flight to G2 and G3 and drops queued ones: ashlar_tiers_shutdown() keeps them. When it
// has returned, nothing uses the memory of G1 any more. Errors: ASHLAR_NOT_READY while lists of blocks or
// requests are open, and while a call with these tiers or their manager runs: of another thread, or the drain
// of events whose callback this is. Handles of offloads and onboards may stay open.
ASHLAR_API ashlar_status ashlar_tiers_destroy(ashlar_tiers tiers);
// The manager of G1, for lists and requests. It belongs to the tiers and goes with them.
ASHLAR_API ashlar_status ashlar_tiers_manager(ashlar_tiers tiers, ashlar_manager* manager);
// A hasher whose names and digests these tiers keep; use it for hashes that are staged or onboarded here. It
// has their scheme where `options` names none. Errors: ASHLAR_INVALID_ARGUMENT: another scheme or key, here
// and where a hasher is given with blocks or requests of these tiers.
ASHLAR_API ashlar_status ashlar_tiers_hasher(ashlar_tiers tiers, const ashlar_hasher_options* options,
                                             ashlar_hasher* hasher);
// Where K (outer 0) or V (outer 1) of one layer of a block of G1 begins. `bytes` gets its size where the
// order keeps it in one piece, else 0. Errors: ASHLAR_INVALID_ARGUMENT: no such block, layer or outer index.
ASHLAR_API ashlar_status ashlar_tiers_block_memory(ashlar_tiers tiers, uint32_t block, uint32_t layer,
                                                   uint32_t outer, void** address, uint64_t* bytes);

// HOST:PORT at which other agents reach these tiers, as text with a zero at its end, which `count` includes.
// Errors: ASHLAR_UNSUPPORTED without remote_listen.
ASHLAR_API ashlar_status ashlar_tiers_remote_address(ashlar_tiers tiers, char* out, size_t capacity,
                                                     size_t* count);

// ---- Volumes

typedef struct ashlar_volume_options {
  uint32_t struct_size;
  int32_t read_only;                // 1: no blocks are stored or removed
  const char* name;                 // unique within the tiers
  const char* kind;                 // "directory" or "file"; "s3" and "redis" where they are built in
  const char* location;             // as the kind says: docs/storage.md
  const char* const* option_names;  // of the kind; an unknown one is refused
  const char* const* option_values;
  size_t option_count;
} ashlar_volume_options;
#define ASHLAR_VOLUME_OPTIONS_INIT {.struct_size = sizeof(ashlar_volume_options)}

// Attaches a volume that exists. Needs g4_blocks. Errors: ASHLAR_UNSUPPORTED: no G4, or a kind that is not
// built in; ASHLAR_NOT_FOUND: no such kind; ASHLAR_ALREADY_EXISTS: the name; those of the kind.
ASHLAR_API ashlar_status ashlar_tiers_register_volume(ashlar_tiers tiers,
                                                      const ashlar_volume_options* options);
// Waits until the volume is unused, then forgets its blocks; its objects stay. `forgotten` may be null. When
// the time is over first, calls that use the volume fail. Errors: ASHLAR_NOT_FOUND: no such name;
// ASHLAR_UNSUPPORTED: no G4.
ASHLAR_API ashlar_status ashlar_tiers_unregister_volume(ashlar_tiers tiers, const char* name,
                                                        uint64_t timeout_ns, size_t* forgotten);

// ---- Down

typedef struct ashlar_offload_options {
  uint32_t struct_size;
  uint8_t set_priority;  // 1: `priority` counts; 0: that of each block, by its retention
  uint8_t priority;      // 0 to 100: the highest goes first
  uint16_t reserved;
  const ashlar_fence* after;  // a block is copied when its fence has passed
  size_t after_count;         // 0, 1 for all, or one per hash
  uint64_t deadline_ns;       // from now; 0: none
} ashlar_offload_options;
#define ASHLAR_OFFLOAD_OPTIONS_INIT {.struct_size = sizeof(ashlar_offload_options)}

// Copies blocks of the tier above into `tier` (ASHLAR_TIER_G2 to ASHLAR_TIER_G4), in the background.
// `offload` may be null. Errors: ASHLAR_UNSUPPORTED: no such tier; ASHLAR_CANCELLED: after a shutdown.
ASHLAR_API ashlar_status ashlar_tiers_offload(ashlar_tiers tiers, int32_t tier, const ashlar_hash* hashes,
                                              size_t n, const ashlar_offload_options* options,
                                              ashlar_offload* offload);

typedef struct ashlar_offload_progress {
  uint32_t struct_size;
  int32_t done;  // 1: every block has ended
  size_t total;
  size_t arrived;   // copied
  size_t present;   // the tier had it
  size_t filtered;  // refused by the policy
  size_t gone;      // evicted before its turn
  size_t failed;    // the copy failed
  size_t refused;   // the queue was full
  size_t cancelled;
  size_t late;  // the deadline passed first
} ashlar_offload_progress;
#define ASHLAR_OFFLOAD_PROGRESS_INIT {.struct_size = sizeof(ashlar_offload_progress)}
// How many blocks ended how.
ASHLAR_API ashlar_status ashlar_offload_get_progress(ashlar_offload offload,
                                                     ashlar_offload_progress* progress);
// Waits until every block has ended. Errors: ASHLAR_TIMEOUT; the first failure of a copy. `progress`, which
// may be null, is written in any case.
ASHLAR_API ashlar_status ashlar_offload_wait(ashlar_offload offload, uint64_t timeout_ns,
                                             ashlar_offload_progress* progress);
// Gives up the blocks that have not arrived, unless another call wants them.
ASHLAR_API ashlar_status ashlar_offload_cancel(ashlar_offload offload);
// Forgets the call; the copies go on.
ASHLAR_API ashlar_status ashlar_offload_destroy(ashlar_offload offload);
// Waits until no copy is queued or in flight. Errors: ASHLAR_TIMEOUT.
ASHLAR_API ashlar_status ashlar_tiers_drain(ashlar_tiers tiers, uint64_t timeout_ns);

// ---- Up

typedef struct ashlar_onboard_options {
  uint32_t struct_size;
  uint32_t reserved;
  const ashlar_digest* prefixes;  // one per hash: a block of other tokens is a miss; null: names are trusted
  uint64_t deadline_ns;           // from now; 0: none
  double compute_tokens_per_second;  // blocks that are recomputed sooner are left below; 0: none
  int32_t by_layer;                  // 1: fills G1 layer by layer: ashlar_onboard_wait_layer()
  uint32_t reserved2;
} ashlar_onboard_options;
#define ASHLAR_ONBOARD_OPTIONS_INIT {.struct_size = sizeof(ashlar_onboard_options)}

// The longest prefix of these hashes that any tier has, brought into G1: a registered list, perhaps empty.
ASHLAR_API ashlar_status ashlar_tiers_onboard(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                              const ashlar_onboard_options* options, ashlar_blocks* blocks);
// The same in the background. Errors: ASHLAR_CANCELLED: after a shutdown.
ASHLAR_API ashlar_status ashlar_tiers_onboard_async(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                                    const ashlar_onboard_options* options,
                                                    ashlar_onboard* onboard);
// Brings blocks from files and volumes into G2, ahead of a request.
ASHLAR_API ashlar_status ashlar_tiers_prefetch(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                               const ashlar_onboard_options* options,
                                               ashlar_onboard* onboard);
// 1 when the call has ended.
ASHLAR_API ashlar_status ashlar_onboard_done(ashlar_onboard onboard, int* done);
// Waits for the end. The list is what is in G1: empty for a prefetch and in a second call. Errors:
// ASHLAR_TIMEOUT: the copies go on; ASHLAR_CANCELLED.
ASHLAR_API ashlar_status ashlar_onboard_wait(ashlar_onboard onboard, uint64_t timeout_ns,
                                             ashlar_blocks* blocks);
// Waits until a layer of every arriving block is in G1, and writes their numbers. Needs by_layer. The blocks
// must not be written to, and other calls find them at the end alone. Errors: ASHLAR_INVALID_ARGUMENT: no
// by_layer, or no such layer; ASHLAR_TIMEOUT: the copies go on; ASHLAR_CANCELLED; those of the copies, after
// which none of the blocks may be used.
ASHLAR_API ashlar_status ashlar_onboard_wait_layer(ashlar_onboard onboard, uint32_t layer,
                                                   uint64_t timeout_ns, uint32_t* out, size_t capacity,
                                                   size_t* count);
// Stops the copies and releases the blocks of the call.
ASHLAR_API ashlar_status ashlar_onboard_cancel(ashlar_onboard onboard);
// Forgets the call, and releases what was not taken.
ASHLAR_API ashlar_status ashlar_onboard_destroy(ashlar_onboard onboard);

// ---- By name, over all tiers

// tiers_of[i] gets a bit per tier that has hashes[i]: 1 << ASHLAR_TIER_... Volumes are not asked.
ASHLAR_API ashlar_status ashlar_tiers_presence(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                               uint8_t* tiers_of);
// Keeps blocks in every tier that has them, or gets them, for a time. Errors: ASHLAR_CAPACITY: too many pins;
// ASHLAR_INVALID_ARGUMENT: a time of 0.
ASHLAR_API ashlar_status ashlar_tiers_pin(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                          uint64_t ttl_ns, ashlar_pin* pin);
// How much blocks are worth, in every tier (ashlar_manager_set_retention()). `found`, which may be null, gets
// how many of them some tier has.
ASHLAR_API ashlar_status ashlar_tiers_set_retention(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                                    uint8_t priority, uint64_t ttl_ns, size_t* found);
// Evicts every unused block of a tier; from files and volumes for good. `evicted` may be null. Errors:
// ASHLAR_UNSUPPORTED: no such tier; ASHLAR_TIMEOUT.
ASHLAR_API ashlar_status ashlar_tiers_reset(ashlar_tiers tiers, int32_t tier, uint64_t timeout_ns,
                                            size_t* evicted);
// Removes blocks from every tier for good.
ASHLAR_API ashlar_status ashlar_tiers_reset_blocks(ashlar_tiers tiers, const ashlar_hash* hashes, size_t n,
                                                   uint64_t timeout_ns);
// Takes no more offloads, waits for the queued ones, cancels onboards in the background. Errors:
// ASHLAR_TIMEOUT: with the number of blocks that were dropped.
ASHLAR_API ashlar_status ashlar_tiers_shutdown(ashlar_tiers tiers, uint64_t timeout_ns);

typedef struct ashlar_tier_status {
  uint32_t struct_size;
  uint32_t reserved;
  size_t total;  // blocks
  size_t reset;
  size_t inactive;
  size_t active;
  uint64_t hits;       // requested, and this was the fastest tier that had them
  uint64_t onboarded;  // brought up from here
  uint64_t evictions;
  uint64_t damaged;  // did not match their checksum
  uint64_t failed;   // could not be read
  uint64_t arrived;  // copied into this tier from above
} ashlar_tier_status;
#define ASHLAR_TIER_STATUS_INIT {.struct_size = sizeof(ashlar_tier_status)}
// Counters of a tier (ASHLAR_TIER_G1 to ASHLAR_TIER_G4, ASHLAR_TIER_REMOTE). Errors: ASHLAR_UNSUPPORTED: no
// such tier.
ASHLAR_API ashlar_status ashlar_tiers_status(ashlar_tiers tiers, int32_t tier, ashlar_tier_status* status);
// All counters and gauges of the tiers, their routes and volumes, in the text format of Prometheus, with a
// zero at its end, which `count` includes (docs/tiers.md#numbers).
ASHLAR_API ashlar_status ashlar_tiers_metrics(ashlar_tiers tiers, char* out, size_t capacity, size_t* count);
// Hands the waiting events of all tiers to the callback, in batches, on this thread. `delivered` may be null.
// Nothing without event_capacity, and while another drain of these tiers runs.
ASHLAR_API ashlar_status ashlar_tiers_drain_events(ashlar_tiers tiers, ashlar_event_callback callback,
                                                   void* user, size_t* delivered);
// ashlar_manager_list_stored() of one tier (ASHLAR_TIER_G1 to ASHLAR_TIER_G4, ASHLAR_TIER_REMOTE), whose
// events have numbers of their own. Errors: also ASHLAR_UNSUPPORTED: no such tier.
ASHLAR_API ashlar_status ashlar_tiers_list_stored(ashlar_tiers tiers, int32_t tier,
                                                  ashlar_event_callback callback, void* user, uint64_t* next);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_TIERS_H_
