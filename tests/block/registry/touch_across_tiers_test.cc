// A use of a hash refreshes it in every pool that holds it inactive: managers of two tiers on one registry.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Names that have nothing to do with each other, so that every backend keeps them in the order of time.
SequenceHash name(std::uint64_t n) {
  return SequenceHash::root(n + 1);
}
std::vector<std::uint64_t> numbers(const std::vector<SequenceHash>& hashes) {
  std::vector<std::uint64_t> found;
  for (const SequenceHash& hash : hashes) found.push_back(hash.chain() - 1);
  return found;
}
template <events::Tier Tier>
std::vector<std::uint64_t> order_of(const BlockManager<Tier>& manager) {
  return numbers(manager.eviction_candidates(manager.total_blocks()));
}
template <events::Tier Tier>
void use(BlockManager<Tier>& manager, std::uint64_t n) {
  EXPECT_EQ(manager.match_blocks(std::vector{name(n)}).size(), 1u);
}

template <events::Tier Tier>
BlockManager<Tier> manager_with(const std::string& backend, const BlockRegistry& registry) {
  return value_of(builder_of<Tier>(8, registry).with_backend(backend).build());
}

class TouchAcrossTiersTest : public ::testing::TestWithParam<std::string> {
 protected:
  TouchAcrossTiersTest() {
    for (std::uint64_t n = 0; n < 3; ++n) {
      (void)store_name(device_, name(n));
      (void)store_name(host_, name(n));
    }
    before_ = order_of(host_);
  }
  // In G2, after a use of name 0 and no other.
  void expect_refreshed() const {
    if (GetParam() == "hashmap_fifo" || GetParam() == "fifo") {
      EXPECT_THAT(order_of(host_), ElementsAre(0u, 1u, 2u)) << "the order of release";
    } else if (GetParam() == "hashmap_lifo") {
      EXPECT_THAT(order_of(host_), ElementsAre(2u, 1u, 0u)) << "the order of release";
    } else {
      EXPECT_THAT(order_of(host_), ElementsAre(1u, 2u, 0u));
    }
    host_.check_invariants();
  }
  // Whether what is used last is evicted last; s3_fifo gives it another turn only.
  bool last_used_goes_last() const {
    return GetParam() != "fifo" && GetParam() != "hashmap_fifo" && GetParam() != "hashmap_lifo" &&
           GetParam() != "s3_fifo";
  }
  void expect_unmoved() const { EXPECT_EQ(order_of(host_), before_); }

  BlockRegistry registry_ = make_counting_registry();
  Manager device_ = manager_of(8, registry_);
  BlockManager<G2> host_ = manager_with<G2>(GetParam(), registry_);
  std::vector<std::uint64_t> before_;
};

TEST_P(TouchAcrossTiersTest, AMatchOfAnInactiveBlock) {
  use(device_, 0);
  expect_refreshed();
}

TEST_P(TouchAcrossTiersTest, AMatchOfABlockInUse) {
  const auto held = device_.match_blocks(std::vector{name(0)});
  use(host_, 1);
  use(host_, 2);
  use(device_, 0);
  if (last_used_goes_last()) {
    EXPECT_EQ(order_of(host_).back(), 0u);
  }
}

TEST_P(TouchAcrossTiersTest, AScatteredMatch) {
  const auto found = device_.match_blocks_scattered(std::vector{name(7), name(0)});
  EXPECT_TRUE(found[1]);
  expect_refreshed();
}

TEST_P(TouchAcrossTiersTest, AVerifiedMatch) {
  const TokenSequence sequence = sequence_of(1, 700);
  const SequenceHash hash = sequence.blocks()[0].sequence_hash();
  (void)host_.reset_inactive_pool();
  (void)store_name(host_, hash);
  (void)store_name(host_, name(1));
  (void)store_one(device_, sequence.blocks()[0]);
  EXPECT_EQ(device_.match_blocks(sequence.blocks()).size(), 1u);
  const bool stays = GetParam() == "hashmap_fifo" || GetParam() == "fifo";
  EXPECT_EQ(host_.eviction_candidates(2).back() == hash, !stays);
}

TEST_P(TouchAcrossTiersTest, AScanThatTouches) {
  EXPECT_EQ(device_.scan_matches(std::vector{name(0), name(0)}, /*touch=*/true).size(), 1u);
  expect_refreshed();
}

TEST_P(TouchAcrossTiersTest, LooksThatAreNoUseMoveNothing) {
  EXPECT_EQ(device_.scan_matches(std::vector{name(0)}, /*touch=*/false).size(), 1u);
  EXPECT_TRUE(registry_.match_sequence_hash(name(0), /*touch=*/false));
  EXPECT_TRUE(registry_.is_registered(name(0)));
  EXPECT_EQ(registry_.registered_prefix(std::vector{name(0)}), 1u);
  (void)registry_.check_presence<G1>(std::vector{name(0)});
  (void)device_.eviction_candidates(3);
  const RegistrationHandle handle = registry_.register_sequence_hash(name(0));
  EXPECT_TRUE(handle.has_block<G2>());
  expect_unmoved();
}

TEST_P(TouchAcrossTiersTest, AMissMovesNothing) {
  EXPECT_TRUE(device_.match_blocks(std::vector{name(6), name(0)}).empty());
  registry_.touch(name(6));
  expect_unmoved();
}

TEST_P(TouchAcrossTiersTest, ATouchByName) {
  registry_.touch(name(0));
  expect_refreshed();
  EXPECT_THAT(order_of(device_), ElementsAre(1u, 2u, 0u)) << "all pools hear of it";
}

TEST_P(TouchAcrossTiersTest, ATouchByHandle) {
  const auto handle = registry_.match_sequence_hash(name(0), /*touch=*/false);
  ASSERT_TRUE(handle);
  handle->touch();
  expect_refreshed();
  EXPECT_THAT(order_of(device_), ElementsAre(1u, 2u, 0u));
}

TEST_P(TouchAcrossTiersTest, ALookInTheRegistryThatTouches) {
  EXPECT_TRUE(registry_.match_sequence_hash(name(0), /*touch=*/true));
  expect_refreshed();
  EXPECT_THAT(order_of(device_), ElementsAre(1u, 2u, 0u));
}

TEST_P(TouchAcrossTiersTest, ATouchOfAHashThatOnlyOnePoolHolds) {
  EXPECT_EQ(device_.reset_inactive_pool(), 3u);
  registry_.touch(name(0));
  expect_refreshed();
}

TEST_P(TouchAcrossTiersTest, EveryHashOfALongMatch) {
  const auto names = names_from(99, 100);
  auto builder = builder_of<G2>(200, registry_);
  BlockManager<G2> large = value_of(builder.with_backend(GetParam()).build());
  Manager device = manager_of(200, registry_);
  for (const SequenceHash& each : names) {
    (void)store_name(device, each);
    (void)store_name(large, each);
  }
  EXPECT_EQ(device.match_blocks(std::span(names).first(70)).size(), 70u);
  if (!last_used_goes_last()) return;
  const auto order = large.eviction_candidates(100);
  EXPECT_TRUE(std::is_permutation(order.begin() + 30, order.end(), names.begin(), names.begin() + 70))
      << "what was used goes last";
  large.check_invariants();
}

TEST_P(TouchAcrossTiersTest, ABlockInUseStaysInUse) {
  auto held = host_.match_blocks(std::vector{name(0)});
  use(device_, 0);
  registry_.touch(name(0));
  EXPECT_EQ(places(host_).active, 1u);
  EXPECT_EQ(places(host_).inactive, 2u);
  held.clear();
  EXPECT_EQ(places(host_).inactive, 3u);
}

TEST_P(TouchAcrossTiersTest, APinnedBlockStaysAside) {
  {
    const Pin pin = value_of(host_.pin(name(0), std::chrono::hours(1)));
    use(device_, 0);
    registry_.touch(name(0));
    EXPECT_EQ(places(host_).pinned, 1u);
    EXPECT_EQ(order_of(host_).size(), 2u);
  }
  EXPECT_EQ(places(host_).inactive, 3u);
}

TEST_P(TouchAcrossTiersTest, CallbacksRunBesideTheRefresh) {
  const auto handle = registry_.match_sequence_hash(name(0), /*touch=*/false);
  ASSERT_TRUE(handle);
  std::size_t calls = 0;
  handle->on_touch([&](const RegistrationHandle&) {
    host_.check_invariants();  // no lock is held
    ++calls;
  });
  use(device_, 0);
  EXPECT_EQ(calls, 1u) << "one use, one call";
  expect_refreshed();
  registry_.touch(name(0));
  handle->touch();
  use(host_, 0);
  EXPECT_EQ(calls, 4u);
}

INSTANTIATE_TEST_SUITE_P(Backends, TouchAcrossTiersTest, ::testing::ValuesIn(eviction_names()),
                         [](const auto& tested) { return tested.param; });

TEST(TouchAcrossTiersMoreTest, AMatchOrdersTheOtherPoolAsAReleaseDoesTheEndOfTheSequenceFirst) {
  const BlockRegistry registry = make_registry();
  constexpr std::size_t kBlocks = 100;  // more than one stretch of a match
  Manager device = manager_of(2 * kBlocks, registry);
  BlockManager<G2> host = manager_of<G2>(2 * kBlocks, registry);
  const TokenSequence sequence = sequence_of(kBlocks);
  const TokenSequence other = sequence_of(1, 1 << 20);
  store_all(device, sequence).clear();
  store_all(host, sequence).clear();
  store_all(host, other).clear();
  const std::vector<SequenceHash> names = sequence.sequence_hashes();
  EXPECT_EQ(device.match_blocks(names).size(), kBlocks);
  std::vector<SequenceHash> expected = other.sequence_hashes();
  expected.insert(expected.end(), names.rbegin(), names.rend());
  EXPECT_EQ(host.eviction_candidates(2 * kBlocks), expected);
}

TEST(TouchAcrossTiersMoreTest, FrequentUseInOneTierMakesABlockHotInAnother) {
  const BlockRegistry registry = make_counting_registry();
  Manager device = manager_of(8, registry);
  BlockManager<G2> host = manager_with<G2>("multi_lru", registry);
  for (std::uint64_t n = 0; n < 3; ++n) {
    (void)store_name(device, name(n));
    (void)store_name(host, name(n));
  }
  for (int i = 0; i < 4; ++i) use(device, 0);
  use(device, 1);
  use(device, 2);
  EXPECT_THAT(order_of(host), ElementsAre(1u, 2u, 0u)) << "by time alone, 0 would go first";
}

TEST(TouchAcrossTiersMoreTest, AHitElsewhereKeepsABlockFromThoseNeverHit) {
  const BlockRegistry registry = make_counting_registry();
  Manager device = manager_of(8, registry);
  BlockManager<G2> host =
      value_of(builder_of<G2>(8, registry).with_retention_backend({.never_hit_first = true}).build());
  (void)store_name(device, name(0));
  (void)store_name(host, name(0));
  use(device, 0);
  (void)store_name(host, name(1));
  EXPECT_THAT(order_of(host), ElementsAre(1u, 0u)) << "by time alone, 0 would go first";
}

TEST(TouchAcrossTiersMoreTest, TwoManagersOfOneTier) {
  const BlockRegistry registry = make_registry();
  Manager first = manager_of(8, registry);
  Manager second = manager_of(8, registry);
  for (std::uint64_t n = 0; n < 3; ++n) {
    (void)store_name(first, name(n));
    (void)store_name(second, name(n));
  }
  use(first, 1);
  EXPECT_THAT(order_of(second), ElementsAre(0u, 2u, 1u));
}

TEST(TouchAcrossTiersMoreTest, AnotherRegistryHearsNothing) {
  Manager first = manager_of(8, make_registry());
  Manager second = manager_of(8, make_registry());
  for (std::uint64_t n = 0; n < 2; ++n) {
    (void)store_name(first, name(n));
    (void)store_name(second, name(n));
  }
  use(first, 0);
  EXPECT_THAT(order_of(second), ElementsAre(0u, 1u));
}

TEST(TouchAcrossTiersMoreTest, AManagerThatIsGoneHearsNothing) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of(8, registry);
  std::optional<BlockManager<G2>> host = manager_of<G2>(8, registry);
  for (std::uint64_t n = 0; n < 2; ++n) {
    (void)store_name(device, name(n));
    (void)store_name(*host, name(n));
  }
  host.reset();
  use(device, 0);
  registry.touch(name(1));
  EXPECT_THAT(order_of(device), ElementsAre(0u, 1u));

  // One that comes later does.
  host.emplace(manager_of<G2>(8, registry));
  (void)store_name(*host, name(0));
  (void)store_name(*host, name(1));
  use(device, 0);
  EXPECT_THAT(order_of(*host), ElementsAre(1u, 0u));
}

TEST(TouchAcrossTiersMoreTest, ACallbackMayDestroyAnotherManager) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of(8, registry);
  std::optional<BlockManager<G2>> host = manager_of<G2>(8, registry);
  (void)store_name(device, name(0));
  (void)store_name(*host, name(0));
  const auto handle = registry.match_sequence_hash(name(0), /*touch=*/false);
  ASSERT_TRUE(handle);
  handle->on_touch([&](const RegistrationHandle&) { host.reset(); });
  use(device, 0);
  EXPECT_FALSE(host);
  registry.touch(name(0));
  EXPECT_FALSE(handle->has_block<G2>());
}

TEST(TouchAcrossTiersMoreTest, AMovedManagerHears) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of(8, registry);
  BlockManager<G2> old_place = manager_of<G2>(8, registry);
  for (std::uint64_t n = 0; n < 2; ++n) {
    (void)store_name(device, name(n));
    (void)store_name(old_place, name(n));
  }
  const BlockManager<G2> host = std::move(old_place);
  use(device, 0);
  EXPECT_THAT(order_of(host), ElementsAre(1u, 0u));
}

}  // namespace
}  // namespace ashlar::block
