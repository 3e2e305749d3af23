// Part of ashlar_c.h: versions, errors, handles, tokens and hashes, fences.
#ifndef ASHLAR_C_BASE_H_
#define ASHLAR_C_BASE_H_

#include <stddef.h>
#include <stdint.h>

#if defined(ASHLAR_C_BUILD)
#define ASHLAR_API __attribute__((visibility("default")))
#else
#define ASHLAR_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

// ---- Versions and errors

// Changes when a program that was compiled with an earlier header would no longer run.
#define ASHLAR_C_ABI_VERSION 1

// As a timeout: no limit.
#define ASHLAR_FOREVER UINT64_MAX

typedef int32_t ashlar_status;
enum {
  ASHLAR_OK = 0,
  ASHLAR_INVALID_ARGUMENT = 1,  // the call itself is wrong; repeating it cannot help
  ASHLAR_NOT_FOUND = 2,         // nothing by that name
  ASHLAR_ALREADY_EXISTS = 3,    // that name is taken by something else
  ASHLAR_CAPACITY = 4,          // no room or memory now; less, or later, may succeed
  ASHLAR_NOT_READY = 5,         // a condition that the call needs does not hold yet
  ASHLAR_TIMEOUT = 6,           // the time was over first
  ASHLAR_CANCELLED = 7,         // the work was stopped
  ASHLAR_CORRUPTION = 8,        // bytes do not agree with their checksum or form
  ASHLAR_IO = 9,                // the operating system or a device reported a failure
  ASHLAR_UNAVAILABLE = 10,      // a service cannot be reached
  ASHLAR_UNSUPPORTED = 11,      // this build or machine cannot do it
  ASHLAR_INTERNAL = 12,         // a bug in Ashlar
  ASHLAR_INVALID_HANDLE = 13    // zero, destroyed, consumed, or of another kind
};

// The ABI version of the library, to compare with ASHLAR_C_ABI_VERSION of the header.
ASHLAR_API uint32_t ashlar_abi_version(void);
// The version of Ashlar, as "0.1.0". Never freed.
ASHLAR_API const char* ashlar_version(void);
// The name of a status, as "invalid_handle"; "unknown" for other numbers. Never freed.
ASHLAR_API const char* ashlar_status_name(ashlar_status status);
// What was wrong with the last refused call of this thread, and what to do, in at most 1023 bytes of UTF-8;
// "" before the first. Valid until this thread's next refused call.
ASHLAR_API const char* ashlar_last_error(void);
// How many handles are open in the process: to find those that were forgotten.
ASHLAR_API ashlar_status ashlar_open_handles(size_t* count);

// ---- Handles

typedef struct ashlar_hasher {
  uint64_t id;
} ashlar_hasher;
typedef struct ashlar_registry {
  uint64_t id;
} ashlar_registry;
typedef struct ashlar_manager {
  uint64_t id;
} ashlar_manager;
typedef struct ashlar_blocks {
  uint64_t id;
} ashlar_blocks;
typedef struct ashlar_pin {
  uint64_t id;
} ashlar_pin;
typedef struct ashlar_fence {
  uint64_t id;
} ashlar_fence;

// ---- Tokens and hashes

// The name of a block: its tokens and all before them. 128 bits.
typedef struct ashlar_hash {
  uint64_t hi;
  uint64_t lo;
} ashlar_hash;

// Tells apart what has equal names; comparable within one key. Zero: unknown.
typedef struct ashlar_digest {
  uint64_t hi;
  uint64_t lo;
} ashlar_digest;

// The hashes of one block: of its own tokens, its name, and the digest of its prefix.
typedef struct ashlar_block_hashes {
  uint64_t local;
  ashlar_hash sequence;
  ashlar_digest prefix;
} ashlar_block_hashes;

typedef struct ashlar_hasher_options {
  uint32_t struct_size;
  uint32_t key_size;   // bytes of `key`: 16, or 0
  const char* scheme;  // "xxh3_chain" (null), "xxh64_int64" or "keyed128"
  const uint8_t* key;  // of keyed128, from a cryptographic source
  const char* lora;    // the adapter; null: none
  const char* tenant;  // the cache salt; null: none
} ashlar_hasher_options;
#define ASHLAR_HASHER_OPTIONS_INIT {.struct_size = sizeof(ashlar_hasher_options)}

// How tokens become names. Errors: ASHLAR_NOT_FOUND: the scheme; ASHLAR_INVALID_ARGUMENT: the key.
ASHLAR_API ashlar_status ashlar_hasher_create(const ashlar_hasher_options* options, ashlar_hasher* hasher);
// Objects that were made with the hasher keep what they need of it.
ASHLAR_API ashlar_status ashlar_hasher_destroy(ashlar_hasher hasher);
// Identifies the scheme and its key. Processes with different fingerprints never share blocks.
ASHLAR_API ashlar_status ashlar_hasher_fingerprint(ashlar_hasher hasher, uint64_t* fingerprint);
// Hashes every full block of `tokens`; tokens after the last full block are left out. `parent` is the block
// before them; null at the start of a sequence. Errors: ASHLAR_CAPACITY; ASHLAR_INVALID_ARGUMENT: a block
// size outside 1 to 65536, or a parent of another scheme.
ASHLAR_API ashlar_status ashlar_hash_blocks(ashlar_hasher hasher, const ashlar_block_hashes* parent,
                                            const uint32_t* tokens, size_t token_count, uint32_t block_size,
                                            ashlar_block_hashes* out, size_t capacity, size_t* count);
// A run of placeholder tokens that stands for one image, sound or other item. The blocks that it touches, and
// all after them, are named by its content too.
typedef struct ashlar_multimodal_run {
  uint64_t mm_hash;  // identifies the item's content
  uint64_t offset;   // the first token, from the start of the sequence
  uint32_t length;   // in tokens
  uint32_t reserved;
} ashlar_multimodal_run;
// ashlar_hash_blocks() where `runs` of the sequence stand for other items: by offset, without overlap; they
// may begin before `tokens` and end after them. Errors: also ASHLAR_INVALID_ARGUMENT with the run.
ASHLAR_API ashlar_status ashlar_hash_blocks_with_runs(ashlar_hasher hasher, const ashlar_block_hashes* parent,
                                                      const uint32_t* tokens, size_t token_count,
                                                      uint32_t block_size, const ashlar_multimodal_run* runs,
                                                      size_t run_count, ashlar_block_hashes* out,
                                                      size_t capacity, size_t* count);
// The position of a block in its sequence, and its 64-bit chain hash, by its name. Either output may be null.
ASHLAR_API ashlar_status ashlar_hash_parts(const ashlar_hash* hash, uint32_t* position, uint64_t* chain);
// The name as text with a zero at its end, which `count` includes.
ASHLAR_API ashlar_status ashlar_hash_to_text(const ashlar_hash* hash, char* out, size_t capacity,
                                             size_t* count);
// The opposite. Errors: ASHLAR_INVALID_ARGUMENT.
ASHLAR_API ashlar_status ashlar_hash_from_text(const char* text, ashlar_hash* hash);

// ---- Fences

// A moment that a device reports, once: the end of a kernel that writes or reads blocks.
ASHLAR_API ashlar_status ashlar_fence_create(ashlar_fence* fence);
// Reports the moment. A second call has no effect.
ASHLAR_API ashlar_status ashlar_fence_signal(ashlar_fence fence);
// Reports that the work has ended, or was never launched, and its blocks are not written: what waits returns,
// and blocks that were registered with the fence lose their names. The fence never passes.
ASHLAR_API ashlar_status ashlar_fence_fail(ashlar_fence fence);
// 1 if the moment was reported.
ASHLAR_API ashlar_status ashlar_fence_passed(ashlar_fence fence, int* passed);
// Calls that were given the fence keep it. One that was never signalled never passes: what waits for it is
// not used again, and keeps its manager from being destroyed; blocks that were registered with it lose their
// names.
ASHLAR_API ashlar_status ashlar_fence_destroy(ashlar_fence fence);

#ifdef __cplusplus
}
#endif

#endif  // ASHLAR_C_BASE_H_
