// What a KvBlockManager does with a volume that takes calls and never answers. No time is measured: the
// volume stays silent until every call has returned.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>

#include "ashlar/testing/interleaving.h"
#include "support/volume_objects.h"
#include "tiers/volume/volume_tier.h"

namespace ashlar::tiers {

struct SilentVolume {
  // A manager with the volume "v".
  std::function<KvOptions()> options;
  // How many calls it has taken; those who wait on it are told.
  const std::atomic<std::size_t>& calls;

  // Waits until it has taken more than `before`, which it had at some time.
  void wait_for_call(std::size_t before) const { calls.wait(before); }
};

inline Clock::TimePoint soon() {
  return Clock::real().now() + std::chrono::milliseconds(20);
}

inline void expect_requests_leave_a_silent_volume(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  VolumeTier tier(silent.options());
  EXPECT_TRUE(tier.kv().onboard(hashes, {.deadline = soon()}).empty());
  EXPECT_TRUE(tier.kv().find(hashes, soon()).empty());
  const auto late = tier.kv().onboard_async(hashes, {.deadline = soon()}).value();
  EXPECT_TRUE(late.wait().value().empty());
  EXPECT_EQ(late.blocks()[0].miss, Miss::kLate);
  EXPECT_TRUE(tier.kv().prefetch(hashes, {.deadline = soon()}).value().wait());
  for (const bool prefetch : {false, true}) {
    const std::size_t before = silent.calls;
    const OnboardHandle handle =
        prefetch ? tier.kv().prefetch(hashes).value() : tier.kv().onboard_async(hashes).value();
    silent.wait_for_call(before);
    handle.cancel();
    EXPECT_EQ(code_of(handle.wait()), ErrorCode::kCancelled);
  }
  EXPECT_TRUE(tier.kv().shutdown());
  tier.expect_counts_exact();
}

// Blocks go down by call alone, and no volume is asked for those that are not known.
inline KvOptions by_call(KvOptions options) {
  options.g4->probe = false;
  options.to_g4.trigger = Trigger::kOnCall;
  return options;
}

inline void expect_offloads_leave_a_silent_volume(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  VolumeTier tier(by_call(silent.options()));
  tier.request(hashes);
  EXPECT_TRUE(tier.kv().drain());
  const auto late = tier.kv().offload_to(VolumeTier::kG4, hashes, {.deadline = soon()}).value();
  EXPECT_EQ(code_of(late.wait()), ErrorCode::kTimeout);
  EXPECT_EQ(late.progress().late, 3u);
  const std::size_t before = silent.calls;
  const auto cancelled = tier.kv().offload_to(VolumeTier::kG4, hashes).value();
  silent.wait_for_call(before);
  cancelled.cancel();
  EXPECT_EQ(cancelled.wait().value().cancelled, 3u);
  EXPECT_TRUE(tier.kv().drain()) << "the worker has left it, too";
  EXPECT_EQ(code_of(tier.kv().reset_blocks(hashes, soon())), ErrorCode::kTimeout);
  tier.expect_counts_exact();
}

inline void expect_removals_stop_what_goes_to_a_silent_volume(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  VolumeTier tier(by_call(silent.options()));
  tier.request(hashes);
  EXPECT_TRUE(tier.kv().drain());
  const std::size_t before = silent.calls;
  const auto down = tier.kv().offload_to(VolumeTier::kG4, hashes).value();
  silent.wait_for_call(before);
  EXPECT_EQ(code_of(tier.kv().reset_blocks(hashes, soon())), ErrorCode::kTimeout);
  EXPECT_TRUE(down.done());
  EXPECT_FALSE(tier.kv().g2()->hold(hashes[0]));
  tier.expect_counts_exact();
}

inline void expect_a_silent_volume_can_be_detached(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  VolumeTier tier(by_call(silent.options()));
  tier.request(hashes);
  EXPECT_TRUE(tier.kv().drain());
  const std::size_t before = silent.calls;
  const auto down = tier.kv().offload_to(VolumeTier::kG4, hashes).value();
  silent.wait_for_call(before);
  EXPECT_EQ(tier.kv().unregister_volume("v", soon()).value(), 0u);
  EXPECT_EQ(code_of(down.wait()), ErrorCode::kUnavailable);
  EXPECT_TRUE(tier.kv().status().volumes.empty());
  tier.expect_counts_exact();
}

// Both ways are in use when the manager goes.
inline void expect_a_manager_does_not_wait_for_a_silent_volume(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 3);
  std::optional<OnboardHandle> up;
  std::optional<OffloadHandle> down;
  {
    KvOptions options = by_call(silent.options());
    options.g4->probe = true;
    VolumeTier tier(std::move(options));
    std::size_t before = silent.calls;
    up = tier.kv().onboard_async(VolumeTier::sequence(2, 2)).value();
    silent.wait_for_call(before);
    {
      auto blocks = tier.kv().get_mutable_blocks(1).value();
      block::BlockList<block::CompleteBlock<events::G1>> complete;
      complete.push_back(std::move(blocks[0]).stage(hashes[0], block::KvReady::asserted_by_caller()));
      EXPECT_TRUE(tier.kv().register_blocks(std::move(complete)));
    }
    EXPECT_TRUE(tier.kv().drain());
    before = silent.calls;
    down = tier.kv().offload_to(VolumeTier::kG4, std::span(hashes).first(1)).value();
    silent.wait_for_call(before);
  }
  EXPECT_EQ(code_of(up->wait()), ErrorCode::kCancelled);
  EXPECT_TRUE(down->done());
}

// A removal that was left has its object alone until the volume returns: what is put meanwhile waits for it,
// and is left in its turn when the volume or the manager goes.
inline void expect_nobody_waits_for_a_removal_of_a_silent_volume(const SilentVolume& silent) {
  const VolumeTier::Hashes hashes = VolumeTier::sequence(1, 1);
  for (const bool detaches : {true, false}) {
    testing::Interleaving order;
    std::optional<OffloadHandle> down;
    {
      KvOptions options = by_call(silent.options());
      options.g4->call_limit = {};
      VolumeTier tier(std::move(options));
      EXPECT_EQ(code_of(tier.kv().reset_blocks(hashes, soon())), ErrorCode::kTimeout);
      tier.request(hashes);
      EXPECT_TRUE(tier.kv().drain());
      down = tier.kv().offload_to(VolumeTier::kG4, hashes).value();
      order.wait_until_passed("volume_pool.before_claim", 1);
      if (detaches) {
        EXPECT_EQ(tier.kv().unregister_volume("v", soon()).value(), 0u);
        EXPECT_EQ(code_of(down->wait()), ErrorCode::kUnavailable);
        tier.expect_counts_exact();
      }
    }
    EXPECT_TRUE(down->done());
  }
}

inline void expect_nobody_waits_for_a_silent_volume(const SilentVolume& silent) {
  expect_requests_leave_a_silent_volume(silent);
  expect_offloads_leave_a_silent_volume(silent);
  expect_removals_stop_what_goes_to_a_silent_volume(silent);
  expect_a_silent_volume_can_be_detached(silent);
  expect_a_manager_does_not_wait_for_a_silent_volume(silent);
  expect_nobody_waits_for_a_removal_of_a_silent_volume(silent);
}

}  // namespace ashlar::tiers
