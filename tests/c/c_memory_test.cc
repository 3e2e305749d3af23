// The C interface without memory: every allocation of every call fails once, and then all after it. No
// exception leaves the library; a refused call leaves its handles as they were.
#include <gtest/gtest.h>

#include <vector>

#include "ashlar_c.h"
#include "support/failing_new.h"

namespace ashlar::testing {
namespace {

using support::FailingAllocation;
using support::for_every_allocation;
using support::Shortage;

constexpr std::uint32_t kPrompt[20] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20};

std::size_t handles_now() {
  std::size_t count = 0;
  EXPECT_EQ(ashlar_open_handles(&count), ASHLAR_OK);
  return count;
}

// A manager, and an empty list of two blocks.
struct MemoryWorld {
  MemoryWorld() {
    ashlar_manager_options options = {};
    options.struct_size = sizeof options;
    options.block_count = 16;
    options.block_size = 4;
    options.max_pins = 8;
    options.event_capacity = 16;
    EXPECT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK);
    EXPECT_EQ(ashlar_manager_allocate(manager, 2, &list), ASHLAR_OK);
  }
  void end() {
    EXPECT_EQ(ashlar_blocks_release(list), ASHLAR_OK) << ashlar_last_error();
    ashlar_pool_status status = {};
    status.struct_size = sizeof status;
    EXPECT_EQ(ashlar_manager_status(manager, &status), ASHLAR_OK);
    EXPECT_EQ(status.guards, 0u);
    EXPECT_EQ(status.reset + status.inactive, 16u);
    EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_OK) << ashlar_last_error();
  }
  ashlar_manager manager = {};
  ashlar_blocks list = {};
};

// Runs call(world) with every allocation failing. Returns how many failed. `close` takes back what a call
// that succeeded has made.
template <class Call, class Close>
std::size_t fail_each(Call&& call, Close&& close) {
  std::size_t failed = 0;
  for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
    const std::size_t before = handles_now();
    failed += for_every_allocation([&](FailingAllocation& failing) {
      MemoryWorld world;
      ashlar_status status = ASHLAR_INTERNAL;
      EXPECT_TRUE(failing.during(shortage, [&] {
        status = call(world);
        return true;
      }));
      EXPECT_TRUE(status == ASHLAR_OK || (failing.happened() && status == ASHLAR_CAPACITY))
          << ashlar_status_name(status) << ashlar_last_error();
      if (status == ASHLAR_OK) close(world);
      world.end();
    });
    EXPECT_EQ(handles_now(), before);
  }
  return failed;
}

// The library must take its memory from the operator new of this program.
class CMemory : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::size_t failed = for_every_allocation([](FailingAllocation& failing) {
      ashlar_hasher hasher = {};
      failing.during(Shortage::kOnce, [&] { return ashlar_hasher_create(nullptr, &hasher) == ASHLAR_OK; });
      if (hasher.id != 0) {
        EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
      }
    });
    if (failed == 0) GTEST_SKIP() << "the C library was linked with a C++ runtime of its own";
  }
};

TEST_F(CMemory, ListsSurviveEveryFailedAllocation) {
  ashlar_blocks made = {};
  const auto release_made = [&](MemoryWorld&) { EXPECT_EQ(ashlar_blocks_release(made), ASHLAR_OK); };
  EXPECT_GT(
      fail_each([&](MemoryWorld& w) { return ashlar_manager_allocate(w.manager, 3, &made); }, release_made),
      2u);
  EXPECT_GT(
      fail_each(
          [&](MemoryWorld& w) { return ashlar_manager_match_tokens(w.manager, {0}, kPrompt, 20, &made); },
          release_made),
      2u);
  EXPECT_GT(
      fail_each([&](MemoryWorld& w) { return ashlar_blocks_complete(w.list, {0}, kPrompt, 20, 0, &w.list); },
                [](MemoryWorld&) {}),
      2u);
  EXPECT_GT(
      fail_each([&](MemoryWorld& w) { return ashlar_blocks_split(w.list, 1, &w.list, &made); }, release_made),
      1u);
  ashlar_fence fence = {};
  ASSERT_EQ(ashlar_fence_create(&fence), ASHLAR_OK);
  ASSERT_EQ(ashlar_fence_signal(fence), ASHLAR_OK);
  EXPECT_GT(fail_each(
                [&](MemoryWorld& w) {
                  ashlar_blocks extra = {};
                  const ashlar_status got = ashlar_manager_allocate(w.manager, 1, &extra);
                  if (got != ASHLAR_OK) return got;
                  const ashlar_status done = ashlar_blocks_release_after(extra, fence);
                  if (done != ASHLAR_OK) {
                    EXPECT_EQ(ashlar_blocks_release(extra), ASHLAR_OK);
                  }
                  return done;
                },
                [](MemoryWorld&) {}),
            2u);
  EXPECT_EQ(ashlar_fence_destroy(fence), ASHLAR_OK);
}

TEST_F(CMemory, RegistrationSurvivesEveryFailedAllocation) {
  ashlar_pin pin = {};
  std::size_t failed = 0;
  for (const int what : {0, 1, 2}) {
    failed += fail_each(
        [&](MemoryWorld& w) {
          ashlar_status done = ashlar_blocks_complete(w.list, {0}, kPrompt, 20, 0, &w.list);
          if (done == ASHLAR_OK) done = ashlar_blocks_register(w.list, nullptr, &w.list);
          if (done != ASHLAR_OK || what == 0) return done;
          if (what == 1) return ashlar_blocks_pin(w.list, 1'000'000'000, &pin);
          ashlar_blocks shared = {};
          done = ashlar_blocks_share(w.list, &shared);
          if (done == ASHLAR_OK) {
            EXPECT_EQ(ashlar_blocks_release(shared), ASHLAR_OK);
          }
          return done;
        },
        [&](MemoryWorld&) {
          if (what == 1) {
            EXPECT_EQ(ashlar_pin_release(pin), ASHLAR_OK);
          }
        });
  }
  EXPECT_GT(failed, 6u);
}

TEST_F(CMemory, RequestsSurviveEveryFailedAllocation) {
  EXPECT_GT(fail_each(
                [](MemoryWorld& w) {
                  ashlar_request request = {}, forked = {};
                  ashlar_status done = ashlar_request_create(w.manager, kPrompt, 20, nullptr, &request);
                  if (done != ASHLAR_OK) return done;
                  const std::uint32_t next = 7;
                  done = ashlar_request_match(request, nullptr);
                  if (done == ASHLAR_OK) done = ashlar_request_schedule_prefill(request, 20, nullptr);
                  if (done == ASHLAR_OK) done = ashlar_request_apply_prefill(request, &next, nullptr);
                  if (done == ASHLAR_OK) done = ashlar_request_fork(request, nullptr, &forked);
                  if (done == ASHLAR_OK) done = ashlar_request_schedule_decode(forked, nullptr);
                  if (done == ASHLAR_OK) done = ashlar_request_apply_decode(forked, 8, nullptr);
                  if (forked.id != 0) {
                    EXPECT_EQ(ashlar_request_destroy(forked), ASHLAR_OK);
                  }
                  EXPECT_EQ(ashlar_request_destroy(request), ASHLAR_OK);
                  return done;
                },
                [](MemoryWorld&) {}),
            10u);
}

TEST_F(CMemory, CreationSurvivesEveryFailedAllocation) {
  EXPECT_GT(fail_each(
                [](MemoryWorld&) {
                  ashlar_hasher hasher = {};
                  ashlar_index index = {};
                  ashlar_feed feed = {};
                  ashlar_hasher_options options = {};
                  options.struct_size = sizeof options;
                  options.lora = "an adapter whose name is longer than a short string";
                  ashlar_status done = ashlar_hasher_create(&options, &hasher);
                  if (done != ASHLAR_OK) return done;
                  done = ashlar_index_create(nullptr, &index);
                  if (done == ASHLAR_OK) done = ashlar_feed_create(index, nullptr, &feed);
                  if (feed.id != 0) {
                    EXPECT_EQ(ashlar_feed_destroy(feed), ASHLAR_OK);
                  }
                  if (index.id != 0) {
                    EXPECT_EQ(ashlar_index_destroy(index), ASHLAR_OK);
                  }
                  EXPECT_EQ(ashlar_hasher_destroy(hasher), ASHLAR_OK);
                  return done;
                },
                [](MemoryWorld&) {}),
            10u);
}

// A refused resync leaves the index as it was, and a later one starts anew.
TEST_F(CMemory, AResyncSurvivesEveryFailedAllocation) {
  // [1.0, [["BlockStored", [1], nil, [1, 2], 2, nil]]]
  static constexpr std::uint8_t kMessage[] = {0x92, 0xCB, 0x3F, 0xF0, 0,    0,    0,    0,    0,    0,   0x91,
                                              0x96, 0xAB, 'B',  'l',  'o',  'c',  'k',  'S',  't',  'o', 'r',
                                              'e',  'd',  0x91, 0x01, 0xC0, 0x92, 0x01, 0x02, 0x02, 0xC0};
  const auto blocks_of = [](ashlar_index index) {
    ashlar_index_sizes sizes = {};
    sizes.struct_size = sizeof sizes;
    EXPECT_EQ(ashlar_index_get_sizes(index, &sizes), ASHLAR_OK);
    return sizes.blocks;
  };
  std::size_t failed = 0;
  for (const bool by_message : {false, true}) {
    for (const Shortage shortage : {Shortage::kOnce, Shortage::kFromThenOn}) {
      const std::size_t before = handles_now();
      failed += for_every_allocation([&](FailingAllocation& failing) {
        ashlar_index index = {};
        ashlar_feed feed = {};
        ASSERT_EQ(ashlar_index_create(nullptr, &index), ASHLAR_OK);
        ASSERT_EQ(ashlar_feed_create(index, nullptr, &feed), ASHLAR_OK);
        ashlar_event event = {};
        event.kind = ASHLAR_EVENT_STORED;
        event.hash = {0, 1};
        event.name = event.local = 1;
        event.has_name = event.has_local = 1;
        const auto fill = [&] {
          return by_message ? ashlar_feed_apply_message(feed, kMessage, sizeof kMessage, nullptr)
                            : ashlar_feed_apply_events(feed, 0, &event, 1);
        };
        ASSERT_EQ(fill(), ASHLAR_OK) << ashlar_last_error();
        ASSERT_EQ(blocks_of(index), 1u);
        ashlar_status status = ASHLAR_INTERNAL;
        EXPECT_TRUE(failing.during(shortage, [&] {
          status = ashlar_feed_resync(feed);
          return true;
        }));
        EXPECT_TRUE(status == ASHLAR_OK || (failing.happened() && status == ASHLAR_CAPACITY))
            << ashlar_status_name(status) << ashlar_last_error();
        EXPECT_EQ(blocks_of(index), status == ASHLAR_OK ? 0u : 1u);
        EXPECT_EQ(ashlar_feed_resync(feed), ASHLAR_OK);
        EXPECT_EQ(blocks_of(index), 0u);
        EXPECT_EQ(fill(), ASHLAR_OK) << ashlar_last_error();
        EXPECT_EQ(blocks_of(index), 1u);
        EXPECT_EQ(ashlar_feed_destroy(feed), ASHLAR_OK);
        EXPECT_EQ(ashlar_index_destroy(index), ASHLAR_OK);
      });
      EXPECT_EQ(handles_now(), before);
    }
  }
  EXPECT_GT(failed, 0u);
}

}  // namespace
}  // namespace ashlar::testing
