// Random calls over tiers through the C interface: no block is lost, and none has the bytes of another.
#include <gtest/gtest.h>

#include "support/scratch_folder.h"
#include "tests/c/tier_calls.h"

namespace ashlar::testing {
namespace {

TEST(CTiers, RandomCallsKeepEveryBlockWhole) {
  std::size_t before = 0, after = 0;
  ASSERT_EQ(ashlar_open_handles(&before), ASHLAR_OK);
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    const ScratchFolder folder;
    TierWorld world(folder.file("g3"));
    {
      TierCalls calls(world, seed);
      for (int i = 0; i < 400 || calls.verified() < 20; ++i) calls.step();
    }
    world.end();
  }
  ASSERT_EQ(ashlar_open_handles(&after), ASHLAR_OK);
  EXPECT_EQ(after, before);
}

// Nothing at all, and as much as a number can say: every call answers.
TEST(CTiers, AnswersEmptyAndExtremeArguments) {
  const ScratchFolder folder;
  TierWorld world(folder.file("g3"));
  const ashlar_hash* const names = world.names[0].data();
  ashlar_blocks list = {}, tail = {};
  std::size_t count = 9;
  ashlar_fence fence = {};
  ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
  ashlar_register_options options = {};
  options.struct_size = sizeof options;
  options.after = &fence;
  options.after_count = 1;
  options.set_priority = 1;
  options.ttl_ns = UINT64_MAX - 1;

  // A list without blocks goes every way that others go.
  ASSERT_EQ(ashlar_manager_allocate(world.manager, 0, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_ids(list, nullptr, 0, &count), ASHLAR_OK);
  EXPECT_EQ(count, 0u);
  ASSERT_EQ(ashlar_blocks_stage(list, nullptr, 0, nullptr, nullptr, &list), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_reset(list, &list), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_complete(list, {0}, nullptr, 0, 0, &list), ASHLAR_OK);
  ASSERT_EQ(ashlar_blocks_register(list, &options, &list), ASHLAR_OK) << ashlar_last_error();
  ASSERT_EQ(ashlar_blocks_split(list, 0, &list, &tail), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(tail), ASHLAR_OK);
  ashlar_pin pin = {};
  int active = 1;
  ASSERT_EQ(ashlar_blocks_pin(list, UINT64_MAX, &pin), ASHLAR_OK);
  EXPECT_EQ(ashlar_pin_active(pin, &active), ASHLAR_OK);
  EXPECT_EQ(active, 0);
  EXPECT_EQ(ashlar_pin_release(pin), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release_after(list, fence), ASHLAR_OK);
  EXPECT_EQ(ashlar_fence_signal(fence), ASHLAR_OK);
  EXPECT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);

  ASSERT_EQ(ashlar_manager_match(world.manager, nullptr, nullptr, 0, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
  ASSERT_EQ(ashlar_tiers_onboard(world.tiers, nullptr, 0, nullptr, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_offload(world.tiers, ASHLAR_TIER_G2, nullptr, 0, nullptr, nullptr), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_presence(world.tiers, nullptr, 0, nullptr), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_reset_blocks(world.tiers, nullptr, 0, 0), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_presence(world.tiers, names, SIZE_MAX, nullptr), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_manager_allocate(world.manager, SIZE_MAX, &list), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_manager_match(world.manager, names, nullptr, SIZE_MAX, &list), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_tiers_set_retention(world.tiers, names, 1, 255, 0, nullptr), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_tiers_set_retention(world.tiers, names, 1, 1, UINT64_MAX - 1, nullptr), ASHLAR_OK);
  EXPECT_EQ(ashlar_tiers_pin(world.tiers, names, 1, UINT64_MAX, &pin), ASHLAR_OK);
  EXPECT_EQ(ashlar_pin_release(pin), ASHLAR_OK);
  ASSERT_EQ(ashlar_manager_allocate_within(world.manager, 1, UINT64_MAX, &list), ASHLAR_OK);
  EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK);

  ashlar_request_options request_options = {};
  request_options.struct_size = sizeof request_options;
  request_options.max_tokens = UINT64_MAX;
  request_options.onboard_ns = UINT64_MAX;
  request_options.onboard_max_blocks = UINT64_MAX - 1;
  const std::uint32_t token = 1;
  ashlar_request request = {};
  EXPECT_EQ(ashlar_request_create(world.manager, &token, 1, &request_options, &request),
            ASHLAR_INVALID_ARGUMENT);
  request_options.max_tokens = 1'000'000;
  ASSERT_EQ(ashlar_request_create(world.manager, &token, 1, &request_options, &request), ASHLAR_OK);
  EXPECT_EQ(ashlar_request_match(request, &count), ASHLAR_OK);
  EXPECT_EQ(ashlar_request_schedule_prefill(request, SIZE_MAX, nullptr), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_request_schedule_prefill(request, 0, nullptr), ASHLAR_INVALID_ARGUMENT);
  EXPECT_NE(ashlar_request_schedule_speculative(request, SIZE_MAX, nullptr), ASHLAR_OK);
  EXPECT_EQ(ashlar_request_block_table(request, SIZE_MAX, nullptr, 0, &count), ASHLAR_INVALID_ARGUMENT);
  EXPECT_EQ(ashlar_request_destroy(request), ASHLAR_OK);

  // Tiers that cannot be.
  ashlar_tiers_options bad = {};
  bad.struct_size = sizeof bad;
  bad.num_layers = bad.num_heads = bad.head_dim = UINT32_MAX;
  bad.g1_blocks = UINT32_MAX;
  ashlar_tiers none = {};
  EXPECT_EQ(ashlar_tiers_create(&bad, &none), ASHLAR_INVALID_ARGUMENT);
  bad.num_layers = bad.num_heads = bad.head_dim = 1;
  bad.g1_blocks = 4;
  bad.g3_blocks = 4;
  EXPECT_NE(ashlar_tiers_create(&bad, &none), ASHLAR_OK);  // no file
  bad.g3_blocks = 0;
  const ashlar_region small = {&none, 1};
  bad.g1_regions = &small;
  bad.g1_region_count = 1;
  EXPECT_EQ(ashlar_tiers_create(&bad, &none), ASHLAR_INVALID_ARGUMENT);
  world.end();
}

}  // namespace
}  // namespace ashlar::testing
