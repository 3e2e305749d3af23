/* Indexes and feeds. */
#include "tests/c/walk.h"

static ashlar_index_sizes sizes_of(ashlar_index index) {
  ashlar_index_sizes sizes = ASHLAR_INDEX_SIZES_INIT;
  OK(ashlar_index_get_sizes(index, &sizes));
  return sizes;
}

static void walk_kind(const char* kind, uint32_t threads) {
  ashlar_index_options options = ASHLAR_INDEX_OPTIONS_INIT;
  const ashlar_worker first = {1, 0, 0}, second = {2, 3, 0};
  const ashlar_stored_block head[3] = {{11, 101}, {12, 102}, {13, 103}};
  const ashlar_stored_block tail[1] = {{14, 104}};
  const uint64_t locals[5] = {11, 12, 13, 14, 15};
  const uint64_t parent = 103, unknown = 999, names[2] = {102, 777};
  ashlar_match matches[4];
  ashlar_index index;
  size_t count = 0, removed = 0;
  uint32_t depth = 0;
  options.kind = kind;
  options.threads = threads;
  OK(ashlar_index_create(&options, &index));
  OK(ashlar_index_store(index, &first, ASHLAR_TIER_G1, NULL, head, 3));
  OK(ashlar_index_store(index, &first, ASHLAR_TIER_G2, &parent, tail, 1));
  OK(ashlar_index_store(index, &second, ASHLAR_TIER_G1, NULL, head, 2));
  OK(ashlar_index_settle(index));
  if (threads == 0) {
    EXPECT(ASHLAR_NOT_FOUND, ashlar_index_store(index, &first, ASHLAR_TIER_G1, &unknown, tail, 1));
    EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_index_store(index, &first, ASHLAR_TIER_G1, NULL, head, 0));
    EXPECT(ASHLAR_ALREADY_EXISTS, ashlar_index_store(index, &first, ASHLAR_TIER_G1, &parent, head, 1));
  }
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_index_store(index, &first, 5, NULL, head, 1));
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_index_store(index, NULL, 0, NULL, head, 1));
  EXPECT(ASHLAR_CAPACITY, ashlar_index_find(index, locals, 5, matches, 1, &count));
  TRUE(count == 2);
  OK(ashlar_index_find(index, locals, 5, matches, 4, &count));
  TRUE(count == 2);
  depth = matches[0].worker.id == 1 ? matches[0].depth : matches[1].depth;
  TRUE(depth == 4);
  depth = matches[0].worker.id == 1 ? matches[0].tiers[ASHLAR_TIER_G2] : matches[1].tiers[ASHLAR_TIER_G2];
  TRUE(depth == 1);
  OK(ashlar_index_remove(index, &first, ASHLAR_TIER_G1, names, 2, &removed));
  OK(ashlar_index_settle(index));
  if (threads == 0) TRUE(removed == 1);
  OK(ashlar_index_clear(index, &first));
  OK(ashlar_index_settle(index));
  OK(ashlar_index_find(index, locals, 5, matches, 4, &count));
  TRUE(count == 1 && matches[0].worker.rank == 3 && matches[0].depth == 2 && matches[0].device_depth == 2);
  OK(ashlar_index_remove_worker(index, 2));
  OK(ashlar_index_settle(index));
  TRUE(sizes_of(index).workers == 0 && sizes_of(index).blocks == 0);
  OK(ashlar_index_destroy(index));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_index_clear(index, &first));
}

/* [timestamp, [{type, block_hashes, parent_block_hash, token_ids, block_size}], rank] */
static const unsigned char kStored[] = {
    0x93, 0xca, 0x3f, 0x80, 0x00, 0x00, 0x91, 0x85, 0xa4, 't',  'y',  'p',  'e',  0xab, 'B',  'l',
    'o',  'c',  'k',  'S',  't',  'o',  'r',  'e',  'd',  0xac, 'b',  'l',  'o',  'c',  'k',  '_',
    'h',  'a',  's',  'h',  'e',  's',  0x92, 0xcd, 0x01, 0x00, 0xcd, 0x01, 0x01, 0xb1, 'p',  'a',
    'r',  'e',  'n',  't',  '_',  'b',  'l',  'o',  'c',  'k',  '_',  'h',  'a',  's',  'h',  0xc0,
    0xa9, 't',  'o',  'k',  'e',  'n',  '_',  'i',  'd',  's',  0x94, 0x01, 0x02, 0x03, 0x04, 0xaa,
    'b',  'l',  'o',  'c',  'k',  '_',  's',  'i',  'z',  'e',  0x02, 0x00};

static void walk_feed(void) {
  ashlar_feed_options options = ASHLAR_FEED_OPTIONS_INIT;
  const uint32_t tokens[4] = {1, 2, 3, 4};
  ashlar_block_hashes hashes[2];
  ashlar_hasher hasher;
  ashlar_index index;
  ashlar_feed feed, own;
  ashlar_match match;
  ashlar_event event;
  uint64_t locals[2];
  size_t count = 0;
  OK(ashlar_index_create(NULL, &index));
  options.worker = 42;
  options.scheme = "no such scheme";
  EXPECT(ASHLAR_NOT_FOUND, ashlar_feed_create(index, &options, &feed));
  options.scheme = NULL;
  OK(ashlar_feed_create(index, &options, &feed));
  OK(ashlar_feed_apply_message(feed, kStored, sizeof kStored, &count));
  TRUE(count == 2);
  EXPECT(ASHLAR_CORRUPTION, ashlar_feed_apply_message(feed, kStored, sizeof kStored - 3, &count));
  OK(ashlar_hasher_create(NULL, &hasher));
  OK(ashlar_hash_blocks(hasher, NULL, tokens, 4, 2, hashes, 2, &count));
  locals[0] = hashes[0].local;
  locals[1] = hashes[1].local;
  OK(ashlar_index_find(index, locals, 2, &match, 1, &count));
  TRUE(count == 1 && match.worker.id == 42 && match.depth == 2);
  memset(&event, 0, sizeof event);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_feed_apply_events(feed, 0, &event, 1));
  OK(ashlar_feed_resync(feed));
  OK(ashlar_index_find(index, locals, 2, &match, 1, &count));
  TRUE(count == 0);

  /* Events of a manager, as its callback gets them. */
  options.worker = 43;
  OK(ashlar_feed_create(index, &options, &own));
  event.hash = hashes[0].sequence;
  event.local = hashes[0].local;
  event.has_local = 2;
  event.kind = 9;
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_feed_apply_events(own, 1, &event, 1));
  event.kind = ASHLAR_EVENT_STORED;
  OK(ashlar_feed_apply_events(own, 1, &event, 1));
  OK(ashlar_index_find(index, locals, 2, &match, 1, &count));
  TRUE(count == 1 && match.worker.id == 43 && match.worker.rank == 1 && match.depth == 1);
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_feed_apply_message(own, kStored, sizeof kStored, NULL));
  OK(ashlar_index_destroy(index)); /* the feeds keep it */
  OK(ashlar_feed_resync(own));
  OK(ashlar_feed_destroy(own));
  OK(ashlar_feed_destroy(feed));
  EXPECT(ASHLAR_INVALID_HANDLE, ashlar_feed_resync(feed));
  OK(ashlar_hasher_destroy(hasher));
}

void walk_index(void) {
  ashlar_index_options options = ASHLAR_INDEX_OPTIONS_INIT;
  ashlar_index index;
  options.kind = "no such kind";
  EXPECT(ASHLAR_INVALID_ARGUMENT, ashlar_index_create(&options, &index));
  walk_kind(NULL, 0);
  walk_kind("flash", 2);
  walk_kind("positional", 0);
  walk_kind("concurrent_radix_tree", 0);
  walk_kind("radix_tree", 0);
  walk_feed();
}
