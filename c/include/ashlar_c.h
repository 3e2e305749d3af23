// Ashlar for C, and for every language that calls C: blocks, requests, sequences, tiers, events, router
// indexes and a client of `ashlar serve`. C99; one header to include, one shared library (libashlar_c.so).
// docs/guide/c.md explains it.
//
// Handles. Every object is a handle: a struct with a number, copied freely. A handle that is zero, was
// destroyed or consumed, or is of another kind is answered with ASHLAR_INVALID_HANDLE, also when another
// thread destroys it at this moment: an object lives until the last call that uses it has returned. Managers
// and tiers are not destroyed while calls use them.
//
// Calls return ASHLAR_OK or why not; ashlar_last_error() has the sentence. A refused call changes nothing,
// and writes no output unless its comment says so. Outputs are pointers; a null one is
// ASHLAR_INVALID_ARGUMENT.
//
// Lists go into buffers of the caller: `capacity` elements at `out`. `count` gets how many there are; if that
// is more than `capacity`, nothing is written to `out` and the call is refused with ASHLAR_CAPACITY. With a
// capacity of 0, `out` may be null.
//
// Options are structs that begin with struct_size. Initialise them with their ..._INIT macro; zero is the
// default of every other field. A null pointer to options stands for the defaults.
//
// Threads. Every function may be called by any thread at any time. Calls with one list of blocks, one request
// or one sequence wait for each other. The library calls back only inside ashlar_manager_drain_events() and
// ashlar_tiers_drain_events(), on the thread that called them and without a lock: the callback may call
// anything.
//
// Times are nanoseconds. Sizes and counts are size_t.
#ifndef ASHLAR_C_H_
#define ASHLAR_C_H_

#include "ashlar_c/base.h"
#include "ashlar_c/blocks.h"
#include "ashlar_c/requests.h"
#include "ashlar_c/routing.h"
#include "ashlar_c/sequences.h"
#include "ashlar_c/tiers.h"

#endif  // ASHLAR_C_H_
