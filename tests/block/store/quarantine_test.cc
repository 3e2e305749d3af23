// Work in flight owns what it touches: fences, quarantine, release_after.
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

InflightBlock<G1> launch_one(Manager& manager, const Fence& fence) {
  Partial block = value_of(take_one(manager).init_sequence({}));
  EXPECT_TRUE(block.add_token(Token(1)));
  return value_of(std::move(block).schedule()).launch(fence);
}

TEST(FenceTest, PassesWhenSignalledAndRunsEveryCallbackOnce) {
  auto [fence, signal] = Fence::create();
  const Fence copy = fence;
  int before = 0;
  int after = 0;
  fence.on_passed([&] { ++before; });
  copy.on_passed([&] { ++before; });
  EXPECT_FALSE(fence.passed());
  EXPECT_FALSE(fence.abandoned());
  EXPECT_EQ(before, 0);
  std::move(signal).signal();
  EXPECT_TRUE(fence.passed());
  EXPECT_TRUE(copy.passed());
  EXPECT_FALSE(fence.abandoned());
  EXPECT_EQ(before, 2);
  fence.on_passed([&] { ++after; });
  EXPECT_EQ(after, 1);
  EXPECT_EQ(before, 2);
}

TEST(FenceTest, PassedAlreadyHasPassed) {
  const Fence fence = Fence::passed_already();
  EXPECT_TRUE(fence.passed());
  bool ran = false;
  fence.on_passed([&] { ran = true; });
  EXPECT_TRUE(ran);
}

TEST(FenceTest, ASignalThatDiesUnusedAbandonsItsFenceForEver) {
  std::optional<std::pair<Fence, FenceSignal>> both = Fence::create();
  const Fence fence = both->first;
  bool ran = false;
  fence.on_passed([&] { ran = true; });
  both.reset();
  EXPECT_FALSE(fence.passed());
  EXPECT_TRUE(fence.abandoned());
  fence.on_passed([&] { ran = true; });
  EXPECT_FALSE(ran);
}

TEST(FenceTest, OnSettledHearsEitherEndOnce) {
  std::vector<bool> heard;
  const auto note = [&](bool passed) { heard.push_back(passed); };
  std::optional<std::pair<Fence, FenceSignal>> never = Fence::create();
  const Fence abandoned = never->first;
  abandoned.on_settled(note);
  EXPECT_TRUE(heard.empty());
  never.reset();
  EXPECT_EQ(heard, std::vector{false});
  abandoned.on_settled(note);
  EXPECT_EQ(heard, (std::vector{false, false})) << "at once";
  heard.clear();
  auto [fence, signal] = Fence::create();
  EXPECT_TRUE(Fence(fence) == fence);
  EXPECT_FALSE(fence == abandoned);
  fence.on_settled(note);
  std::move(signal).signal();
  fence.on_settled(note);
  EXPECT_EQ(heard, (std::vector{true, true}));
}

TEST(FenceTest, WorkThatFailsHasEndedAndHasNotPassed) {
  auto [fence, signal] = Fence::create();
  std::vector<std::string> heard;
  fence.on_settled([&](bool passed) { heard.emplace_back(passed ? "passed" : "settled"); });
  fence.on_passed([&] { heard.emplace_back("wrong"); });
  fence.on_ended([&] { heard.emplace_back("ended"); });
  EXPECT_FALSE(fence.ended() || fence.never_passes());
  std::move(signal).fail();
  EXPECT_TRUE(fence.failed() && fence.ended() && fence.never_passes());
  EXPECT_FALSE(fence.passed() || fence.abandoned());
  fence.on_ended([&] { heard.emplace_back("at once"); });
  EXPECT_EQ(heard, (std::vector<std::string>{"settled", "ended", "at once"})) << "in the order of the calls";
  EXPECT_TRUE(Fence::passed_already().ended());
  EXPECT_FALSE(Fence::passed_already().never_passes());
}

TEST(FenceTest, WhatWaitsIsDestroyedWhenAllWereCalled) {
  auto [fence, signal] = Fence::create();
  auto held = std::make_shared<int>(0);
  const std::weak_ptr<int> watched = held;
  fence.on_settled([held](bool) {});
  held.reset();
  bool kept = false;
  fence.on_settled([&](bool) { kept = !watched.expired(); });
  std::move(signal).signal();
  EXPECT_TRUE(kept) << "what the first holds lasts until the last was called";
  EXPECT_TRUE(watched.expired());
}

TEST(FenceTest, MovedSignalsKeepTheRightAndReplacedOnesAbandon) {
  auto [first, first_signal] = Fence::create();
  auto [second, second_signal] = Fence::create();
  FenceSignal holder = std::move(first_signal);
  holder = std::move(second_signal);
  EXPECT_TRUE(first.abandoned());
  EXPECT_FALSE(second.abandoned());
  std::move(holder).signal();
  EXPECT_TRUE(second.passed());
}

TEST(FenceTest, CallbacksMayUseTheFence) {
  auto [fence, signal] = Fence::create();
  int ran = 0;
  fence.on_passed([&, inner = fence] {
    EXPECT_TRUE(inner.passed());
    inner.on_passed([&] { ++ran; });
  });
  std::move(signal).signal();
  EXPECT_EQ(ran, 1);
}

TEST(FenceDeathTest, ASignalIsUsedOnce) {
  auto [fence, signal] = Fence::create();
  FenceSignal holder = std::move(signal);
  std::move(holder).signal();
  EXPECT_DEATH(std::move(holder).signal(), "used or moved from");
}

TEST(QuarantineTest, ADroppedComputationKeepsItsSlotUntilTheDeviceReports) {
  Manager manager = manager_of(2);
  auto [fence, signal] = Fence::create();
  {
    const InflightBlock<G1> dropped = launch_one(manager, fence);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .quarantined = 1}));
  EXPECT_EQ(manager.counters().quarantines, 1u);
  EXPECT_EQ(manager.available_blocks(), 1u);

  // Nobody gets the slot, however hard they try.
  const auto refused = manager.allocate_blocks(2);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().reason, Reason::kNoRoom);
  EXPECT_EQ(refused.error().status.quarantined, 1u);
  const Mutable other = take_one(manager);
  EXPECT_EQ(other.block_id(), BlockId(1));
  EXPECT_FALSE(manager.allocate_blocks(1));
  EXPECT_EQ(manager.reset_inactive_pool(), 0u);

  std::move(signal).signal();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .owned = 1}));
  EXPECT_EQ(take_one(manager).block_id(), BlockId(0));
}

TEST(QuarantineTest, ADropAfterTheFencePassedGoesStraightToTheResetPool) {
  Manager manager = manager_of(1);
  auto [fence, signal] = Fence::create();
  {
    const InflightBlock<G1> block = launch_one(manager, fence);
    std::move(signal).signal();
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1}));
  EXPECT_EQ(manager.counters().quarantines, 0u);
}

TEST(QuarantineTest, ManyBlocksMayWaitForOneFence) {
  Manager manager = manager_of(8);
  auto [fence, signal] = Fence::create();
  {
    std::vector<InflightBlock<G1>> dropped;
    for (int i = 0; i < 5; ++i) dropped.push_back(launch_one(manager, fence));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 3, .quarantined = 5}));
  std::move(signal).signal();
  EXPECT_EQ(places(manager), (Places{.reset = 8}));
}

TEST(QuarantineTest, FinishedComputationsLeaveNoFenceBehind) {
  // The block of a finished computation is dropped as Partial: an old fence must not hold it.
  Manager manager = manager_of(1);
  {
    InflightBlock<G1> block = launch_one(manager, Fence::passed_already());
    const auto done = value_of(std::move(block).compute_done());
    EXPECT_EQ(std::get<Partial>(done).computed_tokens(), 1u);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1}));
}

TEST(QuarantineTest, ASlotThatLeftQuarantineLivesAFullLifeAgain) {
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(1);
  auto [fence, signal] = Fence::create();
  {
    const InflightBlock<G1> dropped = launch_one(manager, fence);
  }
  std::move(signal).signal();
  {
    const Immutable stored = store_one(manager, sequence.blocks()[0]);
  }
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
}

TEST(QuarantineTest, ReleaseAfterKeepsTheReferenceUntilTheFencePasses) {
  Manager manager = manager_of(2);
  const TokenSequence sequence = sequence_of(1);
  auto [fence, signal] = Fence::create();
  Immutable block = store_one(manager, sequence.blocks()[0]);
  Immutable other = block;
  std::move(block).release_after(fence);
  EXPECT_FALSE(block);  // NOLINT(bugprone-use-after-move)
  EXPECT_EQ(other.use_count(), 2u);
  other = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1})) << "a kernel still reads it";
  EXPECT_FALSE(manager.allocate_blocks(2));
  std::move(signal).signal();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
}

TEST(QuarantineTest, WorkThatFailedTouchesItsBlocksNoLonger) {
  Manager manager = manager_of(2);
  auto [fence, signal] = Fence::create();
  {
    const InflightBlock<G1> dropped = launch_one(manager, fence);
  }
  store_one(manager, sequence_of(1).blocks()[0]).release_after(fence);
  EXPECT_EQ(places(manager), (Places{.active = 1, .quarantined = 1}));
  std::move(signal).fail();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1})) << "it was read, not written";
  {
    const InflightBlock<G1> dropped = launch_one(manager, fence);
  }
  EXPECT_EQ(manager.counters().quarantines, 1u);
}

TEST(QuarantineTest, ReleaseAfterAPassedFenceReleasesAtOnce) {
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(1);
  store_one(manager, sequence.blocks()[0]).release_after(Fence::passed_already());
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
}

TEST(QuarantineTest, ABlockMayBeMatchedWhileAFenceHoldsIt) {
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(1);
  auto [fence, signal] = Fence::create();
  store_one(manager, sequence.blocks()[0]).release_after(fence);
  Blocks found = manager.match_blocks(sequence.sequence_hashes());
  ASSERT_EQ(found.size(), 1u);
  std::move(signal).signal();
  EXPECT_EQ(found[0].use_count(), 1u);
  EXPECT_EQ(places(manager), (Places{.active = 1}));
}

TEST(QuarantineDeathTest, ManagerDestroyedWithQuarantinedBlocksSaysSo) {
  const auto destroy = [] {
    auto [fence, signal] = Fence::create();
    Manager manager = manager_of(4);
    {
      const InflightBlock<G1> dropped = launch_one(manager, fence);
    }
    {
      const InflightBlock<G1> dropped = launch_one(manager, fence);
    }
    manager = manager_of(4);
  };
  EXPECT_DEATH(destroy(), "destroyed with 2 blocks outstanding \\(2 quarantined\\)");
}

TEST(QuarantineDeathTest, AnAbandonedFenceKeepsItsBlocksForEver) {
  const auto abandon = [] {
    Manager manager = manager_of(4);
    {
      auto [fence, signal] = Fence::create();
      {
        const InflightBlock<G1> dropped = launch_one(manager, fence);
      }
      store_one(manager, sequence_of(1).blocks()[0]).release_after(fence);
    }
    // The signal is gone; nobody can say that the device is done.
    if (places(manager) != Places{.reset = 2, .active = 1, .quarantined = 1}) return;
    if (manager.allocate_blocks(3)) return;
    auto [late, signal] = Fence::create();
    {
      const FenceSignal dies = std::move(signal);
    }
    {
      const InflightBlock<G1> dropped = launch_one(manager, late);
    }
    if (places(manager) != Places{.reset = 1, .active = 1, .quarantined = 2}) return;
    manager = manager_of(4);
  };
  EXPECT_DEATH(abandon(), "destroyed with 3 blocks outstanding \\(2 quarantined, 1 primary\\)");
}

}  // namespace
}  // namespace ashlar::block
