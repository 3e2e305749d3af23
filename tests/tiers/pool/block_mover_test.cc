#include "tiers/pool/block_mover.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <vector>

#include "ashlar/base/log.h"
#include "tiers/tier_fixture.h"

namespace ashlar::tiers {
namespace {

using BlockMoverTest = TierTest;

TEST_F(BlockMoverTest, BlocksGoDownAndComeBackWithTheirBytes) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  EXPECT_EQ(move(*g1_, *g2_, {0, 1, 2, 3}).count(Moved::kArrived), 4u);
  const MoveReport down = move(*g2_, *g3_, {0, 1, 2, 3});
  EXPECT_EQ(down.count(Moved::kArrived), 4u);
  EXPECT_EQ(down.bytes, 4 * g3_->blocks()->block_bytes());
  EXPECT_EQ(g1_manager_->reset_inactive_pool(), 4u);
  EXPECT_EQ(g2_manager_->reset_inactive_pool(), 4u);
  EXPECT_EQ(move(*g3_, *g2_, {2, 0}).count(Moved::kArrived), 2u);
  EXPECT_EQ(move(*g2_, *g1_, {0, 2}).count(Moved::kArrived), 2u);
  for (const std::uint64_t i : {0, 2}) {
    EXPECT_TRUE(right(*g2_, i));
    EXPECT_TRUE(right(*g1_, i));
  }
  expect_counts_exact();
}

TEST_F(BlockMoverTest, SaysWhatBecameOfEachBlock) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  move(*g1_, *g2_, {1});
  const MoveReport report = move(*g1_, *g2_, {0, 1, 9, 2});
  EXPECT_EQ(report.blocks, (std::vector{Moved::kArrived, Moved::kPresent, Moved::kGone, Moved::kArrived}));
  EXPECT_FALSE(report.error);
}

TEST_F(BlockMoverTest, AMoveIsNoUse) {
  for (std::uint64_t i = 0; i < 4; ++i) compute(i);
  const auto order = g1_manager_->eviction_candidates(9);
  move(*g1_, *g2_, {0, 2});
  EXPECT_EQ(g1_manager_->eviction_candidates(9), order) << "the source keeps its order of eviction";
}

TEST_F(BlockMoverTest, AFullTierEvictsWhatItCan) {
  for (std::uint64_t i = 0; i < 8; ++i) compute(i);
  EXPECT_EQ(move(*g1_, *g2_, {0, 1, 2, 3, 4}).count(Moved::kArrived), 5u);
  EXPECT_EQ(move(*g1_, *g2_, {5, 6, 7}).count(Moved::kArrived), 3u);
  EXPECT_FALSE(g2_->has(name(4))) << "the end of a batch is evicted first";
  EXPECT_TRUE(right(*g2_, 7));
  const MoveReport too_many = move(*g1_, *g2_, {0, 1, 2, 3, 4, 5, 6, 7});
  EXPECT_TRUE(too_many.error || too_many.count(Moved::kFailed) == 0);
  expect_counts_exact();
}

TEST_F(BlockMoverTest, AFailedMoveLeavesNothingBehind) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2});
  for (const int error : {EIO, ENOSPC}) {
    error_ = error;
    const MoveReport report = move(*g2_, *g3_, {0, 1, 2});
    EXPECT_EQ(report.count(Moved::kFailed), 3u);
    ASSERT_TRUE(report.error);
    EXPECT_EQ(report.error->code(), error == EIO ? ErrorCode::kIo : ErrorCode::kCapacity);
    error_ = 0;
    for (std::uint64_t i = 0; i < 3; ++i) {
      EXPECT_FALSE(g3_->has(name(i)));
      EXPECT_TRUE(right(*g2_, i));
    }
    expect_counts_exact();
  }
  EXPECT_EQ(move(*g2_, *g3_, {0, 1, 2}).count(Moved::kArrived), 3u);
}

TEST_F(BlockMoverTest, ADamagedBlockIsAMissAndNeverComesBack) {
  for (std::uint64_t i = 0; i < 3; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2});
  move(*g2_, *g3_, {0, 1, 2});
  g2_manager_->reset_inactive_pool();
  {
    const auto hold = g3_->hold(name(1)).value();
    const layout::Layout& layout = g3_->blocks()->planes()[0].layout;
    const transfer::RegionMemory& region = g3_->blocks()->planes()[0].regions[0];
    const auto at =
        static_cast<off_t>(region.offset + layout.place({.block = hold.block_id().value()}).offset + 5);
    const char flipped = 0x55;
    ASSERT_EQ(pwrite(region.storage->file()->buffered, &flipped, 1, at), 1);
  }
  std::vector<std::string> lines;
  const ScopedLogSink sink(
      [&](LogLevel, std::string_view, std::string_view line) { lines.emplace_back(line); });
  const MoveReport report = move(*g3_, *g2_, {0, 1, 2});
  EXPECT_EQ(report.blocks, (std::vector{Moved::kArrived, Moved::kDamaged, Moved::kArrived}));
  EXPECT_EQ(lines.size(), 1u) << "an alarm";
  EXPECT_FALSE(g2_->has(name(1)));
  EXPECT_FALSE(g3_->has(name(1))) << "removed where it was damaged";
  EXPECT_TRUE(right(*g2_, 0) && right(*g2_, 2));
  expect_counts_exact();
  close();
  open();
  EXPECT_EQ(g3_->restored(), 2u) << "also after a restart";
}

TEST_F(BlockMoverTest, WhatWasOnDiskIsThereAfterARestart) {
  for (std::uint64_t i = 0; i < 5; ++i) compute(i);
  move(*g1_, *g2_, {0, 1, 2, 3, 4});
  move(*g2_, *g3_, {0, 1, 2, 3, 4});
  ASSERT_TRUE(g3_->remove(name(3)));
  EXPECT_EQ(g3_->remove(name(77)).error().code(), ErrorCode::kNotFound);
  close();
  open();
  EXPECT_EQ(g3_->restored(), 4u);
  EXPECT_EQ(move(*g3_, *g2_, {0, 1, 2, 3, 4}).blocks,
            (std::vector{Moved::kArrived, Moved::kArrived, Moved::kArrived, Moved::kGone, Moved::kArrived}));
  for (const std::uint64_t i : {0, 1, 2, 4}) EXPECT_TRUE(right(*g2_, i));
  expect_counts_exact();
}

}  // namespace
}  // namespace ashlar::tiers
