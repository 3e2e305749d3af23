/* A scheduler in C: one request fills the cache, a second one with the same prompt finds it there. */
#include <ashlar_c.h>
#include <stdio.h>
#include <stdlib.h>

#define PROMPT 100

/* Stops with the library's own words. */
static void must(ashlar_status status, const char* what) {
  if (status == ASHLAR_OK) return;
  fprintf(stderr, "%s: %s: %s\n", what, ashlar_status_name(status), ashlar_last_error());
  exit(1);
}

/* Prefills the prompt in chunks and decodes a few tokens. The engine's work stands in the comments. */
static void run_request(ashlar_manager manager, const uint32_t* prompt, const char* name) {
  ashlar_request_options options = ASHLAR_REQUEST_OPTIONS_INIT;
  ashlar_request_info info = ASHLAR_REQUEST_INFO_INIT;
  ashlar_request request;
  size_t cached = 0, left;
  uint32_t table[16], next = 7;
  size_t blocks = 0;
  int i;

  options.max_tokens = PROMPT + 8;
  must(ashlar_request_create(manager, prompt, PROMPT, &options, &request), "create");
  must(ashlar_request_match(request, &cached), "match");
  printf("%s: %lu tokens cached, %lu to compute\n", name, (unsigned long)cached,
         (unsigned long)(PROMPT - cached));
  for (left = PROMPT - cached; left != 0;) {
    const size_t chunk = left < 64 ? left : 64;
    must(ashlar_request_schedule_prefill(request, chunk, NULL), "schedule a chunk");
    must(ashlar_request_block_table(request, 0, table, 16, &blocks), "block table");
    /* ... the kernels write the KV of these tokens into these blocks ... */
    left -= chunk;
    must(ashlar_request_apply_prefill(request, left == 0 ? &next : NULL, NULL), "apply a chunk");
  }
  for (i = 0; i < 4; ++i) {
    must(ashlar_request_schedule_decode(request, NULL), "schedule a token");
    /* ... the kernels compute one token ... */
    must(ashlar_request_apply_decode(request, next + (uint32_t)i, NULL), "apply a token");
  }
  must(ashlar_request_get_info(request, &info), "info");
  printf("%s: %lu tokens, %lu of them with KV\n", name, (unsigned long)info.tokens,
         (unsigned long)info.computed_tokens);
  must(ashlar_request_destroy(request), "destroy the request"); /* its blocks stay cached */
}

int main(void) {
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_manager manager;
  uint32_t prompt[PROMPT];
  unsigned i;
  for (i = 0; i < PROMPT; ++i) prompt[i] = i * 31 % 997;

  options.block_count = 64;
  options.eviction = "lru";
  must(ashlar_manager_create(&options, &manager), "create a manager");
  run_request(manager, prompt, "first");
  run_request(manager, prompt, "second");
  must(ashlar_manager_destroy(manager), "destroy the manager");
  return 0;
}
