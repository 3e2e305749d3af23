// xxHash with every function static in the file that includes this. Only .cc files include it.
#pragma once
#pragma GCC system_header

#define XXH_INLINE_ALL
#include <xxhash.h>
