/* Walks the whole C interface, as a program in C99 uses it. Every function of ashlar_c.h is called, with what
 * it is for and with what it refuses. */
#include "tests/c/walk.h"

void walk_errors(void) {
  const ashlar_hasher no_hasher = {0};
  const ashlar_manager foreign = {12345};
  size_t open = 99;
  TRUE(ashlar_abi_version() == ASHLAR_C_ABI_VERSION);
  TRUE(strchr(ashlar_version(), '.') != NULL);
  TRUE(strcmp(ashlar_status_name(ASHLAR_OK), "ok") == 0);
  TRUE(strcmp(ashlar_status_name(ASHLAR_INVALID_HANDLE), "invalid_handle") == 0);
  TRUE(strcmp(ashlar_status_name(ASHLAR_NOT_READY), "not_ready") == 0);
  TRUE(strcmp(ashlar_status_name(4711), "unknown") == 0);
  TRUE(strcmp(ashlar_last_error(), "") == 0);
  OK(ashlar_open_handles(&open));
  TRUE(open == 0);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_open_handles(NULL));
  TRUE(strstr(ashlar_last_error(), "null") != NULL);
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_hasher_destroy(no_hasher));
  TRUE(strstr(ashlar_last_error(), "zero") != NULL);
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_manager_destroy(foreign));
  TRUE(strstr(ashlar_last_error(), "manager") != NULL);
}

void walk_tokens(void) {
  uint32_t tokens[10];
  ashlar_block_hashes hashes[2];
  ashlar_block_hashes again[2];
  ashlar_hasher_options options = ASHLAR_HASHER_OPTIONS_INIT;
  ashlar_hasher plain, salted, foreign;
  ashlar_fence fence;
  ashlar_hash parsed;
  char text[64];
  size_t count = 0;
  ashlar_multimodal_run image = {0, 0, 0, 0};
  uint64_t fingerprint = 0, chain = 0;
  uint32_t position = 7;
  int passed = 1;
  int i;
  for (i = 0; i < 10; ++i) tokens[i] = (uint32_t)i * 3;

  OK(ashlar_hasher_create(NULL, &plain));
  options.lora = "adapter";
  options.tenant = "tenant";
  OK(ashlar_hasher_create(&options, &salted));
  OK(ashlar_hasher_fingerprint(plain, &fingerprint));
  TRUE(fingerprint != 0);
  EXPECT(ASHLAR_CAPACITY, ashlar_hash_blocks(plain, NULL, tokens, 10, 4, NULL, 0, &count));
  TRUE(count == 2);
  OK(ashlar_hash_blocks(plain, NULL, tokens, 10, 4, hashes, 2, &count));
  OK(ashlar_hash_blocks(plain, &hashes[0], tokens + 4, 4, 4, again, 2, &count));
  TRUE(count == 1 && memcmp(&again[0], &hashes[1], sizeof again[0]) == 0);
  OK(ashlar_hash_blocks(salted, NULL, tokens, 10, 4, again, 2, &count));
  TRUE(memcmp(&again[0].sequence, &hashes[0].sequence, sizeof parsed) != 0);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_hash_blocks(plain, NULL, tokens, 10, 0, hashes, 2, &count));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_hash_blocks(plain, NULL, NULL, 10, 4, hashes, 2, &count));
  image.offset = 5;
  image.length = 2;
  image.mm_hash = 77;
  OK(ashlar_hash_blocks_with_runs(plain, NULL, tokens, 10, 4, &image, 1, again, 2, &count));
  TRUE(count == 2 && memcmp(&again[0], &hashes[0], sizeof again[0]) == 0);
  TRUE(memcmp(&again[1].sequence, &hashes[1].sequence, sizeof parsed) != 0);

  OK(ashlar_hash_parts(&hashes[1].sequence, &position, &chain));
  TRUE(position == 1 && chain != 0);
  OK(ashlar_hash_to_text(&hashes[1].sequence, text, sizeof text, &count));
  TRUE(count == strlen(text) + 1);
  OK(ashlar_hash_from_text(text, &parsed));
  TRUE(memcmp(&parsed, &hashes[1].sequence, sizeof parsed) == 0);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_hash_from_text("no name", &parsed));

  options.scheme = "no such scheme";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_hasher_create(&options, &foreign));
  options.scheme = "keyed128";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_hasher_create(&options, &foreign));
  options.struct_size = 0;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_hasher_create(&options, &foreign));
  TRUE(strstr(ashlar_last_error(), "INIT") != NULL);
  OK(ashlar_hasher_destroy(salted));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_hasher_destroy(salted));
  OK(ashlar_hasher_destroy(plain));

  OK(ashlar_fence_create(&fence));
  OK(ashlar_fence_passed(fence, &passed));
  TRUE(passed == 0);
  OK(ashlar_fence_signal(fence));
  OK(ashlar_fence_signal(fence));
  OK(ashlar_fence_passed(fence, &passed));
  TRUE(passed == 1);
  foreign.id = fence.id;
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_hasher_destroy(foreign));
  OK(ashlar_fence_destroy(fence));
  OK(ashlar_fence_create(&fence));
  OK(ashlar_fence_fail(fence));
  OK(ashlar_fence_signal(fence));
  OK(ashlar_fence_passed(fence, &passed));
  TRUE(passed == 0);
  OK(ashlar_fence_destroy(fence));
}

/* Handlers of atexit() run when much of the program is gone, and may still call the library. */
static void call_at_the_end(void) {
  const uint64_t locals[1] = {1};
  ashlar_index index;
  size_t count = 9;
  if (ashlar_open_handles(NULL) != ASHLAR_INVALID_ARGUMENT || strstr(ashlar_last_error(), "null") == NULL ||
      ashlar_index_create(NULL, &index) != ASHLAR_OK ||
      ashlar_index_find(index, locals, 1, NULL, 0, &count) != ASHLAR_OK || count != 0 ||
      ashlar_index_destroy(index) != ASHLAR_OK) {
    fprintf(stderr, "at the end: %s\n", ashlar_last_error());
    _Exit(1);
  }
}

int main(int argc, char** argv) {
  size_t open = 0;
  if (argc == 3) {
    ask_service(argv[1], argv[2]);
    puts("the service answered");
    return 0;
  }
  TRUE(atexit(call_at_the_end) == 0);
  walk_errors();
  walk_tokens();
  walk_blocks();
  walk_requests();
  walk_sequences();
  walk_index();
  walk_tiers();
  walk_elsewhere();
  walk_options();
  walk_client();
  OK(ashlar_open_handles(&open));
  if (open != 0) {
    fprintf(stderr, "%lu handles were left open\n", (unsigned long)open);
    return 1;
  }
  puts("every call answered as it should");
  return 0;
}
