// Threads that use, consume and destroy the same handles: every answer is a status, and no block is lost.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <random>
#include <thread>
#include <vector>

#include "ashlar_c.h"
#include "support/scratch_folder.h"
#include "tests/c/tier_calls.h"

namespace ashlar::testing {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kPlaces = 6;

// Handles that all threads share. A new one displaces an old one, which its thread then releases.
struct SharedHandles {
  std::array<std::atomic<std::uint64_t>, kPlaces> lists{};
  std::array<std::atomic<std::uint64_t>, kPlaces> requests{};
  std::array<std::atomic<std::uint64_t>, kPlaces> fences{};
};

class ThreadOfCalls {
 public:
  ThreadOfCalls(SharedHandles& shared, ashlar_manager manager, std::uint64_t seed)
      : shared_(shared), manager_(manager), random_(seed) {
    for (std::uint32_t i = 0; i < 32; ++i) tokens_[i] = i / 8;
  }

  void step() {
    ashlar_blocks next = {}, tail = {};
    ashlar_request request = {};
    const std::uint32_t token = static_cast<std::uint32_t>(random_() % 4);
    switch (random_() % 17) {
      case 0:
      case 1:
        return put_list(ashlar_manager_allocate(manager_, 1 + random_() % 3, &next), next);
      case 2:
        return put_list(ashlar_blocks_complete(list(), {0}, tokens_.data(), 32, 0, &next), next);
      case 3:
        return put_list(ashlar_blocks_register(list(), nullptr, &next), next);
      case 4:
        return put_list(ashlar_blocks_share(list(), &next), next);
      case 5: {
        const ashlar_status done = ashlar_blocks_split(list(), 1, &next, &tail);
        put_list(done, next);
        return put_list(done, tail);
      }
      case 6:
        return count(ashlar_blocks_release(list()));
      case 7:
        return count(ashlar_blocks_release_after(list(), fence()));
      case 8:
        return put_list(ashlar_manager_match_tokens(manager_, {0}, tokens_.data(), 32, &next), next);
      case 9: {
        ashlar_fence made = {};
        count(ashlar_fence_create(&made));
        return end_fence(place(shared_.fences).exchange(made.id));
      }
      case 10:
        return count(ashlar_fence_signal(fence()));
      case 11:
        return put_request(ashlar_request_create(manager_, tokens_.data(), 9, nullptr, &request), request);
      case 12:
        return count(ashlar_request_schedule_prefill(any_request(), 9, nullptr));
      case 13:
        return count(ashlar_request_apply_prefill(any_request(), &token, nullptr));
      case 14:
        return put_request(ashlar_request_fork(any_request(), nullptr, &request), request);
      case 15:
        return count(ashlar_request_destroy(any_request()));
      default:
        return count(ashlar_manager_can_allocate(manager_, 1));
    }
  }

  bool has_seen_both() const { return succeeded_ != 0 && invalid_ != 0; }

  static void end_fence(std::uint64_t id) {
    if (id == 0) return;
    (void)ashlar_fence_signal({id});  // nobody may wait for a fence that is destroyed unused
    (void)ashlar_fence_destroy({id});
  }

 private:
  std::atomic<std::uint64_t>& place(std::array<std::atomic<std::uint64_t>, kPlaces>& of) {
    return of[random_() % kPlaces];
  }
  ashlar_blocks list() { return {place(shared_.lists).load()}; }
  ashlar_request any_request() { return {place(shared_.requests).load()}; }
  ashlar_fence fence() { return {place(shared_.fences).load()}; }

  void count(ashlar_status status) {
    EXPECT_NE(status, ASHLAR_INTERNAL) << ashlar_last_error();
    succeeded_ += status == ASHLAR_OK ? 1 : 0;
    invalid_ += status == ASHLAR_INVALID_HANDLE ? 1 : 0;
  }
  void put_list(ashlar_status status, ashlar_blocks made) {
    count(status);
    if (status != ASHLAR_OK) return;
    count(ashlar_blocks_release({place(shared_.lists).exchange(made.id)}));
  }
  void put_request(ashlar_status status, ashlar_request made) {
    count(status);
    if (status != ASHLAR_OK) return;
    count(ashlar_request_destroy({place(shared_.requests).exchange(made.id)}));
  }

  SharedHandles& shared_;
  ashlar_manager manager_;
  std::mt19937_64 random_;
  std::array<std::uint32_t, 32> tokens_{};
  std::uint64_t succeeded_ = 0;
  std::uint64_t invalid_ = 0;
};

TEST(CThreads, ShareHandlesAndLoseNoBlock) {
  std::size_t before = 0;
  ASSERT_EQ(ashlar_open_handles(&before), ASHLAR_OK);
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 64;
  options.block_size = 4;
  ashlar_manager manager = {};
  ASSERT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK);
  SharedHandles shared;
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&shared, manager, t] {
      ThreadOfCalls calls(shared, manager, t + 1);
      for (int i = 0; i < 4000 || !calls.has_seen_both(); ++i) calls.step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (auto& one : shared.fences) ThreadOfCalls::end_fence(one.load());
  for (auto& one : shared.lists) (void)ashlar_blocks_release({one.load()});
  for (auto& one : shared.requests) (void)ashlar_request_destroy({one.load()});
  ashlar_pool_status status = {};
  status.struct_size = sizeof status;
  ASSERT_EQ(ashlar_manager_status(manager, &status), ASHLAR_OK);
  EXPECT_EQ(status.guards, 0u);
  EXPECT_EQ(status.reset + status.inactive, 64u);
  EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_OK) << ashlar_last_error();
  std::size_t after = 0;
  ASSERT_EQ(ashlar_open_handles(&after), ASHLAR_OK);
  EXPECT_EQ(after, before);
}

// What the callback of a drain finds: which thread called, and which event comes next in the log.
struct DrainingThread {
  ashlar_manager manager;
  std::atomic<std::uint64_t>* next;
  std::thread::id thread;
  std::uint64_t events = 0;
};

// On the thread that drains, in the order of the log, and free to call: also to make events of its own.
void check_drain(void* user, const ashlar_event* events, std::size_t count) {
  auto& drain = *static_cast<DrainingThread*>(user);
  EXPECT_EQ(std::this_thread::get_id(), drain.thread);
  for (std::size_t i = 0; i < count; ++i) EXPECT_EQ(events[i].sequence, drain.next->fetch_add(1));
  drain.events += count;
  std::size_t delivered = 1;
  EXPECT_EQ(ashlar_manager_drain_events(drain.manager, check_drain, user, &delivered), ASHLAR_OK);
  EXPECT_EQ(delivered, 0u);
  ashlar_blocks blocks = {};
  if (ashlar_manager_allocate(drain.manager, 1, &blocks) == ASHLAR_OK) {
    EXPECT_EQ(ashlar_blocks_release(blocks), ASHLAR_OK);
  }
  EXPECT_EQ(ashlar_manager_destroy(drain.manager), ASHLAR_NOT_READY);
}

TEST(CThreads, EventsComeOnTheThreadThatDrains) {
  ashlar_manager_options options = {};
  options.struct_size = sizeof options;
  options.block_count = 32;
  options.block_size = 1;
  options.event_capacity = 1 << 20;
  ashlar_manager manager = {};
  ASSERT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK) << ashlar_last_error();
  std::atomic<std::uint64_t> next{0};
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([manager, &next, t] {
      DrainingThread drain{manager, &next, std::this_thread::get_id()};
      // Until this thread had its share of the callbacks.
      for (std::uint32_t i = 0; i < 200 || drain.events < 20; ++i) {
        const std::uint32_t token = static_cast<std::uint32_t>(t) << 24 | i;
        ashlar_blocks blocks = {};
        if (ashlar_manager_allocate(manager, 1, &blocks) != ASHLAR_OK) continue;
        EXPECT_EQ(ashlar_blocks_complete(blocks, {0}, &token, 1, 0, &blocks), ASHLAR_OK);
        EXPECT_EQ(ashlar_blocks_register(blocks, nullptr, &blocks), ASHLAR_OK);
        EXPECT_EQ(ashlar_blocks_release(blocks), ASHLAR_OK);
        EXPECT_EQ(ashlar_manager_drain_events(manager, check_drain, &drain, nullptr), ASHLAR_OK);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(next.load(), 20 * kThreads);
  EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_OK) << ashlar_last_error();
}

constexpr int kUses = 300;  // of each thread, at most: then a destroy finds nobody

// One of several threads destroys a manager that the others use.
TEST(CThreads, DestroyAManagerThatOthersUse) {
  for (int round = 0; round < 20; ++round) {
    ashlar_manager_options options = {};
    options.struct_size = sizeof options;
    options.block_count = 8;
    ashlar_manager manager = {};
    ASSERT_EQ(ashlar_manager_create(&options, &manager), ASHLAR_OK);
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([manager] {
        for (int i = 0; i < kUses; ++i) {
          ashlar_blocks blocks = {};
          const ashlar_status got = ashlar_manager_allocate(manager, 2, &blocks);
          if (got == ASHLAR_INVALID_HANDLE) return;
          if (got == ASHLAR_OK) {
            EXPECT_EQ(ashlar_blocks_release(blocks), ASHLAR_OK);
          } else {
            EXPECT_EQ(got, ASHLAR_CAPACITY) << ashlar_last_error();
          }
        }
      });
    }
    ashlar_status done = ASHLAR_NOT_READY;
    while (done == ASHLAR_NOT_READY) done = ashlar_manager_destroy(manager);
    EXPECT_EQ(done, ASHLAR_OK);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ashlar_manager_destroy(manager), ASHLAR_INVALID_HANDLE);
  }
}

// The same with tiers: calls that run meanwhile, and handles of calls that outlive them.
TEST(CThreads, DestroyTiersThatOthersUse) {
  for (int round = 0; round < 10; ++round) {
    const ScratchFolder folder;
    TierWorld world(folder.file("g3"));
    TierCalls(world, 1).store_all();
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < 3; ++t) {
      threads.emplace_back([&world, t] {
        const auto ignore = [](void*, const ashlar_event*, std::size_t) {};
        for (std::size_t i = 0; i < kUses; ++i) {
          const ashlar_hash* const names = world.names[(i + t) % kTierSequences].data();
          ashlar_onboard onboard = {};
          ashlar_offload offload = {};
          std::uint8_t present[kTierLength];
          std::vector<ashlar_status> answers = {
              ashlar_tiers_onboard_async(world.tiers, names, kTierLength, nullptr, &onboard),
              ashlar_tiers_offload(world.tiers, ASHLAR_TIER_G3, names, kTierLength, nullptr, &offload),
              ashlar_tiers_presence(world.tiers, names, kTierLength, present),
              ashlar_tiers_drain_events(world.tiers, ignore, nullptr, nullptr)};
          if (i % 16 == 0) answers.push_back(ashlar_tiers_reset(world.tiers, ASHLAR_TIER_G1, 0, nullptr));
          // These handles are open, whatever became of the tiers.
          if (offload.id != 0) {
            EXPECT_EQ(ashlar_offload_cancel(offload), ASHLAR_OK) << ashlar_last_error();
            EXPECT_EQ(ashlar_offload_destroy(offload), ASHLAR_OK);
          }
          if (onboard.id != 0) {
            if (i % 2 == 0) {
              EXPECT_EQ(ashlar_onboard_cancel(onboard), ASHLAR_OK) << ashlar_last_error();
            }
            EXPECT_EQ(ashlar_onboard_destroy(onboard), ASHLAR_OK);
          }
          bool gone = false;
          for (const ashlar_status answer : answers) {
            EXPECT_TRUE(answer == ASHLAR_OK || answer == ASHLAR_INVALID_HANDLE) << ashlar_status_name(answer);
            gone |= answer == ASHLAR_INVALID_HANDLE;
          }
          if (gone) return;
        }
      });
    }
    ashlar_status done = ASHLAR_NOT_READY;
    while (done == ASHLAR_NOT_READY) done = ashlar_tiers_destroy(world.tiers);
    EXPECT_EQ(done, ASHLAR_OK) << ashlar_last_error();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(ashlar_tiers_destroy(world.tiers), ASHLAR_INVALID_HANDLE);
    EXPECT_EQ(ashlar_manager_can_allocate(world.manager, 1), ASHLAR_INVALID_HANDLE);
  }
}

TEST(CThreads, ShareTiersAndKeepEveryBlockWhole) {
  const ScratchFolder folder;
  TierWorld world(folder.file("g3"));
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 3; ++t) {
    threads.emplace_back([&world, t] {
      TierCalls calls(world, t + 1);
      for (int i = 0; i < 200 || calls.verified() < 10; ++i) calls.step();
    });
  }
  for (std::thread& thread : threads) thread.join();
  world.end();
}

}  // namespace
}  // namespace ashlar::testing
