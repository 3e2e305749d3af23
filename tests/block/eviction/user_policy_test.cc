// A reuse policy of a user's own, through the builder: the one of examples/lower_tier_first.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ashlar/base/random.h"
#include "lower_tier_first.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using examples::LowerTierFirst;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

SequenceHash policy_name(std::uint64_t n) {
  return SequenceHash::root(n + 1);
}

class UserPolicyTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 40;

  // Registers names 0 … n-1 in G1, oldest first.
  void fill_device(std::uint64_t n) {
    for (std::uint64_t i = 0; i < n; ++i) (void)store_name(device_, policy_name(i));
  }
  void copy_to_host(std::initializer_list<std::uint64_t> names) {
    for (const std::uint64_t n : names) (void)store_name(host_, policy_name(n));
  }
  std::vector<std::uint64_t> numbers(const std::vector<SequenceHash>& hashes) {
    std::vector<std::uint64_t> found;
    for (const SequenceHash& hash : hashes) found.push_back(hash.chain() - 1);
    return found;
  }
  // What goes when all that is free and n more are taken.
  std::vector<std::uint64_t> evict(std::size_t n) {
    const std::vector<SequenceHash> foretold = device_.eviction_candidates(n);
    const auto allocation = value_of(device_.allocate_blocks_with_evictions(device_.status().reset + n));
    EXPECT_EQ(allocation.evicted, foretold);
    return numbers(allocation.evicted);
  }

  BlockRegistry registry_ = make_registry();
  Manager device_ = value_of(builder_of(kBlocks, registry_).with_hashmap_backend<LowerTierFirst>().build());
  BlockManager<G2> host_ = manager_of<G2>(kBlocks, registry_);
};

TEST_F(UserPolicyTest, WhatTheLowerTierHoldsGoesFirst) {
  fill_device(6);
  copy_to_host({4, 2});
  EXPECT_THAT(evict(2), ElementsAre(2u, 4u));
}

TEST_F(UserPolicyTest, WithoutCopiesTheOldestGoes) {
  fill_device(6);
  EXPECT_THAT(evict(3), ElementsAre(0u, 1u, 2u));
}

TEST_F(UserPolicyTest, ThePreferenceIsNoVeto) {
  fill_device(6);
  copy_to_host({1});
  EXPECT_THAT(evict(6), ElementsAre(1u, 0u, 2u, 3u, 4u, 5u));
  EXPECT_THAT(evict(0), IsEmpty());
}

TEST_F(UserPolicyTest, ItLooksOnlyAtTheOldestFew) {
  fill_device(kBlocks);
  copy_to_host({LowerTierFirst::kLookAhead});  // one further than it looks
  EXPECT_THAT(evict(2), ElementsAre(0u, LowerTierFirst::kLookAhead))
      << "the first eviction brings it in sight";
}

TEST_F(UserPolicyTest, ACopyThatLeavesTheLowerTierCountsNoMore) {
  fill_device(4);
  copy_to_host({3});
  EXPECT_THAT(numbers(device_.eviction_candidates(2)), ElementsAre(3u, 0u));
  EXPECT_EQ(host_.reset_inactive_pool(), 1u);
  EXPECT_THAT(evict(2), ElementsAre(0u, 1u));
}

TEST_F(UserPolicyTest, ACopyInUseBelowCountsToo) {
  fill_device(4);
  const auto held = store_name(host_, policy_name(2));
  EXPECT_THAT(evict(1), ElementsAre(2u));
}

TEST_F(UserPolicyTest, AUseMakesABlockTheYoungest) {
  fill_device(4);
  (void)device_.match_blocks(std::vector{policy_name(0)});
  registry_.touch(policy_name(1));
  EXPECT_THAT(evict(4), ElementsAre(2u, 3u, 0u, 1u));
}

TEST_F(UserPolicyTest, PeekForetellsNextWhateverTheLowerTierHolds) {
  Random random(5);
  for (int round = 0; round < 20; ++round) {
    fill_device(kBlocks);
    for (std::uint64_t n = 0; n < kBlocks; ++n) {
      if (random.chance(0.3)) copy_to_host({n});
    }
    std::vector<std::uint64_t> all;
    while (all.size() < kBlocks) {
      const std::size_t n = std::min<std::size_t>(1 + random.below(20), kBlocks - all.size());
      const auto evicted = evict(n);  // compares what was foretold
      ASSERT_EQ(evicted.size(), n);
      all.insert(all.end(), evicted.begin(), evicted.end());
    }
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
    (void)host_.reset_inactive_pool();
    device_.check_invariants();
  }
}

}  // namespace
}  // namespace ashlar::block
