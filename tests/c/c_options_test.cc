// What callers hand to the C interface in structs, and how it answers those that are wrong.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar_c.h"

namespace ashlar::testing {
namespace {

// A struct with room behind it, as of a newer header.
template <class T>
struct Longer {
  T options = {};
  unsigned char more[16] = {};
};

TEST(COptions, AStructIsNeverSmallerThanItsFirstVersion) {
  ashlar_hasher hasher = {};
  ashlar_hasher_options options = {};
  for (const std::uint32_t size : {0u, 3u, 4u, 8u, static_cast<std::uint32_t>(sizeof options) - 1u, 5000u}) {
    options.struct_size = size;
    EXPECT_EQ(ashlar_hasher_create(&options, &hasher), ASHLAR_INVALID_ARGUMENT) << size;
    EXPECT_NE(std::strstr(ashlar_last_error(), std::to_string(size).c_str()), nullptr) << ashlar_last_error();
    EXPECT_NE(std::strstr(ashlar_last_error(), std::to_string(sizeof options).c_str()), nullptr)
        << ashlar_last_error();
  }
  options.struct_size = sizeof options;
  ASSERT_EQ(ashlar_hasher_create(&options, &hasher), ASHLAR_OK);
  EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);

  ashlar_index index = {};
  ASSERT_EQ(ashlar_index_create(nullptr, &index), ASHLAR_OK);
  ashlar_index_sizes sizes = {};
  for (const std::uint32_t size : {0u, 4u, static_cast<std::uint32_t>(sizeof sizes) - 1u}) {
    sizes.struct_size = size;
    sizes.bytes = 4711;
    EXPECT_EQ(ashlar_index_get_sizes(index, &sizes), ASHLAR_INVALID_ARGUMENT) << size;
    EXPECT_EQ(sizes.bytes, 4711u);
  }
  sizes.struct_size = sizeof sizes;
  EXPECT_EQ(ashlar_index_get_sizes(index, &sizes), ASHLAR_OK);
  EXPECT_EQ(ashlar_index_destroy(index), ASHLAR_OK);
}

TEST(COptions, AStructMayBeLargerWhereItsRestIsZero) {
  Longer<ashlar_hasher_options> longer;
  longer.options.struct_size = sizeof longer;
  ashlar_hasher hasher = {};
  ASSERT_EQ(ashlar_hasher_create(&longer.options, &hasher), ASHLAR_OK) << ashlar_last_error();
  EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
  longer.more[15] = 1;
  EXPECT_EQ(ashlar_hasher_create(&longer.options, &hasher), ASHLAR_UNSUPPORTED);
}

// Half a pointer is none.
TEST(COptions, AStructDoesNotEndWithinAField) {
  ashlar_tiers_options options = {};
  options.num_layers = options.num_heads = options.head_dim = 1;
  options.g1_blocks = 4;
  options.remote_listen = "127.0.0.1:0";
  ashlar_tiers tiers = {};
  const std::size_t listen = offsetof(ashlar_tiers_options, remote_listen);
  for (std::size_t size = listen + 1; size < listen + sizeof options.remote_listen; ++size) {
    options.struct_size = static_cast<std::uint32_t>(size);
    EXPECT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_INVALID_ARGUMENT) << size;
    EXPECT_NE(std::strstr(ashlar_last_error(), std::to_string(size).c_str()), nullptr) << ashlar_last_error();
  }
  options.struct_size = static_cast<std::uint32_t>(listen);  // of a header without it
  ASSERT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_OK) << ashlar_last_error();
  char address[64];
  std::size_t count = 0;
  EXPECT_EQ(ashlar_tiers_remote_address(tiers, address, sizeof address, &count), ASHLAR_UNSUPPORTED);
  EXPECT_EQ(ashlar_tiers_destroy(tiers), ASHLAR_OK);

  ashlar_index index = {};
  ASSERT_EQ(ashlar_index_create(nullptr, &index), ASHLAR_OK);
  Longer<ashlar_index_sizes> answer;
  answer.options.struct_size = sizeof answer.options + 3;
  EXPECT_EQ(ashlar_index_get_sizes(index, &answer.options), ASHLAR_INVALID_ARGUMENT);
  answer.options.struct_size = sizeof answer;
  EXPECT_EQ(ashlar_index_get_sizes(index, &answer.options), ASHLAR_OK);
  EXPECT_EQ(ashlar_index_destroy(index), ASHLAR_OK);
}

TEST(COptions, NoNumberTakesAllMemory) {
  ashlar_manager manager = {};
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 8;
  options.event_capacity = (std::uint64_t{1} << 22) + 1;
  EXPECT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(ashlar_last_error(), "4194304"), nullptr) << ashlar_last_error();
  options.event_capacity = 0;
  options.block_count = UINT32_MAX;
  EXPECT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(ashlar_last_error(), "block_count"), nullptr) << ashlar_last_error();

  ashlar_tiers tiers = {};
  ashlar_tiers_options tier_options = {};
  tier_options.struct_size = sizeof tier_options;
  tier_options.num_layers = tier_options.num_heads = tier_options.head_dim = 1;
  tier_options.g1_blocks = 4;
  tier_options.event_capacity = UINT64_MAX;
  EXPECT_EQ(ashlar_tiers_create(&tier_options, &tiers), ASHLAR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(ashlar_last_error(), "event_capacity"), nullptr) << ashlar_last_error();
  tier_options.event_capacity = 0;
  tier_options.g2_blocks = UINT32_MAX;
  EXPECT_EQ(ashlar_tiers_create(&tier_options, &tiers), ASHLAR_INVALID_ARGUMENT);
  EXPECT_NE(std::strstr(ashlar_last_error(), "g2_blocks"), nullptr) << ashlar_last_error();
}

TEST(COptions, WhatWouldHaveNoEffectIsRefused) {
  ashlar_tiers_options plain = {};
  plain.struct_size = sizeof plain;
  plain.num_layers = plain.num_heads = plain.head_dim = 1;
  plain.g1_blocks = 4;
  const char* const place = "/nowhere";
  const auto refused = [](const ashlar_tiers_options& options, const char* option) {
    ashlar_tiers tiers = {};
    EXPECT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_INVALID_ARGUMENT) << option;
    EXPECT_NE(std::strstr(ashlar_last_error(), option), nullptr) << ashlar_last_error();
  };
  ashlar_tiers_options options = plain;
  options.g1_memory_kind = ASHLAR_MEMORY_PINNED;
  refused(options, "ASHLAR_MEMORY_PINNED");
  options = plain;
  options.g1_device = 1;
  refused(options, "g1_device");
  options = plain;
  options.g3_paths = &place;
  options.g3_path_count = 1;
  refused(options, "g3_blocks");
  options = plain;
  options.g4_directories = &place;
  options.g4_directory_count = 1;
  refused(options, "g4_blocks");

  // Memory of the caller's may be of that kind.
  options = plain;
  std::vector<std::uint64_t> memory(4 * 32 / sizeof(std::uint64_t));  // K and V of 16 tokens each
  const ashlar_region region = {memory.data(), memory.size() * sizeof memory[0]};
  options.g1_memory_kind = ASHLAR_MEMORY_PINNED;
  options.g1_regions = &region;
  options.g1_region_count = 1;
  ashlar_tiers tiers = {};
  ASSERT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_OK) << ashlar_last_error();
  EXPECT_EQ(ashlar_tiers_destroy(tiers), ASHLAR_OK);
}

TEST(COptions, PlacesForAnswersAreCheckedFirst) {
  ashlar_client_options options = {};
  options.struct_size = sizeof options;
  options.url = "http://127.0.0.1:1";
  ashlar_client client = {};
  ASSERT_EQ(ashlar_client_create(&options, &client), ASHLAR_OK) << ashlar_last_error();
  const std::uint32_t tokens[4] = {1, 2, 3, 4};
  ashlar_route_query query = {};
  query.struct_size = sizeof query;
  query.model = "model";
  std::size_t count = 4711;
  EXPECT_EQ(ashlar_client_route(client, &query, tokens, 4, nullptr, 0, nullptr), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_client_route(client, &query, tokens, 4, nullptr, 1, &count), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_client_destroy(client), ASHLAR_OK);

  ashlar_hasher hasher = {};
  ASSERT_EQ(ashlar_hasher_create(nullptr, &hasher), ASHLAR_OK);
  EXPECT_EQ(ashlar_hash_blocks(hasher, nullptr, tokens, 4, 4, nullptr, 1, &count), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(count, 4711u);
  EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
}

TEST(COptions, ALongMessageEndsWithAWholeCharacter) {
  ashlar_tiers tiers = {};
  ashlar_tiers_options options = {};
  options.struct_size = sizeof options;
  options.num_layers = options.num_heads = options.head_dim = 1;
  options.g1_blocks = 4;
  for (const std::string before : {"", "x", "xx"}) {
    std::string order = before;
    for (int i = 0; i < 1000; ++i) order += "\u20AC";  // three bytes each
    options.g1_order = order.c_str();
    ASSERT_EQ(ashlar_tiers_create(&options, &tiers), ASHLAR_NOT_FOUND);
    const std::string_view message = ashlar_last_error();
    EXPECT_GT(message.size(), 1000u);
    EXPECT_LT(message.size(), 1024u);
    EXPECT_TRUE(message.ends_with("\u20AC"));
  }
}

// Two managers may share a registry; each has its own blocks.
TEST(COptions, AManagerTellsItsOwnBlocks) {
  ashlar_registry registry = {};
  ASSERT_EQ(ashlar_registry_create(nullptr, &registry), ASHLAR_OK);
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 4;
  options.block_size = 4;
  options.registry = registry;
  ashlar_manager one = {}, other = {};
  ASSERT_EQ(ashlar_manager_create(&options, &one), ASHLAR_OK);
  ASSERT_EQ(ashlar_manager_create(&options, &other), ASHLAR_OK);
  const std::uint32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  ashlar_blocks blocks = {};
  ASSERT_EQ(ashlar_manager_allocate(one, 2, &blocks), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_complete(blocks, {0}, tokens, 8, 0, &blocks), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_register(blocks, nullptr, &blocks), ASHLAR_OK);
  ashlar_hash names[3] = {};
  std::size_t count = 0;
  ASSERT_EQ(ashlar_blocks_hashes(blocks, names, 2, &count), ASHLAR_OK);
  std::uint8_t present[3] = {9, 9, 9};
  EXPECT_EQ(ashlar_manager_presence(one, names, 3, present), ASHLAR_OK);
  EXPECT_EQ(std::vector<std::uint8_t>(present, present + 3), (std::vector<std::uint8_t>{1, 1, 0}));
  EXPECT_EQ(ashlar_manager_presence(other, names, 3, present), ASHLAR_OK);
  EXPECT_EQ(std::vector<std::uint8_t>(present, present + 3), (std::vector<std::uint8_t>{0, 0, 0}));

  ASSERT_EQ(ashlar_blocks_release(blocks), ASHLAR_OK);  // cached, and still there
  EXPECT_EQ(ashlar_manager_presence(one, names, 2, present), ASHLAR_OK);
  EXPECT_EQ(present[0] + present[1], 2);
  ASSERT_EQ(ashlar_manager_reset(one, nullptr), ASHLAR_OK);
  EXPECT_EQ(ashlar_manager_presence(one, names, 2, present), ASHLAR_OK);
  EXPECT_EQ(present[0] + present[1], 0);
  EXPECT_EQ(ashlar_manager_destroy(one), ASHLAR_OK);
  EXPECT_EQ(ashlar_manager_destroy(other), ASHLAR_OK);
  EXPECT_EQ(ashlar_registry_destroy(registry), ASHLAR_OK);
}

TEST(COptions, MultiLruNeedsNoRegistry) {
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 8;
  options.eviction = "multi_lru";
  ashlar_manager manager = {};
  ASSERT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK) << ashlar_last_error();
  EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_OK);
  ashlar_registry registry = {};
  ASSERT_EQ(ashlar_registry_create(nullptr, &registry), ASHLAR_OK);
  options.registry = registry;
  EXPECT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_registry_destroy(registry), ASHLAR_OK);
}

}  // namespace
}  // namespace ashlar::testing
