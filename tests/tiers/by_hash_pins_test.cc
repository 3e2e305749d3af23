// KvBlockManager by hash: pins that keep a block in every tier.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "support/rounds.h"
#include "tiers/by_hash_fixture.h"
#include "tiers/disk/g3_places.h"
#include "tiers/tier_ids.h"

namespace ashlar::tiers {
namespace {

using ::testing::HasSubstr;
using tokens::SequenceHash;

TEST_F(ByHashTest, APinKeepsBlocksInEveryTierThatHasThem) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  const std::vector<TierPresence> everywhere(2, in({kG1, kG2, kG3, kG4}));
  ASSERT_EQ(presence(hashes), everywhere);
  std::optional<KvPin> pin = kv_->pin(hashes, kHour).value();
  EXPECT_TRUE(pin->active());
  EXPECT_EQ(pin->pinned(), 8u);
  flood();
  EXPECT_EQ(presence(hashes), everywhere);
  pin.reset();
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2)) << "nothing keeps them any longer";
  kv_->check_invariants();
}

TEST_F(ByHashTest, APinKeepsBlocksThatArriveLater) {
  open();
  const auto hashes = sequence(1, 2);
  KvPin pin = kv_->pin(hashes, kHour).value();
  EXPECT_EQ(pin.pinned(), 0u);
  use(hashes);
  EXPECT_EQ(pin.pinned(), 8u) << "registered in G1, offloaded to the others";
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2, in({kG1, kG2, kG3, kG4})));
  EXPECT_EQ(pin.refused(), 0u);
  std::move(pin).unpin();
  EXPECT_FALSE(pin.active());
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2));
}

TEST_F(ByHashTest, BlocksThatComeUpAgainArePinnedThere) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  ASSERT_TRUE(kv_->reset(kG1));
  ASSERT_TRUE(kv_->reset(kG2));
  const KvPin pin = kv_->pin(hashes, kHour).value();
  EXPECT_EQ(pin.pinned(), 4u);
  use(hashes);
  EXPECT_EQ(pin.pinned(), 8u);
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2, in({kG1, kG2, kG3, kG4})));
}

TEST_F(ByHashTest, APinEndsWithItsTime) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  const KvPin pin = kv_->pin(hashes, kHour).value();
  clock_.advance(kHour - std::chrono::seconds(1));
  flood();
  EXPECT_TRUE(pin.active());
  EXPECT_EQ(kv_->describe(hashes[0])->pins, 1u);
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2, in({kG1, kG2, kG3, kG4})));
  clock_.advance(std::chrono::seconds(1));
  EXPECT_FALSE(pin.active());
  EXPECT_EQ(pin.pinned(), 0u);
  EXPECT_EQ(kv_->describe(hashes[0])->pins, 0u);
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2));
  use(hashes);
  EXPECT_EQ(kv_->describe(hashes[0])->in(kG1)->block.pins, 0u) << "what arrives now is not pinned";
}

TEST_F(ByHashTest, PinsThatATierCannotHaveAreRefusedWhole) {
  open();
  const auto hashes = sequence(1, 3);
  use(hashes);
  const Result<KvPin> refused = kv_->pin(hashes, kHour);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kCapacity);
  EXPECT_THAT(refused.error().message(), HasSubstr("3 hashes cannot be pinned in g1: all 2 pins are taken"));
  for (const SequenceHash& hash : hashes) {
    const KvBlockDescription found = kv_->describe(hash).value();
    for (const TierBlock& here : found.tiers) EXPECT_EQ(here.block.pins, 0u);
  }
  EXPECT_EQ(kv_->pin(hashes, Clock::Duration::zero()).error().code(), ErrorCode::kInvalidArgument);
  // One that arrives where no pin is left is counted.
  const auto later = sequence(2, 3);
  const KvPin pin = kv_->pin(later, kHour).value();
  use(later);
  EXPECT_EQ(pin.refused(), 1u);
  EXPECT_EQ(pin.pinned(), 11u);
}

TEST_F(ByHashTest, ManyPinsOfOneHashAreAllKept) {
  open();
  const auto hashes = sequence(1, 1);
  KvPin first = kv_->pin(hashes, kHour).value();
  const std::vector<SequenceHash> twice = {hashes[0], hashes[0]};
  const KvPin second = kv_->pin(twice, kHour).value();
  use(hashes);
  EXPECT_EQ(second.pinned(), 4u) << "a hash named twice is pinned once";
  EXPECT_EQ(kv_->describe(hashes[0])->pins, 2u);
  EXPECT_EQ(kv_->describe(hashes[0])->in(kG1)->block.pins, 2u);
  first = KvPin();
  EXPECT_EQ(kv_->describe(hashes[0])->in(kG1)->block.pins, 1u);
  flood();
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(1, in({kG1, kG2, kG3, kG4})));
}

TEST_F(ByHashTest, PinnedBlocksAreRemovedByResetBlocks) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  const KvPin pin = kv_->pin(hashes, kHour).value();
  ASSERT_TRUE(kv_->reset_blocks(std::span(hashes).subspan(1)));
  EXPECT_EQ(presence(hashes), (std::vector<TierPresence>{in({kG1, kG2, kG3, kG4}), {}}));
  EXPECT_EQ(pin.pinned(), 4u);
  kv_->check_invariants();
  use(hashes);
  EXPECT_EQ(pin.pinned(), 4u) << "the pin of a removed block does not come back with it";
  flood();
  EXPECT_EQ(presence(hashes), (std::vector<TierPresence>{in({kG1, kG2, kG3, kG4}), {}}));
  ASSERT_TRUE(kv_->reset(kG3));
  ASSERT_TRUE(kv_->reset(kG4));
  EXPECT_EQ(presence(hashes)[0], in({kG1, kG2}));
  kv_->check_invariants();
}

// A pin keeps a block from being evicted; it does not make a block of what is gone.
TEST_F(ByHashTest, APinDoesNotKeepABlockWhoseVolumeHasLeft) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  const KvPin pin = kv_->pin(hashes, kHour).value();
  EXPECT_EQ(kv_->unregister_volume("v").value(), 2u);
  EXPECT_EQ(presence(hashes), std::vector<TierPresence>(2, in({kG1, kG2, kG3})));
  EXPECT_EQ(pin.pinned(), 6u);
  ASSERT_TRUE(kv_->register_volume({.name = "w", .kind = "directory", .location = folder_.file("volume")}));
  ASSERT_TRUE(kv_->offload_to(kG4, hashes).value().wait());
  EXPECT_EQ(pin.pinned(), 8u) << "a new copy is pinned again";
  kv_->check_invariants();
}

// Work and memory for each hash of each other one would not end here.
TEST_F(ByHashTest, ATierIsResetThoughManyHashesArePinned) {
  open();
  std::vector<SequenceHash> hashes = sequence(1, 2);
  use(hashes);
  for (std::uint64_t i = 0; i < 50'000; ++i) hashes.push_back(SequenceHash::root(1'000'000 + i));
  const KvPin pin = kv_->pin(hashes, kHour).value();
  EXPECT_EQ(pin.pinned(), 8u);
  ASSERT_TRUE(kv_->reset(kG3));
  ASSERT_TRUE(kv_->reset(kG4));
  EXPECT_EQ(pin.pinned(), 4u);
  EXPECT_EQ(presence(sequence(1, 2)), std::vector<TierPresence>(2, in({kG1, kG2})));
}

TEST_F(ByHashTest, APinDoesNotKeepADamagedOrMissingBlock) {
  KvOptions made = KvWorkload::options(folder_.file("g3"));
  std::filesystem::create_directory(folder_.file("volume"));
  made.g4 = VolumeShape{.block_count = 40,
                        .volumes = {{.name = "v", .kind = "directory", .location = folder_.file("volume")}}};
  kv_ = KvBlockManager::create(made).value();
  const auto hashes = sequence(1, 1);
  use(hashes);
  kv_->reset(kG1).value();
  kv_->reset(kG2).value();
  const KvPin pin = kv_->pin(hashes, kHour).value();
  EXPECT_EQ(pin.pinned(), 2u);
  {
    const block::Hold hold = kv_->g3()->hold(hashes[0]).value();
    std::fstream file(folder_.file("g3"), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(g3_blocks_at(40) + hold.block_id().value() * 4096 + 100));
    file.put('x').put('y');
  }
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder_.file("volume")))
    if (entry.is_regular_file()) std::filesystem::remove(entry.path());
  EXPECT_TRUE(kv_->onboard(hashes).empty());
  EXPECT_EQ(kv_->status().g3->damaged, 1u);
  EXPECT_EQ(presence(hashes)[0], TierPresence());
  EXPECT_EQ(pin.pinned(), 0u);
  kv_->check_invariants();
  use(hashes);
  EXPECT_EQ(presence(hashes)[0], in({kG1, kG2, kG3, kG4}));
  EXPECT_EQ(pin.pinned(), 4u);
}

TEST_F(ByHashTest, AGuardMayOutliveTheManager) {
  open();
  const auto hashes = sequence(1, 2);
  use(hashes);
  KvPin pin = kv_->pin(hashes, kHour).value();
  kv_.reset();
  EXPECT_FALSE(pin.active());
  EXPECT_EQ(pin.pinned(), 0u);
  pin = KvPin();
}

// Random calls; a block that was seen in a tier under a pin must stay there until the pin ends.
TEST_F(ByHashTest, NoPinnedBlockIsEverLost) {
  Random random(11);
  KvOptions write_back = options();
  write_back.to_g2.trigger = Trigger::kNearEviction;
  kv_ = KvBlockManager::create(write_back).value();
  struct Kept {
    KvPin pin;
    std::vector<SequenceHash> hashes;
    Clock::TimePoint end;
    std::map<SequenceHash, std::uint8_t> seen;
  };
  std::vector<Kept> kept;
  std::size_t checked = 0;
  const std::uint64_t enough = ashlar::testing::rounds(600);
  for (std::uint64_t step = 0; step < enough || (step < 600 && checked <= 1000); ++step) {
    const auto hashes = sequence(1 + random.below(12), 1 + random.below(5));
    switch (random.below(8)) {
      case 0: {
        std::vector<SequenceHash> some = {hashes.back()};
        const auto ttl = std::chrono::seconds(1 + random.below(20));
        if (auto pin = kv_->pin(some, ttl)) kept.push_back({*std::move(pin), some, clock_.now() + ttl, {}});
        break;
      }
      case 1:
        if (!kept.empty()) kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(random.below(kept.size())));
        break;
      case 2:
        clock_.advance(std::chrono::seconds(random.below(3)));
        break;
      case 3:
        ASSERT_TRUE(kv_->reset(random.below(2) == 0 ? kG1 : kG2));
        break;
      default:
        int wrong = 0;
        {
          const auto table = KvWorkload(*kv_).request(hashes, &wrong);  // nothing where pins leave no room
        }
        ASSERT_EQ(wrong, 0);
        kv_->drain();
    }
    std::erase_if(kept, [&](const Kept& one) { return clock_.now() >= one.end; });
    for (Kept& one : kept) {
      ASSERT_TRUE(one.pin.active());
      const std::vector<TierPresence> now = kv_->presence(one.hashes);
      for (std::size_t i = 0; i < now.size(); ++i) {
        std::uint8_t& seen = one.seen[one.hashes[i]];
        if (one.pin.refused() == 0) {
          ASSERT_EQ(seen & ~now[i].bits, 0) << "step " << step;
          seen |= now[i].bits;
          checked += static_cast<std::size_t>(__builtin_popcount(seen));
        }
      }
    }
  }
  EXPECT_GT(checked, 1000u);
  kept.clear();
  kv_->check_invariants();
}

}  // namespace
}  // namespace ashlar::tiers
