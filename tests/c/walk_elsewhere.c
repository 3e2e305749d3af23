/* Blocks elsewhere: layer by layer, on volumes, with other agents, and in the memory of a GPU. */
#define _XOPEN_SOURCE 700
#include <unistd.h>

#include "tests/c/walk.h"

#define BLOCK_SIZE 4
#define BLOCKS 4
#define LAYERS 2

static ashlar_tiers_options shape(void) {
  ashlar_tiers_options options = ASHLAR_TIERS_OPTIONS_INIT;
  options.num_layers = LAYERS;
  options.num_heads = 2;
  options.head_dim = 8;
  options.block_size = BLOCK_SIZE;
  options.dtype = ASHLAR_DTYPE_BF16;
  options.model = "elsewhere";
  options.g1_blocks = options.g2_blocks = BLOCKS;
  return options;
}

/* Two blocks of these tokens, in G1 and G2. */
static void store(ashlar_tiers tiers, const uint32_t* tokens, ashlar_hash* names) {
  ashlar_block_hashes hashes[2];
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_blocks blocks;
  size_t count = 0;
  OK(ashlar_tiers_manager(tiers, &manager));
  OK(ashlar_tiers_hasher(tiers, NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens, 2 * BLOCK_SIZE, BLOCK_SIZE, hashes, 2, &count));
  OK(ashlar_manager_allocate(manager, 2, &blocks));
  OK(ashlar_blocks_stage(blocks, hashes, 2, NULL, NULL, &blocks));
  OK(ashlar_blocks_register(blocks, NULL, &blocks));
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  OK(ashlar_hasher_destroy(hasher));
  names[0] = hashes[0].sequence;
  names[1] = hashes[1].sequence;
}

static void walk_layers(const uint32_t* tokens) {
  const ashlar_tiers_options options = shape();
  ashlar_request_options request_options = ASHLAR_REQUEST_OPTIONS_INIT;
  ashlar_onboard_options up = ASHLAR_ONBOARD_OPTIONS_INIT;
  ashlar_hash names[2];
  uint32_t ids[BLOCKS];
  ashlar_tiers tiers;
  ashlar_manager manager;
  ashlar_onboard onboard;
  ashlar_request request;
  ashlar_blocks blocks;
  size_t count = 0;
  uint32_t layer;
  int pending = 0;
  OK(ashlar_tiers_create(&options, &tiers));
  OK(ashlar_tiers_manager(tiers, &manager));
  store(tiers, tokens, names);
  OK(ashlar_manager_reset(manager, NULL));
  OK(ashlar_tiers_onboard_async(tiers, names, 2, NULL, &onboard));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_onboard_wait_layer(onboard, 0, 0, ids, BLOCKS, &count));
  OK(ashlar_onboard_wait(onboard, ASHLAR_FOREVER, &blocks));
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_onboard_destroy(onboard));

  OK(ashlar_manager_reset(manager, NULL));
  up.by_layer = 1;
  OK(ashlar_tiers_onboard_async(tiers, names, 2, &up, &onboard));
  for (layer = 0; layer < LAYERS; ++layer) {
    OK(ashlar_onboard_wait_layer(onboard, layer, ASHLAR_FOREVER, ids, BLOCKS, &count));
    TRUE(count == 2 && ids[0] < BLOCKS && ids[1] < BLOCKS && ids[0] != ids[1]);
  }
  EXPECT(ASHLAR_CAPACITY, ashlar_onboard_wait_layer(onboard, 0, ASHLAR_FOREVER, ids, 1, &count));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_onboard_wait_layer(onboard, LAYERS, 0, ids, BLOCKS, &count));
  OK(ashlar_onboard_wait(onboard, ASHLAR_FOREVER, &blocks));
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_onboard_destroy(onboard));

  OK(ashlar_manager_reset(manager, NULL));
  request_options.onboard_by_layer = 1;
  OK(ashlar_request_create(manager, tokens, 2 * BLOCK_SIZE + 1, &request_options, &request));
  EXPECT(ASHLAR_NOT_READY, ashlar_request_wait_layer(request, 0, 0, ids, BLOCKS, &count));
  OK(ashlar_request_begin_match(request, NULL, &pending));
  TRUE(pending == 1);
  for (layer = 0; layer < LAYERS; ++layer) {
    OK(ashlar_request_wait_layer(request, layer, ASHLAR_FOREVER, ids, BLOCKS, &count));
    TRUE(count == 2);
  }
  OK(ashlar_request_finish_match(request, &count));
  TRUE(count == 2 * BLOCK_SIZE);
  OK(ashlar_request_destroy(request));
  OK(ashlar_tiers_destroy(tiers));
}

static void walk_volumes(const uint32_t* tokens) {
  ashlar_tiers_options options = shape();
  ashlar_volume_options volume = ASHLAR_VOLUME_OPTIONS_INIT;
  const char* unknown[1] = {"no such option"};
  const char* values[1] = {"1"};
  char folder[] = "/tmp/ashlar-c-XXXXXX";
  ashlar_hash names[2];
  ashlar_tiers tiers;
  ashlar_status status;
  size_t count = 0;
  TRUE(mkdtemp(folder) != NULL);
  OK(ashlar_tiers_create(&options, &tiers));
  volume.name = "shared";
  volume.kind = "directory";
  volume.location = folder;
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_register_volume(tiers, &volume)); /* no G4 */
  OK(ashlar_tiers_destroy(tiers));
  options.g4_blocks = 8;
  options.to_g4 = ASHLAR_TRIGGER_ON_CALL;
  OK(ashlar_tiers_create(&options, &tiers));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_register_volume(tiers, NULL));
  volume.kind = "tape";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_tiers_register_volume(tiers, &volume));
  /* Built in, they refuse the option; else they say that they are not. */
  volume.option_names = unknown;
  volume.option_values = values;
  volume.option_count = 1;
  volume.kind = "s3";
  status = ashlar_tiers_register_volume(tiers, &volume);
  TRUE(status == ASHLAR_INVALID_ARGUMENT ||
       (status == ASHLAR_UNSUPPORTED && strstr(ashlar_last_error(), "not built in") != NULL));
  volume.kind = "redis";
  status = ashlar_tiers_register_volume(tiers, &volume);
  TRUE(status == ASHLAR_INVALID_ARGUMENT ||
       (status == ASHLAR_UNSUPPORTED && strstr(ashlar_last_error(), "not built in") != NULL));
  volume.kind = "directory";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_register_volume(tiers, &volume));
  volume.option_count = 0;
  OK(ashlar_tiers_register_volume(tiers, &volume));
  EXPECT(ASHLAR_ALREADY_EXISTS, ashlar_tiers_register_volume(tiers, &volume));
  store(tiers, tokens, names);
  OK(ashlar_tiers_offload(tiers, ASHLAR_TIER_G4, names, 2, NULL, NULL));
  OK(ashlar_tiers_drain(tiers, ASHLAR_FOREVER));
  OK(ashlar_tiers_reset(tiers, ASHLAR_TIER_G4, ASHLAR_FOREVER, &count));
  TRUE(count == 2);
  OK(ashlar_tiers_unregister_volume(tiers, "shared", ASHLAR_FOREVER, &count));
  TRUE(count == 0);
  EXPECT(ASHLAR_NOT_FOUND, ashlar_tiers_unregister_volume(tiers, "shared", ASHLAR_FOREVER, NULL));
  OK(ashlar_tiers_destroy(tiers));
  remove_tree(folder);
}

/* Whether this process has a library. */
static int is_loaded(const char* name) {
  char line[1024];
  int found = 0;
  FILE* const maps = fopen("/proc/self/maps", "r");
  if (maps == NULL) return 0;
  while (fgets(line, sizeof line, maps) != NULL) found |= strstr(line, name) != NULL;
  fclose(maps);
  return found;
}

/* Two agents of one process: the second brings what the first has in G2. */
static void walk_remote(const uint32_t* tokens, const char* ucx) {
  ashlar_tiers_options options = shape();
  ashlar_status status;
  ashlar_tiers holder, reader;
  ashlar_hash names[2], same[2];
  ashlar_blocks blocks;
  ashlar_hasher hasher;
  ashlar_block_hashes hashes[2];
  const char* peers[1];
  char address[128];
  size_t count = 0;
  ashlar_tier_status seen = ASHLAR_TIER_STATUS_INIT;
  options.remote_name = "holder";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &holder)); /* no remote_listen */
  options.remote_ucx = ucx;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &holder)); /* still none */
  options.remote_listen = "127.0.0.1:0";
  status = ashlar_tiers_create(&options, &holder);
  if (ucx != NULL && status == ASHLAR_UNSUPPORTED) {
    printf("no UCX: %s\n", ashlar_last_error());
    return;
  }
  OK(status);
  OK(ashlar_tiers_remote_address(holder, address, sizeof address, &count));
  TRUE(count == strlen(address) + 1 && strchr(address, ':') != NULL);
  store(holder, tokens, names);
  peers[0] = address;
  options.remote_name = "reader";
  options.remote_peers = peers;
  options.remote_peer_count = 1;
  options.remote_no_serve = 1;
  OK(ashlar_tiers_create(&options, &reader));
  OK(ashlar_tiers_hasher(reader, NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens, 2 * BLOCK_SIZE, BLOCK_SIZE, hashes, 2, &count));
  same[0] = hashes[0].sequence;
  same[1] = hashes[1].sequence;
  TRUE(memcmp(names, same, sizeof names) == 0);
  OK(ashlar_hasher_destroy(hasher));
  OK(ashlar_tiers_onboard(reader, names, 2, NULL, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count == 2);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_tiers_status(reader, ASHLAR_TIER_REMOTE, &seen));
  TRUE(seen.hits == 2 && seen.onboarded == 2 && seen.failed == 0);
  OK(ashlar_tiers_destroy(reader));
  if (ucx != NULL) {
    options.remote_ucx = "pigeon";
    EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_tiers_create(&options, &reader));
  }
  OK(ashlar_tiers_destroy(holder));
  options = shape();
  OK(ashlar_tiers_create(&options, &holder));
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_remote_address(holder, address, sizeof address, &count));
  EXPECT(ASHLAR_UNSUPPORTED, ashlar_tiers_status(holder, ASHLAR_TIER_REMOTE, &seen));
  OK(ashlar_tiers_destroy(holder));
}

/* Where CUDA is built in and there is a GPU; else the answer says which is missing. */
static void walk_device(const uint32_t* tokens) {
  ashlar_tiers_options options = shape();
  ashlar_tiers tiers, beside;
  ashlar_manager manager;
  ashlar_region region;
  ashlar_hash names[2];
  ashlar_blocks blocks;
  ashlar_status status;
  void* address = NULL;
  uint64_t piece = 0;
  size_t count = 0;
  options.g1_memory_kind = ASHLAR_MEMORY_DEVICE;
  status = ashlar_tiers_create(&options, &tiers);
  if (status != ASHLAR_OK) {
    TRUE(status == ASHLAR_UNSUPPORTED || status == ASHLAR_UNAVAILABLE);
    printf("no memory of a GPU: %s\n", ashlar_last_error());
    return;
  }
  /* The same memory as a region of the caller's: nothing is computed, so both may have it. */
  OK(ashlar_tiers_block_memory(tiers, 0, 0, 0, &address, &piece));
  region.address = address;
  region.bytes = BLOCKS * LAYERS * 2 * piece;
  options.g1_regions = &region;
  options.g1_region_count = 1;
  OK(ashlar_tiers_create(&options, &beside));
  store(beside, tokens, names);
  OK(ashlar_tiers_manager(beside, &manager));
  OK(ashlar_manager_reset(manager, NULL));
  OK(ashlar_tiers_onboard(beside, names, 2, NULL, &blocks));
  OK(ashlar_blocks_info(blocks, &count, NULL));
  TRUE(count == 2);
  OK(ashlar_blocks_release(blocks));
  OK(ashlar_tiers_destroy(beside));
  OK(ashlar_tiers_destroy(tiers));
}

void walk_elsewhere(void) {
  uint32_t tokens[2 * BLOCK_SIZE + 1];
  unsigned i;
  for (i = 0; i < 2 * BLOCK_SIZE + 1; ++i) tokens[i] = i * 11;
  walk_layers(tokens);
  walk_volumes(tokens);
  walk_remote(tokens, NULL);
  TRUE(!is_loaded("libucs.so")); /* it takes signals over, so it comes only when it is asked for */
  walk_remote(tokens, "tcp");
  walk_device(tokens);
}
