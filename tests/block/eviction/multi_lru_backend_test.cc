#include "block/eviction/multi_lru_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/block_fixture.h"
#include "support/eviction_cases.h"

namespace ashlar::block {
namespace {

using support::drained;
using support::EvictionWorld;
using support::make_counting_registry;
using support::make_registry;
using support::name_of;
using support::peeked;
using support::value_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(MultiLruThresholdsTest, AscendBetweenOneAndFifteen) {
  EXPECT_TRUE(MultiLruThresholds{}.validate());
  EXPECT_TRUE((MultiLruThresholds{1, 2, 3}).validate());
  EXPECT_TRUE((MultiLruThresholds{13, 14, 15}).validate());
}

TEST(MultiLruThresholdsTest, OthersAreRefusedWithTheirValues) {
  for (const MultiLruThresholds wrong :
       {MultiLruThresholds{0, 8, 15}, MultiLruThresholds{3, 3, 15}, MultiLruThresholds{3, 8, 8},
        MultiLruThresholds{3, 8, 16}, MultiLruThresholds{8, 3, 15}, MultiLruThresholds{3, 15, 8}}) {
    const auto refused = wrong.validate();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    const std::string values = std::to_string(wrong.warm) + ", " + std::to_string(wrong.hot) + " and " +
                               std::to_string(wrong.very_hot);
    EXPECT_THAT(refused.error().message(), HasSubstr(values));
    EXPECT_THAT(refused.error().message(), HasSubstr("at most 15"));
    const auto backend = MultiLruBackend::create(EvictionContext{4, make_counting_registry()}, wrong);
    ASSERT_FALSE(backend);
    EXPECT_THAT(backend.error().message(), HasSubstr(values));
  }
}

TEST(MultiLruBackendTest, ARegistryThatDoesNotCountIsRefused) {
  const auto refused = MultiLruBackend::create(EvictionContext{4, make_registry()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("no frequency tracker"));
  EXPECT_THAT(refused.error().message(), HasSubstr("RegistryOptions::frequency"));
}

TEST(MultiLruBackendTest, TheBuilderReportsWhatIsWrong) {
  EXPECT_FALSE(support::builder_of(4).with_multi_lru_backend().build());
  auto builder = support::builder_of(4, make_counting_registry());
  EXPECT_TRUE(builder.with_multi_lru_backend().build());
  EXPECT_TRUE(builder.with_multi_lru_backend({1, 2, 3}).build());
  const auto refused = builder.with_multi_lru_backend({5, 4, 3}).build();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("5, 4 and 3"));
}

class MultiLruTierTest : public ::testing::Test {
 protected:
  void use(std::uint32_t id, int times) {
    for (int i = 0; i < times; ++i) world_.context.registry.touch(name_of(0, id));
  }
  void insert(std::uint32_t id) { backend_.insert(BlockId(id), name_of(0, id)); }

  EvictionWorld world_{16};
  MultiLruBackend backend_ = value_of(MultiLruBackend::create(world_.context));
};

TEST_F(MultiLruTierTest, TheColdestTierGoesFirstAndInItTheOldest) {
  use(0, 15);
  use(1, 8);
  use(2, 3);
  use(3, 14);
  use(4, 2);
  use(5, 7);
  for (std::uint32_t id = 0; id < 7; ++id) insert(id);
  // Very hot 0; hot 1 and 3; warm 2 and 5; cold 4 and 6.
  EXPECT_THAT(drained(backend_), ElementsAre(4u, 6u, 2u, 5u, 1u, 3u, 0u));
}

TEST_F(MultiLruTierTest, ATouchedBlockClimbsAndIsNotTheNextVictim) {
  for (std::uint32_t id = 0; id < 3; ++id) insert(id);
  EXPECT_EQ(peeked(backend_, 1).front(), 0u);
  use(0, 3);
  EXPECT_EQ(peeked(backend_, 1).front(), 0u) << "uses alone move nothing";
  backend_.touch(BlockId(0));
  EXPECT_THAT(peeked(backend_), ElementsAre(1u, 2u, 0u));
  use(1, 8);
  backend_.touch(BlockId(1));
  EXPECT_THAT(peeked(backend_), ElementsAre(2u, 0u, 1u));
  insert(3);  // cold, and newer than every other block
  EXPECT_THAT(peeked(backend_), ElementsAre(2u, 3u, 0u, 1u));
}

TEST_F(MultiLruTierTest, ATouchWithoutNewUsesMakesTheBlockTheNewestOfItsTier) {
  for (std::uint32_t id = 0; id < 3; ++id) insert(id);
  backend_.touch(BlockId(0));
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 2u, 0u));
}

TEST(MultiLruDecayTest, ABlockFallsBackWhenItsUsesHaveFaded) {
  RegistryOptions options;
  options.frequency = TinyLfuOptions{1 << 16, 1000};
  const EvictionContext context(4, value_of(BlockRegistry::create(options)));
  MultiLruBackend backend = value_of(MultiLruBackend::create(context));
  for (int i = 0; i < 10; ++i) context.registry.touch(name_of(0, 0));
  backend.insert(BlockId(0), name_of(0, 0));
  backend.insert(BlockId(1), name_of(0, 1));
  EXPECT_THAT(peeked(backend), ElementsAre(1u, 0u));
  for (std::uint32_t i = 0; i < 3'000; ++i) context.registry.touch(name_of(1, 100 + i));
  backend.touch(BlockId(0));
  backend.touch(BlockId(1));
  EXPECT_THAT(drained(backend), ElementsAre(0u, 1u));
}

TEST(MultiLruManagerTest, BlocksThatAreMatchedOftenOutliveNewerOnes) {
  support::Manager manager =
      value_of(support::builder_of(4, make_counting_registry()).with_multi_lru_backend().build());
  const auto popular = support::names_from(1, 1);
  const auto rare = support::names_from(100, 3);
  support::store_names(manager, popular).clear();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(manager.match_blocks(popular).size(), 1u);
  support::store_names(manager, rare).clear();
  const auto allocation = value_of(manager.allocate_blocks_with_evictions(3));
  EXPECT_THAT(allocation.evicted, ::testing::UnorderedElementsAreArray(rare));
  EXPECT_EQ(manager.match_blocks(popular).size(), 1u);
}

}  // namespace
}  // namespace ashlar::block
