/* Tiers: G1 in memory of the caller, G2, a file and a directory below it. */
#define _XOPEN_SOURCE 700
#include <ftw.h>

#include "tests/c/walk.h"

#define BLOCK_SIZE 4
#define BLOCKS 4
#define LAYERS 2
#define HEADS 2
#define HEAD_DIM 8
#define PIECE (BLOCK_SIZE * HEADS * HEAD_DIM * 2) /* K or V of a layer, bf16 */
#define LAYER_BYTES (BLOCKS * 2 * PIECE)

static int remove_entry(const char* path, const struct stat* status, int kind, struct FTW* place) {
  (void)status;
  (void)kind;
  (void)place;
  return remove(path);
}

void remove_tree(const char* folder) {
  TRUE(nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS) == 0);
}

struct tier_events {
  size_t stored[4];
  ashlar_tiers tiers;
  ashlar_manager manager;
};
/* Calls back into the library, as a callback may. */
static void count_tiers(void* user, const ashlar_event* events, size_t count) {
  struct tier_events* seen = user;
  ashlar_tier_status status = ASHLAR_TIER_STATUS_INIT;
  size_t delivered = 1;
  size_t i;
  OK(ashlar_tiers_status(seen->tiers, ASHLAR_TIER_G2, &status));
  OK(ashlar_tiers_drain_events(seen->tiers, count_tiers, user, &delivered));
  TRUE(delivered == 0);
  OK(ashlar_manager_drain_events(seen->manager, count_tiers, user, &delivered));
  TRUE(delivered == 0);
  EXPECT(ASHLAR_NOT_READY, ashlar_tiers_destroy(seen->tiers));
  TRUE(strstr(ashlar_last_error(), "1 calls") != NULL);
  for (i = 0; i < count; ++i)
    if (events[i].kind == ASHLAR_EVENT_STORED) ++seen->stored[events[i].tier];
}

static ashlar_tier_status tier_status(ashlar_tiers tiers, int32_t tier) {
  ashlar_tier_status status = ASHLAR_TIER_STATUS_INIT;
  OK(ashlar_tiers_status(tiers, tier, &status));
  return status;
}

/* Writes a byte into every piece of a block, or reads it back. */
static void fill_block(ashlar_tiers tiers, uint32_t block, int value) {
  uint32_t layer, outer;
  for (layer = 0; layer < LAYERS; ++layer)
    for (outer = 0; outer < 2; ++outer) {
      void* address = NULL;
      uint64_t bytes = 0;
      OK(ashlar_tiers_block_memory(tiers, block, layer, outer, &address, &bytes));
      TRUE(bytes == PIECE);
      memset(address, value + (int)layer, bytes);
    }
}
static void check_block(ashlar_tiers tiers, uint32_t block, int value) {
  uint32_t layer;
  for (layer = 0; layer < LAYERS; ++layer) {
    void* address = NULL;
    uint64_t bytes = 0;
    OK(ashlar_tiers_block_memory(tiers, block, layer, 1, &address, &bytes));
    TRUE(((unsigned char*)address)[bytes - 1] == value + (int)layer);
  }
}

/* Two blocks with known bytes, registered in G1. */
static void store_blocks(ashlar_tiers tiers, ashlar_manager manager, ashlar_hasher hasher,
                         const uint32_t* tokens, ashlar_hash* names) {
  ashlar_block_hashes hashes[2];
  ashlar_blocks blocks;
  uint32_t ids[2];
  size_t count = 0;
  OK(ashlar_hash_blocks(hasher, NULL, tokens, 2 * BLOCK_SIZE, BLOCK_SIZE, hashes, 2, &count));
  OK(ashlar_manager_allocate(manager, 2, &blocks));
  OK(ashlar_blocks_ids(blocks, ids, 2, &count));
  fill_block(tiers, ids[0], 10);
  fill_block(tiers, ids[1], 20);
  OK(ashlar_blocks_stage(blocks, hashes, 2, NULL, NULL, &blocks));
  OK(ashlar_blocks_register(blocks, NULL, &blocks));
  OK(ashlar_blocks_release(blocks));
  names[0] = hashes[0].sequence;
  names[1] = hashes[1].sequence;
}

static void walk_down(ashlar_tiers tiers, const ashlar_hash* names) {
  ashlar_offload_options options = ASHLAR_OFFLOAD_OPTIONS_INIT;
  ashlar_offload_progress progress = ASHLAR_OFFLOAD_PROGRESS_INIT;
  ashlar_offload offload;
  ashlar_fence fence;
  uint8_t tiers_of[2];
  OK(ashlar_fence_create(&fence));
  options.after = &fence;
  options.after_count = 1;
  options.set_priority = 1;
  options.priority = 90;
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, 2, &options, &offload));
  EXPECT(ASHLAR_TIMEOUT, ashlar_offload_wait(offload, 0, &progress));
  TRUE(progress.total == 2 && progress.done == 0 && progress.arrived == 0);
  OK(ashlar_fence_signal(fence));
  OK(ashlar_offload_wait(offload, ASHLAR_FOREVER, &progress));
  TRUE(progress.done == 1 && progress.arrived + progress.present == 2);
  OK(ashlar_offload_get_progress(offload, &progress));
  OK(ashlar_offload_cancel(offload));
  OK(ashlar_offload_destroy(offload));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_offload_cancel(offload));
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G3, names, 2, NULL, NULL));
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G4, names, 2, NULL, NULL));
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_offload(tiers, 9, names, 2, NULL, NULL));
  options.priority = 200;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, 2, &options, NULL));
  OK(ashlar_tiers_presence(tiers, names, 2, tiers_of));
  TRUE(tiers_of[0] == 0xF && tiers_of[1] == 0xF);
  TRUE(tier_status(tiers, ASHLAR_TIER_G2).arrived == 2 && tier_status(tiers, ASHLAR_TIER_G3).inactive == 2);
  OK(ashlar_fence_destroy(fence));
}

static void walk_up(ashlar_tiers tiers, ashlar_manager manager, const ashlar_hash* names) {
  ashlar_onboard_options options = ASHLAR_ONBOARD_OPTIONS_INIT;
  ashlar_onboard onboard, prefetch;
  ashlar_blocks blocks;
  uint32_t ids[2];
  size_t count = 0;
  int done = 0;
  OK(ashlar_manager_reset(manager, &count));
  TRUE(count == 2);
  OK(ashlar_tiers_onboard(tiers, names, 2, &options, &blocks));
  OK(ashlar_blocks_ids(blocks, ids, 2, &count));
  TRUE(count == 2);
  check_block(tiers, ids[0], 10);
  check_block(tiers, ids[1], 20);
  EXPECT(ASHLAR_NOT_READY, ashlar_tiers_destroy(tiers));
  TRUE(strstr(ashlar_last_error(), "1 lists") != NULL);
  OK(ashlar_blocks_release(blocks));
  TRUE(tier_status(tiers, ASHLAR_TIER_G2).onboarded == 2);

  /* From the file, in the background. */
  OK(ashlar_manager_reset(manager, NULL));
  OK(ashlar_tiers_reset(tiers, ASHLAR_TIER_G2, ASHLAR_FOREVER, &count));
  TRUE(count == 2);
  OK(ashlar_tiers_prefetch(tiers, names, 2, NULL, &prefetch));
  OK(ashlar_onboard_wait(prefetch, ASHLAR_FOREVER, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count == 0);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_onboard_destroy(prefetch));
  OK(ashlar_tiers_onboard_async(tiers, names, 2, NULL, &onboard));
  OK(ashlar_onboard_wait(onboard, ASHLAR_FOREVER, &blocks));
  OK(ashlar_onboard_done(onboard, &done));
  TRUE(done == 1);
  OK(ashlar_blocks_ids(blocks, ids, 2, &count));
  TRUE(count == 2);
  check_block(tiers, ids[1], 20);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_onboard_cancel(onboard));
  OK(ashlar_onboard_destroy(onboard));
  options.compute_tokens_per_second = -1;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_onboard(tiers, names, 2, &options, &blocks));
}

/* A request that finds what tiers below have. */
static void walk_request_below(ashlar_tiers tiers, ashlar_manager manager, const uint32_t* tokens) {
  ashlar_request request;
  size_t cached = 0;
  int pending = 0, ready = 0;
  OK(ashlar_manager_reset(manager, NULL));
  OK(ashlar_request_create(manager, tokens, 2 * BLOCK_SIZE + 1, NULL, &request));
  OK(ashlar_request_begin_match(request, &cached, &pending));
  TRUE(pending == 1);
  OK(ashlar_request_match_ready(request, &ready));
  OK(ashlar_request_finish_match(request, &cached));
  TRUE(cached == 2 * BLOCK_SIZE);
  OK(ashlar_tiers_shutdown(tiers, ASHLAR_FOREVER));
  EXPECT(ASHLAR_NOT_READY, ashlar_tiers_destroy(tiers));
  OK(ashlar_request_destroy(request));
}

void walk_tiers(void) {
  ashlar_tiers_options options = ASHLAR_TIERS_OPTIONS_INIT;
  static unsigned char memory[LAYERS][LAYER_BYTES];
  ashlar_region regions[LAYERS];
  struct tier_events seen = {{0, 0, 0, 0}, {0}, {0}};
  char folder[] = "/tmp/ashlar-c-XXXXXX";
  char file[64];
  const char* paths[1];
  const char* directories[1];
  uint32_t tokens[2 * BLOCK_SIZE + 1];
  ashlar_hash names[2];
  ashlar_tiers tiers;
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_pin pin;
  ashlar_tier_status status = ASHLAR_TIER_STATUS_INIT;
  void* address = NULL;
  size_t count = 0;
  int active = 0;
  unsigned i;
  for (i = 0; i < 2 * BLOCK_SIZE + 1; ++i) tokens[i] = i * 7;
  TRUE(mkdtemp(folder) != NULL);
  snprintf(file, sizeof file, "%s/g3", folder);
  paths[0] = file;
  directories[0] = folder;

  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(NULL, &tiers));
  options.num_layers = LAYERS;
  options.num_heads = HEADS;
  options.head_dim = HEAD_DIM;
  options.block_size = BLOCK_SIZE;
  options.dtype = ASHLAR_DTYPE_BF16;
  options.model = "walk";
  options.g1_blocks = BLOCKS;
  OK(ashlar_tiers_create(&options, &tiers)); /* memory of its own, and nothing below */
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_status(tiers, ASHLAR_TIER_G2, &status));
  OK(ashlar_tiers_destroy(tiers));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_tiers_destroy(tiers));

  for (i = 0; i < LAYERS; ++i) {
    regions[i].address = memory[i];
    regions[i].bytes = LAYER_BYTES;
  }
  options.g1_regions = regions;
  options.g1_region_count = LAYERS;
  options.g1_order = "no such order";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_tiers_create(&options, &tiers));
  options.g1_order = "block_first_nhd";
  options.g2_blocks = 4;
  options.to_g2 = ASHLAR_TRIGGER_ON_CALL;
  options.g3_blocks = 8;
  options.to_g3 = ASHLAR_TRIGGER_ON_CALL;
  options.g3_paths = paths;
  options.g3_path_count = 1;
  options.g4_blocks = 8;
  options.to_g4 = ASHLAR_TRIGGER_ON_CALL;
  options.g4_directories = directories;
  options.g4_directory_count = 1;
  options.event_capacity = 64;
  options.max_pins = 4;
  options.dtype = 99;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &tiers));
  options.dtype = ASHLAR_DTYPE_BF16;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_manager(tiers, &manager));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_manager_destroy(manager));
  OK(ashlar_tiers_hasher(tiers, NULL, &hasher));
  OK(ashlar_tiers_block_memory(tiers, 1, 1, 1, &address, NULL));
  TRUE((unsigned char*)address == memory[1] + 3 * PIECE);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_block_memory(tiers, BLOCKS, 0, 0, &address, NULL));

  store_blocks(tiers, manager, hasher, tokens, names);
  walk_down(tiers, names);
  OK(ashlar_tiers_pin(tiers, names, 2, 1000000000000u, &pin));
  OK(ashlar_pin_active(pin, &active));
  TRUE(active == 1);
  OK(ashlar_pin_release(pin));
  OK(ashlar_tiers_set_retention(tiers, names, 2, 70, ASHLAR_FOREVER, &count));
  TRUE(count == 2);
  walk_up(tiers, manager, names);
  walk_request_below(tiers, manager, tokens);
  seen.tiers = tiers;
  seen.manager = manager;
  OK(ashlar_tiers_drain_events(tiers, count_tiers, &seen, &count));
  TRUE(seen.stored[0] == 8 && seen.stored[1] == 4 && seen.stored[2] == 2 && seen.stored[3] == 2);
  OK(ashlar_tiers_reset_blocks(tiers, names, 2, ASHLAR_FOREVER));
  TRUE(tier_status(tiers, ASHLAR_TIER_G3).inactive == 0);
  EXPECT(ASHLAR_CANCELLED, ashlar_tiers_offload(tiers, ASHLAR_TIER_G2, names, 2, NULL, NULL));
  OK(ashlar_hasher_destroy(hasher));
  OK(ashlar_tiers_destroy(tiers));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_manager_can_allocate(manager, 1));
  remove(file);
  walk_events(folder);
  remove_tree(folder);
}
