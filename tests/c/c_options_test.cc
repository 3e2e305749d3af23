// What callers hand to the C interface in structs, and how it answers those that are wrong.
#include <gtest/gtest.h>

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

}  // namespace
}  // namespace ashlar::testing
