// Blocks that were registered in G2 before their bytes are complete: they go nowhere until then.
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using events::G2;
using tokens::SequenceHash;

class UnwrittenBlocksTest : public ::testing::Test {
 protected:
  // Registers names in G2, as a process that receives their bytes from elsewhere would.
  void receive(std::span<const SequenceHash> names, std::vector<block::Fence> after) {
    auto empty = kv_->g2()->allocate_blocks(names.size()).value();
    block::BlockList<block::CompleteBlock<G2>> complete;
    for (std::size_t i = 0; i < names.size(); ++i)
      complete.push_back(std::move(empty[i]).stage(names[i], block::KvReady::asserted_by_caller()));
    ASSERT_TRUE(kv_->g2()->register_blocks(std::move(complete), {.after = std::move(after)}));
  }

  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_ =
      KvBlockManager::create(KvWorkload::options_in(folder_.path())).value();
  std::vector<SequenceHash> names_ = KvWorkload::sequence(1, 3);
};

TEST_F(UnwrittenBlocksTest, GoDownWhenTheyAreWritten) {
  auto [fence, signal] = block::Fence::create();
  receive(names_, {block::Fence::passed_already(), fence, fence});
  ASSERT_TRUE(kv_->drain());
  for (const auto& counters : {kv_->status().to_g3, kv_->status().to_g4}) {
    EXPECT_EQ(counters->arrived, 1u);
    EXPECT_EQ(counters->blocked, 2u);
  }
  EXPECT_TRUE(kv_->describe(names_[1])->in(kG2)->being_written);
  std::move(signal).signal();
  ASSERT_TRUE(kv_->drain());
  EXPECT_EQ(kv_->status().to_g3->arrived, 3u);
  EXPECT_EQ(kv_->status().to_g4->arrived, 3u);
}

TEST_F(UnwrittenBlocksTest, DoNotGoDownByCallOrAsVictims) {
  kv_.reset();
  KvOptions options = KvWorkload::options_in(folder_.path());
  options.to_g3.trigger = Trigger::kNearEviction;
  options.to_g3.look_ahead = 12;  // all of G2
  options.to_g4.trigger = Trigger::kOnCall;
  kv_ = KvBlockManager::create(std::move(options)).value();
  auto made = std::make_optional(block::Fence::create());
  receive(names_, {made->first});
  const OffloadHandle handle = kv_->offload_to(kG4, names_).value();
  kv_->look_ahead();
  ASSERT_TRUE(kv_->drain());
  EXPECT_EQ(kv_->status().to_g3->blocked, 0u) << "in use, and no victims";
  EXPECT_EQ(kv_->status().to_g4->blocked, 3u);
  std::move(made->second).fail();  // they will never be written
  EXPECT_EQ(handle.wait().error().code(), ErrorCode::kCancelled);
  EXPECT_EQ(handle.progress().failed, 3u);
  EXPECT_EQ(kv_->status().to_g3->arrived, 0u);
  EXPECT_FALSE(kv_->describe(names_[0])) << "nor do they stay";
  while (kv_->status().g2->pool.reset != kv_->status().g2->pool.total) std::this_thread::yield();
}

TEST_F(UnwrittenBlocksTest, DoNotComeUp) {
  auto [fence, signal] = block::Fence::create();
  receive(names_, {block::Fence::passed_already(), fence, fence});
  const std::vector<BlockOutcome> want = {{OnboardState::kHit, Miss::kNone, kG2},
                                          {OnboardState::kMiss, Miss::kUnwritten, kG2},
                                          {OnboardState::kMiss, Miss::kBehind, kG2}};
  for (const bool by_layer : {false, true}) {
    const OnboardHandle handle = kv_->onboard_async(names_, {.by_layer = by_layer}).value();
    EXPECT_EQ(handle.wait().value().size(), 1u);
    EXPECT_EQ(handle.blocks(), want);
    EXPECT_EQ(kv_->status().g1.pool.reset, 7u) << "no copy was begun";
    kv_->reset(kG1).value();
  }
  EXPECT_EQ(kv_->status().misses[static_cast<std::size_t>(Miss::kUnwritten)], 2u);
  std::move(signal).signal();
  EXPECT_EQ(kv_->onboard(names_).size(), 3u);
}

}  // namespace
}  // namespace ashlar::tiers
