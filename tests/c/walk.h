/* What the parts of the walk share: a check that says what was expected, and where. */
#ifndef ASHLAR_TESTS_C_WALK_H_
#define ASHLAR_TESTS_C_WALK_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ashlar_c.h"

/* The call must return this status, and with a refusal a message. */
#define EXPECT(status, call)                                                                              \
  do {                                                                                                    \
    const ashlar_status got_ = (call);                                                                    \
    if (got_ != (status)) {                                                                               \
      fprintf(stderr, "%s:%d: %s: %s, not %s: %s\n", __FILE__, __LINE__, #call, ashlar_status_name(got_), \
              ashlar_status_name(status), ashlar_last_error());                                           \
      exit(1);                                                                                            \
    }                                                                                                     \
    if (got_ != ASHLAR_OK && ashlar_last_error()[0] == 0) {                                               \
      fprintf(stderr, "%s:%d: %s: refused without a message\n", __FILE__, __LINE__, #call);               \
      exit(1);                                                                                            \
    }                                                                                                     \
  } while (0)
#define OK(call) EXPECT(ASHLAR_OK, call)
#define TRUE(condition)                                                         \
  do {                                                                          \
    if (!(condition)) {                                                         \
      fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                  \
    }                                                                           \
  } while (0)

void walk_errors(void);
void walk_tokens(void);
void walk_blocks(void);
void walk_requests(void);
void walk_sequences(void);
void walk_index(void);
void walk_tiers(void);
void walk_events(const char* folder);
void walk_elsewhere(void);
/* Removes a folder with all that is in it. */
void remove_tree(const char* folder);
void walk_options(void);
void walk_client(void);
void ask_service(const char* url, const char* model);

#endif
