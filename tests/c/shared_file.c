/* Stores a block in a G3 file through the C interface, or reads one: tests/python/test_ranks.py opens the same
   file with Python.

   usage: c_shared_file store|load FILE: the block of the tokens 0 to 15, whose bytes are all 0x3c. */
#include <stdio.h>
#include <string.h>

#include "ashlar_c.h"

enum { TOKENS = 16, LAYERS = 2, VALUE = 0x3c };

static int failed(const char* call) {
  fprintf(stderr, "%s: %s\n", call, ashlar_last_error());
  return 1;
}

int main(int argc, char** argv) {
  ashlar_tiers_options options = ASHLAR_TIERS_OPTIONS_INIT;
  ashlar_block_hashes hashes;
  ashlar_tiers tiers;
  ashlar_manager manager;
  ashlar_hasher hasher;
  ashlar_blocks blocks;
  uint32_t tokens[TOKENS], id = 0, i;
  unsigned char* address;
  uint64_t bytes = 0;
  size_t count = 0;
  void* at = NULL;
  const char* paths[1];
  if (argc != 3) return 2;
  paths[0] = argv[2];
  options.num_layers = LAYERS;
  options.num_heads = 2;
  options.head_dim = 8;
  options.dtype = ASHLAR_DTYPE_F16;
  options.model = "shared";
  options.ranks = 2;
  options.rank = 1;
  options.g1_blocks = options.g2_blocks = options.g3_blocks = 8;
  options.g3_paths = paths;
  options.g3_path_count = 1;
  if (ashlar_tiers_create(&options, &tiers) != ASHLAR_OK) return failed("create");
  ashlar_tiers_manager(tiers, &manager);
  ashlar_tiers_hasher(tiers, NULL, &hasher);
  for (i = 0; i < TOKENS; ++i) tokens[i] = i;
  ashlar_hash_blocks(hasher, NULL, tokens, TOKENS, TOKENS, &hashes, 1, &count);
  if (strcmp(argv[1], "store") == 0) {
    if (ashlar_manager_allocate(manager, 1, &blocks) != ASHLAR_OK) return failed("allocate");
    ashlar_blocks_ids(blocks, &id, 1, &count);
    for (i = 0; i < LAYERS * 2; ++i) {
      if (ashlar_tiers_block_memory(tiers, id, i / 2, i % 2, &at, &bytes) != ASHLAR_OK)
        return failed("memory");
      memset(at, VALUE, bytes);
    }
    if (ashlar_blocks_stage(blocks, &hashes, 1, NULL, NULL, &blocks) != ASHLAR_OK) return failed("stage");
    if (ashlar_blocks_register(blocks, NULL, &blocks) != ASHLAR_OK) return failed("register");
    if (ashlar_tiers_drain(tiers, ASHLAR_FOREVER) != ASHLAR_OK) return failed("drain");
  } else {
    if (ashlar_tiers_onboard(tiers, &hashes.sequence, 1, NULL, &blocks) != ASHLAR_OK)
      return failed("onboard");
    ashlar_blocks_ids(blocks, &id, 1, &count);
    if (count == 1 && ashlar_tiers_block_memory(tiers, id, 1, 1, &at, &bytes) != ASHLAR_OK)
      return failed("memory");
    address = at;
    printf("%lu blocks, %02x to %02x\n", (unsigned long)count, count == 0 ? 0 : address[0],
           count == 0 ? 0 : address[bytes - 1]);
  }
  ashlar_blocks_release(blocks);
  ashlar_hasher_destroy(hasher);
  return ashlar_tiers_destroy(tiers) == ASHLAR_OK ? 0 : failed("destroy");
}
