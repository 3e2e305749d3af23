/* Options and answers that no other part of the walk has: what each changes. */
#define _XOPEN_SOURCE 700
#include <unistd.h>

#include "tests/c/walk.h"

#define BLOCK_SIZE 4
#define SEQUENCE 4 /* blocks */
#define TOKENS (SEQUENCE * BLOCK_SIZE)

static const ashlar_hasher kByDefault = {0};
static uint32_t tokens_of_walk[TOKENS];

static ashlar_manager_counters counters_of(ashlar_manager manager) {
  ashlar_manager_counters counters = ASHLAR_MANAGER_COUNTERS_INIT;
  OK(ashlar_manager_get_counters(manager, &counters));
  return counters;
}
static ashlar_pool_status pool_of(ashlar_manager manager) {
  ashlar_pool_status status = ASHLAR_POOL_STATUS_INIT;
  OK(ashlar_manager_status(manager, &status));
  return status;
}

/* Registers a sequence by its tokens, and releases it. */
static void keep_sequence(ashlar_manager manager, ashlar_hash* names) {
  ashlar_blocks blocks;
  size_t count = 0;
  OK(ashlar_manager_allocate(manager, SEQUENCE, &blocks));
  OK(ashlar_blocks_complete(blocks, kByDefault, tokens_of_walk, TOKENS, 0, &blocks));
  OK(ashlar_blocks_register(blocks, NULL, &blocks));
  OK(ashlar_blocks_hashes(blocks, names, SEQUENCE, &count));
  OK(ashlar_blocks_release(blocks));
}

/* The same tokens have other names under another key. */
static void walk_keys(void) {
  static const uint8_t one[16] = {1}, other[16] = {2};
  ashlar_hasher_options options = ASHLAR_HASHER_OPTIONS_INIT;
  ashlar_tiers_options tiers_options = ASHLAR_TIERS_OPTIONS_INIT;
  ashlar_block_hashes named[3][SEQUENCE];
  ashlar_hasher hashers[3], bound;
  ashlar_tiers tiers;
  uint64_t fingerprints[3], print = 0;
  size_t count = 0;
  int i;
  options.scheme = "keyed128";
  options.key_size = 16;
  for (i = 0; i < 3; ++i) {
    options.key = i == 2 ? other : one;
    OK(ashlar_hasher_create(&options, &hashers[i]));
    OK(ashlar_hasher_fingerprint(hashers[i], &fingerprints[i]));
    OK(ashlar_hash_blocks(hashers[i], NULL, tokens_of_walk, TOKENS, BLOCK_SIZE, named[i], SEQUENCE, &count));
    TRUE(count == SEQUENCE);
  }
  TRUE(fingerprints[0] == fingerprints[1] && fingerprints[0] != fingerprints[2]);
  TRUE(memcmp(&named[0][3].sequence, &named[1][3].sequence, sizeof(ashlar_hash)) == 0);
  TRUE(memcmp(&named[0][3].sequence, &named[2][3].sequence, sizeof(ashlar_hash)) != 0);

  tiers_options.num_layers = tiers_options.num_heads = tiers_options.head_dim = 1;
  tiers_options.block_size = BLOCK_SIZE;
  tiers_options.g1_blocks = SEQUENCE;
  tiers_options.hash_scheme = "keyed128";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&tiers_options, &tiers));
  tiers_options.hash_key = one;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&tiers_options, &tiers));
  tiers_options.hash_key_size = 16;
  OK(ashlar_tiers_create(&tiers_options, &tiers));
  OK(ashlar_tiers_hasher(tiers, NULL, &bound));
  OK(ashlar_hasher_fingerprint(bound, &print));
  TRUE(print == fingerprints[0]);
  OK(ashlar_hasher_destroy(bound));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_hasher(tiers, &options, &bound)); /* of the other key */
  OK(ashlar_tiers_destroy(tiers));
  for (i = 0; i < 3; ++i) OK(ashlar_hasher_destroy(hashers[i]));
}

/* What a manager counts, and blocks that are not cached unless told. */
static void walk_managers(void) {
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_block_hashes forged[1];
  ashlar_hash names[SEQUENCE];
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_blocks blocks, refused;
  size_t count = 0;
  options.block_count = SEQUENCE + 1;
  options.block_size = BLOCK_SIZE;
  OK(ashlar_manager_create(&options, &manager));
  keep_sequence(manager, names);
  OK(ashlar_manager_match(manager, names, NULL, SEQUENCE, &blocks));
  OK(ashlar_blocks_release(blocks));
  TRUE(counters_of(manager).match_hashes_requested == SEQUENCE);
  TRUE(counters_of(manager).match_blocks_returned == SEQUENCE);

  /* Another digest under a name that is taken. */
  OK(ashlar_hasher_create(NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens_of_walk, BLOCK_SIZE, BLOCK_SIZE, forged, 1, &count));
  OK(ashlar_hasher_destroy(hasher));
  forged[0].prefix.lo ^= 1;
  OK(ashlar_manager_allocate(manager, 1, &blocks));
  OK(ashlar_blocks_stage(blocks, forged, 1, NULL, NULL, &blocks));
  EXPECT(ASHLAR_CORRUPTION, ashlar_blocks_register(blocks, NULL, &refused));
  TRUE(counters_of(manager).collisions == 1 && counters_of(manager).evictions == 0);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_manager_allocate(manager, 3, &blocks));
  TRUE(counters_of(manager).evictions == 2);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_manager_destroy(manager));

  options.reset_on_release = 1;
  OK(ashlar_manager_create(&options, &manager));
  keep_sequence(manager, names);
  TRUE(pool_of(manager).reset == SEQUENCE + 1 && pool_of(manager).inactive == 0);
  OK(ashlar_manager_destroy(manager));
}

/* A hit over the whole prompt, and blocks that are replaced by those of another. */
static void walk_last_tokens(void) {
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_request_options asked = ASHLAR_REQUEST_OPTIONS_INIT;
  ashlar_request_info info = ASHLAR_REQUEST_INFO_INIT;
  ashlar_sequences_options kind = ASHLAR_SEQUENCES_OPTIONS_INIT;
  ashlar_sequence_info size = ASHLAR_SEQUENCE_INFO_INIT;
  ashlar_step_outcome outcome;
  ashlar_hash names[SEQUENCE];
  ashlar_manager manager;
  ashlar_request first, second;
  ashlar_sequences sequences;
  ashlar_sequence sequence, twin;
  const uint32_t next = 7;
  size_t cached = 0;
  options.block_count = 4 * SEQUENCE;
  options.block_size = BLOCK_SIZE;
  options.duplicates = ASHLAR_DUPLICATES_REJECT;
  OK(ashlar_manager_create(&options, &manager));

  OK(ashlar_request_create(manager, tokens_of_walk, TOKENS, NULL, &first));
  OK(ashlar_request_create(manager, tokens_of_walk, TOKENS, NULL, &second));
  OK(ashlar_request_schedule_prefill(first, TOKENS, NULL));
  OK(ashlar_request_schedule_prefill(second, TOKENS, NULL));
  OK(ashlar_request_apply_prefill(first, &next, &outcome));
  TRUE(outcome.registered == SEQUENCE && outcome.replaced == 0);
  OK(ashlar_request_apply_prefill(second, &next, &outcome));
  TRUE(outcome.replaced == SEQUENCE);
  OK(ashlar_request_get_info(second, &info));
  TRUE(info.tokens == TOKENS + 1 && info.prompt_tokens == TOKENS);
  OK(ashlar_request_destroy(first));
  OK(ashlar_request_destroy(second));

  OK(ashlar_request_create(manager, tokens_of_walk, TOKENS, NULL, &first));
  OK(ashlar_request_match(first, &cached));
  TRUE(cached == TOKENS - BLOCK_SIZE);
  OK(ashlar_request_destroy(first));
  asked.reuse_last_token = 1;
  OK(ashlar_request_create(manager, tokens_of_walk, TOKENS, &asked, &first));
  OK(ashlar_request_match(first, &cached));
  TRUE(cached == TOKENS);
  OK(ashlar_request_destroy(first));

  kind.reuse_last_token = 1;
  OK(ashlar_sequences_create(manager, &kind, &sequences));
  OK(ashlar_sequence_create(sequences, tokens_of_walk, TOKENS, &sequence));
  OK(ashlar_sequence_allocate(sequence, &cached));
  OK(ashlar_sequence_get_info(sequence, &size));
  TRUE(cached == TOKENS && size.tokens == TOKENS);
  OK(ashlar_sequence_destroy(sequence));
  OK(ashlar_sequences_destroy(sequences));
  OK(ashlar_manager_reset(manager, NULL));

  /* Found by a twin before any of its KV is said to exist. */
  kind.register_at_once = 1;
  OK(ashlar_sequences_create(manager, &kind, &sequences));
  OK(ashlar_sequence_create(sequences, tokens_of_walk, TOKENS, &sequence));
  OK(ashlar_sequence_create(sequences, tokens_of_walk, TOKENS, &twin));
  OK(ashlar_sequence_allocate(sequence, &cached));
  TRUE(cached == 0);
  OK(ashlar_sequence_allocate(twin, &cached));
  TRUE(cached == TOKENS);
  OK(ashlar_sequence_destroy(sequence));
  OK(ashlar_sequence_destroy(twin));
  OK(ashlar_sequences_destroy(sequences));
  keep_sequence(manager, names);
  OK(ashlar_manager_destroy(manager));
}

static ashlar_tiers_options shape(void) {
  ashlar_tiers_options options = ASHLAR_TIERS_OPTIONS_INIT;
  options.num_layers = 1;
  options.num_heads = 2;
  options.head_dim = 8;
  options.block_size = BLOCK_SIZE;
  options.model = "options";
  options.g1_blocks = SEQUENCE;
  return options;
}

static void walk_shapes(void) {
  static const uint64_t sizes[] = {1, 1, 1, 2, 2, 4, 8};
  ashlar_tiers_options options = shape();
  ashlar_tiers tiers;
  void* address;
  uint64_t bytes = 0;
  int32_t dtype;
  for (dtype = ASHLAR_DTYPE_U8; dtype <= ASHLAR_DTYPE_F64; ++dtype) {
    options.dtype = dtype;
    options.outer_dim = 1 + (uint32_t)dtype % 2; /* joint, or K and V */
    OK(ashlar_tiers_create(&options, &tiers));
    OK(ashlar_tiers_block_memory(tiers, 1, 0, 0, &address, &bytes));
    TRUE(bytes == sizes[dtype] * BLOCK_SIZE * 2 * 8);
    EXPECT(options.outer_dim == 1 ? ASHLAR_INVALID_ARGUMENT : ASHLAR_OK,
           ashlar_tiers_block_memory(tiers, 1, 0, 1, &address, &bytes));
    OK(ashlar_tiers_destroy(tiers));
  }
  options.g2_blocks = options.g3_blocks = SEQUENCE;
  options.g1_eviction = "no such order";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &tiers));
  TRUE(strstr(ashlar_last_error(), "g1.eviction") != NULL);
  options.g1_eviction = "lru";
  options.g2_eviction = "no such order";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &tiers));
  TRUE(strstr(ashlar_last_error(), "g2.eviction") != NULL);
  options.g2_eviction = "lru";
  options.g3_eviction = "no such order";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &tiers));
  TRUE(strstr(ashlar_last_error(), "g3.eviction") != NULL);
}

static ashlar_tier_status tier_of(ashlar_tiers tiers, int32_t tier) {
  ashlar_tier_status status = ASHLAR_TIER_STATUS_INIT;
  OK(ashlar_tiers_status(tiers, tier, &status));
  return status;
}

/* How offloads end that do not arrive. */
static void walk_offloads(ashlar_tiers tiers, const ashlar_hash* names) {
  ashlar_offload_options options = ASHLAR_OFFLOAD_OPTIONS_INIT;
  ashlar_offload_progress seen = ASHLAR_OFFLOAD_PROGRESS_INIT;
  ashlar_offload offload;
  ashlar_hash strangers[2];
  ashlar_fence never;
  memset(strangers, 1, sizeof strangers);
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, strangers, 2, NULL, &offload));
  OK(ashlar_offload_wait(offload, ASHLAR_FOREVER, &seen));
  TRUE(seen.gone == 2 && seen.total == 2);
  OK(ashlar_offload_destroy(offload));

  OK(ashlar_fence_create(&never));
  options.after = &never;
  options.after_count = 1;
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, 2, &options, &offload));
  OK(ashlar_offload_cancel(offload));
  (void)ashlar_offload_wait(offload, ASHLAR_FOREVER, &seen);
  TRUE(seen.done == 1 && seen.cancelled == 2);
  OK(ashlar_offload_destroy(offload));

  options.deadline_ns = 1;
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, 2, &options, &offload));
  OK(ashlar_fence_signal(never));
  (void)ashlar_offload_wait(offload, ASHLAR_FOREVER, &seen);
  TRUE(seen.done == 1 && seen.late == 2 && seen.arrived == 0);
  TRUE(seen.refused == 0 && seen.filtered == 0 && seen.failed == 0);
  OK(ashlar_offload_destroy(offload));
  OK(ashlar_fence_destroy(never));
}

static void walk_tier_options(void) {
  ashlar_tiers_options options = shape();
  ashlar_onboard_options up = ASHLAR_ONBOARD_OPTIONS_INIT;
  ashlar_volume_options volume = ASHLAR_VOLUME_OPTIONS_INIT;
  ashlar_offload_progress seen = ASHLAR_OFFLOAD_PROGRESS_INIT;
  ashlar_block_hashes hashes[SEQUENCE];
  ashlar_digest prefixes[SEQUENCE];
  ashlar_hash names[SEQUENCE];
  ashlar_tiers tiers;
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_offload offload;
  ashlar_blocks blocks;
  char folder[] = "/tmp/ashlar-c-XXXXXX";
  char file[64];
  const char* paths[1];
  size_t count = 0, i;
  TRUE(mkdtemp(folder) != NULL);
  snprintf(file, sizeof file, "%s/g3", folder);
  paths[0] = file;
  options.g2_blocks = 2;
  options.g3_blocks = SEQUENCE;
  options.g3_paths = paths;
  options.g3_path_count = 1;
  options.g4_blocks = SEQUENCE;
  options.to_g2 = options.to_g3 = options.to_g4 = ASHLAR_TRIGGER_ON_CALL;
  options.read_back = 1;
  options.onboard_threads = 1;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_manager(tiers, &manager));
  keep_sequence(manager, names);
  walk_offloads(tiers, names);

  /* G2 has room for two: the next two evict them. Each pair goes on into the file, which is read back. */
  for (i = 0; i < SEQUENCE; i += 2) {
    OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, &names[i], 2, NULL, NULL));
    OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
    OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G3, &names[i], 2, NULL, NULL));
    OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  }
  TRUE(tier_of(tiers, ASHLAR_TIER_G2).evictions == 2 && tier_of(tiers, ASHLAR_TIER_G2).damaged == 0);
  TRUE(tier_of(tiers, ASHLAR_TIER_G3).arrived == SEQUENCE);

  /* Nothing is stored on a volume that is read only. */
  volume.name = "shelf";
  volume.kind = "directory";
  volume.location = folder;
  volume.read_only = 1;
  OK(ashlar_tiers_register_volume(tiers, &volume));
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G4, &names[2], 2, NULL, &offload));
  (void)ashlar_offload_wait(offload, ASHLAR_FOREVER, &seen);
  TRUE(seen.done == 1 && seen.arrived == 0 && tier_of(tiers, ASHLAR_TIER_G4).inactive == 0);
  OK(ashlar_offload_destroy(offload));

  /* A digest of other tokens is a miss; a deadline that has passed brings what is there in time, or less. */
  OK(ashlar_manager_reset(manager, NULL));
  OK(ashlar_tiers_hasher(tiers, NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens_of_walk, TOKENS, BLOCK_SIZE, hashes, SEQUENCE, &count));
  OK(ashlar_hasher_destroy(hasher));
  for (i = 0; i < SEQUENCE; ++i) prefixes[i] = hashes[i].prefix;
  prefixes[1].lo ^= 1;
  up.prefixes = prefixes;
  OK(ashlar_tiers_onboard(tiers, names, SEQUENCE, &up, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count == 1);
  OK(ashlar_blocks_release(blocks));
  prefixes[1].lo ^= 1;
  OK(ashlar_tiers_onboard(tiers, names, SEQUENCE, &up, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count == SEQUENCE);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_manager_reset(manager, NULL));
  up.deadline_ns = 1;
  OK(ashlar_tiers_onboard(tiers, names, SEQUENCE, &up, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count <= SEQUENCE);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_tiers_destroy(tiers));

  /* Victims go down before they are evicted. */
  options = shape();
  options.g2_blocks = SEQUENCE;
  options.to_g2 = ASHLAR_TRIGGER_NEAR_EVICTION;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_manager(tiers, &manager));
  keep_sequence(manager, names);
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  TRUE(tier_of(tiers, ASHLAR_TIER_G2).arrived == 0);
  OK(ashlar_manager_allocate(manager, 1, &blocks));
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  TRUE(tier_of(tiers, ASHLAR_TIER_G2).arrived != 0);
  OK(ashlar_tiers_destroy(tiers));
  remove_tree(folder);
}

/* A sequence begins with what G2 has, layer by layer; and what the tiers count. */
static void walk_sequence_below(void) {
  ashlar_tiers_options options = shape();
  ashlar_sequences_options kind = ASHLAR_SEQUENCES_OPTIONS_INIT;
  ashlar_hash names[SEQUENCE];
  uint32_t ids[SEQUENCE], layer;
  ashlar_tiers tiers;
  ashlar_manager manager;
  ashlar_sequences sequences;
  ashlar_sequence sequence;
  size_t cached = 9, count = 0;
  char* text;
  int pending = 9, arrived = 9;
  options.num_layers = 2;
  options.g2_blocks = SEQUENCE;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_manager(tiers, &manager));
  kind.onboard_by_layer = 1;
  kind.reuse_last_token = 1;
  OK(ashlar_sequences_create(manager, &kind, &sequences));
  OK(ashlar_sequence_create(sequences, tokens_of_walk, TOKENS, &sequence));
  OK(ashlar_sequence_begin_allocate(sequence, &cached, &pending));
  TRUE(cached == 0 && pending == 0);
  EXPECT(ASHLAR_NOT_READY, ashlar_sequence_finish_allocate(sequence, &cached));
  EXPECT(ASHLAR_NOT_READY, ashlar_sequence_wait_layer(sequence, 0, 0, ids, SEQUENCE, &count));
  OK(ashlar_sequence_deallocate(sequence));
  keep_sequence(manager, names);
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  OK(ashlar_manager_reset(manager, NULL));

  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_sequence_begin_allocate(sequence, &cached, NULL));
  OK(ashlar_sequence_begin_allocate(sequence, &cached, &pending));
  TRUE(cached == 0 && pending == 1);
  for (layer = 0; layer < 2; ++layer) {
    OK(ashlar_sequence_wait_layer(sequence, layer, ASHLAR_FOREVER, ids, SEQUENCE, &count));
    TRUE(count == SEQUENCE);
  }
  OK(ashlar_sequence_arrived(sequence, &arrived));
  TRUE(arrived == 0 || arrived == 1);
  OK(ashlar_sequence_finish_allocate(sequence, &cached));
  TRUE(cached == TOKENS);
  OK(ashlar_sequence_destroy(sequence));
  OK(ashlar_sequences_destroy(sequences));

  EXPECT(ASHLAR_CAPACITY, ashlar_tiers_metrics(tiers, NULL, 0, &count));
  text = malloc(count + 4096); /* numbers grow */
  TRUE(text != NULL);
  OK(ashlar_tiers_metrics(tiers, text, count + 4096, &count));
  TRUE(count == strlen(text) + 1 && strstr(text, "ashlar_tier_capacity_blocks{tier=\"g2\"} 4") != NULL);
  free(text);
  OK(ashlar_tiers_destroy(tiers));
}

/* Agents with a secret, an address of their own choice and a bound of tracked blocks. */
static void walk_agents(void) {
  ashlar_tiers_options options = shape();
  ashlar_tiers tiers;
  char address[64];
  size_t count = 0;
  options.g2_blocks = SEQUENCE;
  options.remote_secret = "secret";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &tiers)); /* no remote_listen */
  options.remote_listen = "127.0.0.1:0";
  options.remote_advertise = "localhost:4711";
  options.remote_blocks = 2 * SEQUENCE;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_remote_address(tiers, address, sizeof address, &count));
  TRUE(strcmp(address, "localhost:4711") == 0);
  TRUE(tier_of(tiers, ASHLAR_TIER_REMOTE).total == 2 * SEQUENCE);
  OK(ashlar_tiers_destroy(tiers));
}

/* A removed block alone, or with those behind it; queues and jumps change no answer. */
static void walk_index_options(void) {
  const ashlar_worker worker = {1, 0, 0};
  const ashlar_stored_block blocks[3] = {{11, 101}, {12, 102}, {13, 103}};
  const uint64_t locals[3] = {11, 12, 13}, middle[1] = {102};
  int forget;
  for (forget = 0; forget < 2; ++forget) {
    ashlar_index_options options = ASHLAR_INDEX_OPTIONS_INIT;
    ashlar_index_sizes sizes = ASHLAR_INDEX_SIZES_INIT;
    ashlar_index index;
    ashlar_match match;
    size_t count = 0;
    options.forget_behind = forget;
    OK(ashlar_index_create(&options, &index));
    OK(ashlar_index_store(index, &worker, ASHLAR_TIER_G1, NULL, blocks, 3));
    OK(ashlar_index_remove(index, &worker, ASHLAR_TIER_G1, middle, 1, NULL));
    OK(ashlar_index_find(index, locals, 3, &match, 1, &count));
    TRUE(count == 1 && match.depth == 1);
    /* The removed one again: what is behind it counts, unless it was forgotten. */
    OK(ashlar_index_store(index, &worker, ASHLAR_TIER_G1, &blocks[0].name, &blocks[1], 1));
    OK(ashlar_index_find(index, locals, 3, &match, 1, &count));
    TRUE(match.depth == (forget ? 2u : 3u));
    OK(ashlar_index_get_sizes(index, &sizes));
    TRUE(sizes.blocks == match.depth && sizes.contents >= sizes.blocks);
    OK(ashlar_index_destroy(index));

    options.forget_behind = 0;
    options.kind = "positional";
    options.jump_size = 1 + (uint32_t)forget;
    options.threads = 1;
    options.queue_capacity = 16;
    OK(ashlar_index_create(&options, &index));
    OK(ashlar_index_store(index, &worker, ASHLAR_TIER_G1, NULL, blocks, 3));
    OK(ashlar_index_settle(index));
    OK(ashlar_index_find(index, locals, 3, &match, 1, &count));
    TRUE(count == 1 && match.depth == 3);
    OK(ashlar_index_destroy(index));
  }
}

/* A field that a newer library may use is refused until then. */
static void walk_reserved(void) {
  ashlar_registry_options registry_options = ASHLAR_REGISTRY_OPTIONS_INIT;
  ashlar_manager_options manager_options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_register_options register_options = ASHLAR_REGISTER_OPTIONS_INIT;
  ashlar_request_options request_options = ASHLAR_REQUEST_OPTIONS_INIT;
  ashlar_sequences_options sequences_options = ASHLAR_SEQUENCES_OPTIONS_INIT;
  ashlar_tiers_options tiers_options = shape();
  ashlar_offload_options down = ASHLAR_OFFLOAD_OPTIONS_INIT;
  ashlar_onboard_options up = ASHLAR_ONBOARD_OPTIONS_INIT;
  ashlar_registry registry;
  ashlar_manager manager;
  ashlar_sequences sequences;
  ashlar_request request;
  ashlar_tiers tiers;
  ashlar_blocks blocks, registered;
  ashlar_hash name;
  registry_options.reserved = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_registry_create(&registry_options, &registry));
  manager_options.block_count = 4;
  manager_options.block_size = BLOCK_SIZE;
  manager_options.reserved = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_manager_create(&manager_options, &manager));
  TRUE(strstr(ashlar_last_error(), "ashlar_manager_options") != NULL);
  manager_options.reserved = 0;
  OK(ashlar_manager_create(&manager_options, &manager));
  OK(ashlar_manager_allocate(manager, 1, &blocks));
  OK(ashlar_blocks_complete(blocks, kByDefault, tokens_of_walk, BLOCK_SIZE, 0, &blocks));
  register_options.reserved2 = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_blocks_register(blocks, &register_options, &registered));
  OK(ashlar_blocks_release(blocks));
  request_options.reserved = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_request_create(manager, tokens_of_walk, 4, &request_options, &request));
  sequences_options.reserved2 = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_sequences_create(manager, &sequences_options, &sequences));
  OK(ashlar_manager_destroy(manager));
  tiers_options.reserved2 = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_create(&tiers_options, &tiers));
  tiers_options.reserved2 = 0;
  tiers_options.g2_blocks = 4;
  OK(ashlar_tiers_create(&tiers_options, &tiers));
  memset(&name, 1, sizeof name);
  down.reserved = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, &name, 1, &down, NULL));
  up.reserved2 = 1;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_onboard(tiers, &name, 1, &up, &blocks));
  OK(ashlar_tiers_destroy(tiers));
}

void walk_options(void) {
  uint32_t i;
  for (i = 0; i < TOKENS; ++i) tokens_of_walk[i] = 3 * i + 1;
  walk_keys();
  walk_managers();
  walk_last_tokens();
  walk_shapes();
  walk_tier_options();
  walk_sequence_below();
  walk_agents();
  walk_index_options();
  walk_reserved();
}
