/* What a router knows of a worker by its events: from a first list on, and again after events were lost. */
#include "tests/c/walk.h"

#define BLOCK_SIZE 4
#define BLOCKS 4
#define TIERS 5

/* A worker whose events go into an index. */
struct follower {
  ashlar_tiers tiers;
  ashlar_feed feed;
  uint64_t next[TIERS]; /* events with smaller numbers are part of what was listed */
  size_t resyncs;
};

static void apply_events(void* user, const ashlar_event* events, size_t count) {
  const struct follower* its = user;
  OK(ashlar_feed_apply_events(its->feed, 0, events, count));
}

/* What the index has of the worker is forgotten; then it is told what every tier holds. */
static void list_tiers(struct follower* its) {
  ashlar_event all_gone;
  int32_t tier;
  memset(&all_gone, 0, sizeof all_gone);
  all_gone.kind = ASHLAR_EVENT_CLEARED;
  all_gone.tier = 255;
  apply_events(its, &all_gone, 1);
  for (tier = ASHLAR_TIER_G1; tier <= ASHLAR_TIER_G3; ++tier)
    OK(ashlar_tiers_list_stored(its->tiers, tier, apply_events, its, &its->next[tier]));
}

static void follow(void* user, const ashlar_event* events, size_t count) {
  struct follower* its = user;
  size_t i;
  for (i = 0; i < count; ++i) {
    if (events[i].kind == ASHLAR_EVENT_RESYNC) {
      list_tiers(its);
      ++its->resyncs;
    } else if (events[i].sequence >= its->next[events[i].tier]) {
      apply_events(its, &events[i], 1);
    }
  }
}

/* Registers the blocks of a sequence in G1 and copies them to G2. Writes the hashes of their own tokens. */
static void store(ashlar_tiers tiers, uint32_t seed, uint64_t* locals, ashlar_hash* names) {
  ashlar_block_hashes hashes[BLOCKS];
  uint32_t tokens[BLOCKS * BLOCK_SIZE];
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_blocks blocks;
  size_t count = 0, i;
  for (i = 0; i < BLOCKS * BLOCK_SIZE; ++i) tokens[i] = seed + (uint32_t)i;
  OK(ashlar_tiers_manager(tiers, &manager));
  OK(ashlar_tiers_hasher(tiers, NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens, BLOCKS * BLOCK_SIZE, BLOCK_SIZE, hashes, BLOCKS, &count));
  OK(ashlar_hasher_destroy(hasher));
  OK(ashlar_manager_allocate(manager, BLOCKS, &blocks));
  OK(ashlar_blocks_stage(blocks, hashes, BLOCKS, NULL, NULL, &blocks));
  OK(ashlar_blocks_register(blocks, NULL, &blocks));
  OK(ashlar_blocks_release(blocks));
  for (i = 0; i < BLOCKS; ++i) {
    locals[i] = hashes[i].local;
    names[i] = hashes[i].sequence;
  }
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, BLOCKS, NULL, NULL));
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
}

static ashlar_match only_match(ashlar_index index, const uint64_t* locals) {
  ashlar_match match;
  size_t count = 0;
  memset(&match, 0, sizeof match);
  OK(ashlar_index_find(index, locals, BLOCKS, &match, 1, &count));
  return match;
}

static void walk_tiers_events(const char* folder) {
  ashlar_tiers_options options = ASHLAR_TIERS_OPTIONS_INIT;
  ashlar_feed_options feed_options = ASHLAR_FEED_OPTIONS_INIT;
  struct follower its;
  char file[64];
  const char* paths[1];
  uint64_t first[BLOCKS], second[BLOCKS], next = 0;
  ashlar_hash names[BLOCKS];
  ashlar_index index;
  ashlar_manager manager;
  ashlar_event event;
  size_t delivered = 0;
  memset(&its, 0, sizeof its);
  snprintf(file, sizeof file, "%s/g3", folder);
  paths[0] = file;
  options.num_layers = options.num_heads = 1;
  options.head_dim = 8;
  options.block_size = BLOCK_SIZE;
  options.dtype = ASHLAR_DTYPE_F32;
  options.model = "events";
  options.g1_blocks = 2 * BLOCKS;
  options.g2_blocks = 2 * BLOCKS;
  options.g3_blocks = 2 * BLOCKS;
  options.g3_paths = paths;
  options.g3_path_count = 1;
  options.to_g2 = options.to_g3 = ASHLAR_TRIGGER_ON_CALL;
  OK(ashlar_tiers_create(&options, &its.tiers));
  EXPECT(ASHLAR_NOT_READY, ashlar_tiers_list_stored(its.tiers, ASHLAR_TIER_G1, follow, &its, &next));
  OK(ashlar_tiers_destroy(its.tiers));
  options.event_capacity = BLOCKS;
  OK(ashlar_tiers_create(&options, &its.tiers));
  OK(ashlar_index_create(NULL, &index));
  feed_options.worker = 7;
  OK(ashlar_feed_create(index, &feed_options, &its.feed));

  /* It listens late: the list has everything, and the events that wait are part of it. */
  store(its.tiers, 0, first, names);
  OK(ashlar_tiers_offload(its.tiers, ASHLAR_TIER_G3, names, BLOCKS, NULL, NULL));
  OK(ashlar_tiers_drain(its.tiers, ASHLAR_FOREVER));
  list_tiers(&its);
  TRUE(its.next[ASHLAR_TIER_G1] == BLOCKS && its.next[ASHLAR_TIER_G3] == BLOCKS);
  TRUE(only_match(index, first).depth == BLOCKS && only_match(index, first).device_depth == BLOCKS);
  OK(ashlar_tiers_manager(its.tiers, &manager));
  OK(ashlar_manager_reset(manager, NULL)); /* does not fit into the log of G1 any more */
  store(its.tiers, 1000, second, names);
  OK(ashlar_tiers_drain_events(its.tiers, follow, &its, &delivered));
  TRUE(its.resyncs >= 2); /* of G1 and of G2 */
  TRUE(only_match(index, first).depth == BLOCKS && only_match(index, first).device_depth == 0);
  TRUE(only_match(index, first).tiers[ASHLAR_TIER_G2] == BLOCKS);
  TRUE(only_match(index, second).depth == BLOCKS && only_match(index, second).device_depth == BLOCKS);
  OK(ashlar_manager_reset(manager, NULL)); /* single events again */
  OK(ashlar_tiers_drain_events(its.tiers, follow, &its, &delivered));
  TRUE(delivered == BLOCKS && only_match(index, second).device_depth == 0);

  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_list_stored(its.tiers, ASHLAR_TIER_G4, follow, &its, &next));
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_list_stored(its.tiers, ASHLAR_TIER_REMOTE, follow, &its, &next));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_list_stored(its.tiers, 9, follow, &its, &next));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_list_stored(its.tiers, 0, NULL, &its, &next));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_list_stored(its.tiers, 0, follow, &its, NULL));

  /* What a tier no longer has: one, then all of them. A sample of hits changes nothing. */
  memset(&event, 0, sizeof event);
  event.kind = ASHLAR_EVENT_ACCESS;
  event.hash = names[0];
  event.block = 3;
  apply_events(&its, &event, 1);
  TRUE(only_match(index, second).depth == BLOCKS);
  event.kind = ASHLAR_EVENT_CLEARED;
  event.tier = ASHLAR_TIER_G2;
  apply_events(&its, &event, 1);
  TRUE(only_match(index, second).depth == 0 && only_match(index, first).tiers[ASHLAR_TIER_G3] == BLOCKS);
  event.kind = ASHLAR_EVENT_RESYNC;
  apply_events(&its, &event, 1);
  TRUE(only_match(index, first).depth == 0);

  /* A file that was closed has its blocks when it is opened again. */
  OK(ashlar_tiers_shutdown(its.tiers, ASHLAR_FOREVER));
  OK(ashlar_tiers_destroy(its.tiers));
  OK(ashlar_tiers_create(&options, &its.tiers));
  list_tiers(&its);
  TRUE(only_match(index, first).tiers[ASHLAR_TIER_G3] == BLOCKS && only_match(index, second).depth == 0);
  OK(ashlar_tiers_destroy(its.tiers));
  OK(ashlar_feed_destroy(its.feed));
  OK(ashlar_index_destroy(index));
}

struct listed {
  ashlar_event events[BLOCKS];
  size_t count;
  size_t resyncs;
};
static void gather(void* user, const ashlar_event* events, size_t count) {
  struct listed* its = user;
  size_t i;
  for (i = 0; i < count; ++i) {
    if (events[i].kind == ASHLAR_EVENT_RESYNC) ++its->resyncs;
    if (its->count < BLOCKS) its->events[its->count++] = events[i];
  }
}

static void walk_manager_events(void) {
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_register_options registering = ASHLAR_REGISTER_OPTIONS_INIT;
  uint32_t tokens[BLOCKS * BLOCK_SIZE], read[BLOCK_SIZE];
  ashlar_hash names[BLOCKS];
  struct listed its;
  ashlar_manager manager;
  ashlar_blocks blocks;
  uint64_t next = 99;
  size_t count = 0, i;
  const ashlar_hasher by_default = {0};
  for (i = 0; i < BLOCKS * BLOCK_SIZE; ++i) tokens[i] = 5 * (uint32_t)i;
  memset(&its, 0, sizeof its);
  options.block_count = BLOCKS;
  options.block_size = BLOCK_SIZE;
  OK(ashlar_manager_create(&options, &manager));
  EXPECT(ASHLAR_NOT_READY, ashlar_manager_list_stored(manager, gather, &its, &next));
  OK(ashlar_manager_destroy(manager));
  options.event_capacity = 2;
  options.block_bytes = 640;
  options.keep_tokens = 1;
  OK(ashlar_manager_create(&options, &manager));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_list_stored(manager, NULL, &its, &next));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_list_stored(manager, gather, &its, NULL));
  OK(ashlar_manager_list_stored(manager, gather, &its, &next));
  TRUE(next == 0 && its.count == 0);

  OK(ashlar_manager_allocate(manager, BLOCKS, &blocks));
  OK(ashlar_blocks_complete(blocks, by_default, tokens, BLOCKS * BLOCK_SIZE, 0, &blocks));
  registering.metadata = 77;
  OK(ashlar_blocks_register(blocks, &registering, &blocks));
  OK(ashlar_blocks_hashes(blocks, names, BLOCKS, &count));
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_manager_drain_events(manager, gather, &its, &count));
  TRUE(its.resyncs == 1);
  its.count = 0;
  OK(ashlar_manager_list_stored(manager, gather, &its, &next));
  TRUE(next == BLOCKS && its.count == BLOCKS);
  for (i = 0; i < BLOCKS; ++i) {
    const ashlar_event* const one = &its.events[i];
    TRUE(one->kind == ASHLAR_EVENT_STORED && one->tier == ASHLAR_TIER_G1 && one->block < BLOCKS);
    TRUE(memcmp(&one->hash, &names[i], sizeof names[i]) == 0);
    TRUE(one->has_root && memcmp(&one->root, &names[0], sizeof names[0]) == 0);
    TRUE(one->has_parent == (i != 0) && one->has_local && one->bytes == 640 && one->metadata == 77);
    if (i != 0) TRUE(memcmp(&one->parent, &names[i - 1], sizeof names[i]) == 0);
  }

  EXPECT(ASHLAR_CAPACITY, ashlar_manager_tokens_of(manager, &names[1], read, BLOCK_SIZE - 1, &count));
  TRUE(count == BLOCK_SIZE);
  OK(ashlar_manager_tokens_of(manager, &names[1], read, BLOCK_SIZE, &count));
  TRUE(count == BLOCK_SIZE && memcmp(read, &tokens[BLOCK_SIZE], sizeof read) == 0);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_tokens_of(manager, NULL, read, BLOCK_SIZE, &count));
  OK(ashlar_manager_reset(manager, NULL));
  EXPECT(ASHLAR_NOT_FOUND, ashlar_manager_tokens_of(manager, &names[1], read, BLOCK_SIZE, &count));
  OK(ashlar_manager_destroy(manager));
}

void walk_events(const char* folder) {
  walk_manager_events();
  walk_tiers_events(folder);
}
