/* The C interface alone: no C++ compiler is asked for. */
#include <ashlar_c.h>
#include <stdio.h>

int main(void) {
  ashlar_manager_options options = ASHLAR_MANAGER_OPTIONS_INIT;
  ashlar_manager manager;
  ashlar_blocks blocks;
  options.block_count = 8;
  if (ashlar_abi_version() != ASHLAR_C_ABI_VERSION) return 1;
  if (ashlar_manager_create(&options, &manager) != ASHLAR_OK) {
    fprintf(stderr, "%s\n", ashlar_last_error());
    return 1;
  }
  if (ashlar_manager_allocate(manager, 3, &blocks) != ASHLAR_OK) return 1;
  if (ashlar_manager_destroy(manager) != ASHLAR_NOT_READY) return 1;
  if (ashlar_blocks_release(blocks) != ASHLAR_OK) return 1;
  return ashlar_manager_destroy(manager) == ASHLAR_OK ? 0 : 1;
}
