// Blocks of the sizes that hybrid models use, and the largest, through requests and every tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "ashlar/block/request_sequence.h"
#include "ashlar/testing/event_sinks.h"
#include "ashlar/tiers/kv_block_manager.h"
#include "support/scratch_folder.h"
#include "tiers/kv_workload.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;
using Request = block::RequestSequence<events::G1>;

KvOptions options_of(std::uint32_t size, const std::string& folder) {
  KvOptions options = KvWorkload::options_in(folder);
  options.model.num_layers = options.shard.layers.count = 1;
  options.model.num_heads = options.shard.heads.count = 1;
  options.model.head_dim = options.model.inner_dim = 8;
  options.model.block_size = options.block_size = size;
  options.shard = {};
  options.g1.block_count = options.g2->block_count = options.g3->block_count = options.g4->block_count = 4;
  options.event_capacity = 256;
  return options;
}

class TierBlockSizesTest : public ::testing::TestWithParam<std::uint32_t> {
 protected:
  void open() { kv_ = KvBlockManager::create(options_of(size_, folder_.path())).value(); }
  // Computes what no tier has, as an engine would. Returns the tokens that were cached.
  std::size_t run(const std::vector<tokens::Token>& prompt) {
    auto request = Request::create(kv_->g1(), prompt).value();
    const std::size_t cached = request.match_prefix().value();
    EXPECT_TRUE(request.schedule_prefill(prompt.size() - cached));
    KvWorkload bytes(*kv_);
    for (std::size_t i = 0; i < prompt.size() / size_; ++i) {
      const block::SequenceBlock here = request.block(i);
      if (i < cached / size_) {
        EXPECT_TRUE(bytes.has_bytes(here.id, *here.hash)) << "block " << i;
      } else {
        bytes.compute(here.id, *here.hash);
      }
    }
    EXPECT_TRUE(request.apply_prefill(tokens::Token(1)));
    hashes_.assign(request.sequence_hashes().begin(), request.sequence_hashes().end());
    request.release();
    kv_->drain();
    return cached;
  }

  const std::uint32_t size_ = GetParam();
  ScratchFolder folder_;
  std::unique_ptr<KvBlockManager> kv_;
  std::vector<tokens::SequenceHash> hashes_;
};

TEST_P(TierBlockSizesTest, GoDownComeUpAndSurviveARestart) {
  open();
  std::vector<tokens::Token> prompt;
  for (std::uint32_t i = 0; i < 2 * size_ + 1; ++i) prompt.emplace_back(i * 7919);
  const std::size_t full = 2 * std::size_t{size_};
  EXPECT_EQ(run(prompt), 0u);
  EXPECT_EQ(run(prompt), full) << "from G1";
  ASSERT_TRUE(kv_->reset(kG1));
  EXPECT_EQ(run(prompt), full) << "from G2";
  ASSERT_TRUE(kv_->reset(kG1));
  ASSERT_TRUE(kv_->reset(kG2));
  EXPECT_EQ(run(prompt), full) << "from G3";
  ashlar::testing::EventRecorder events;
  kv_->drain_events(events);
  EXPECT_FALSE(events.events().empty());
  for (const events::KvEvent& event : events.events()) EXPECT_EQ(event.bytes, 2u * size_ * 8 * 2);
  const KvBlockDescription found = kv_->describe(hashes_[1]).value();
  EXPECT_EQ(found.in(kG3)->bytes, 2u * size_ * 8 * 2);
  kv_.reset();
  open();
  EXPECT_EQ(run(prompt), full) << "from G3 after a restart";
  ASSERT_TRUE(kv_->reset(kG1));
  ASSERT_TRUE(kv_->reset(kG2));
  ASSERT_TRUE(kv_->reset(kG3));
  const std::uint64_t before = kv_->status().g4->hits;
  EXPECT_EQ(run(prompt), full) << "from G4";
  EXPECT_EQ(kv_->status().g4->hits - before, 2u);
  kv_->check_invariants();
}

TEST_P(TierBlockSizesTest, AFileOfOneSizeIsRefusedByAnother) {
  open();
  kv_.reset();
  const auto other = KvBlockManager::create(options_of(size_ == 16 ? 32 : 16, folder_.path()));
  ASSERT_FALSE(other);
  EXPECT_THAT(other.error().to_string(), HasSubstr("g3.0"));
}

INSTANTIATE_TEST_SUITE_P(Sizes, TierBlockSizesTest, ::testing::Values(16, 784, 1056, 1600, 65536),
                         ::testing::PrintToStringParamName());

TEST(TierBlockSizes, LargerOnesAreRefused) {
  const ScratchFolder folder;
  const auto refused = KvBlockManager::create(options_of(65537, folder.path()));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("block_size is 65537 tokens; it must be 1 to 65536"));
}

}  // namespace
}  // namespace ashlar::tiers
