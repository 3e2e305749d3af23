// One suite over every eviction backend. A new backend adds one line to Backends, and its own order tests
// below.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <set>

#include "ashlar/base/random.h"
#include "ashlar/block/eviction.h"
#include "ashlar/block/hash_map_backend.h"
#include "ashlar/block/lru_backend.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using support::make_registry;
using support::name_of;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <class Backend>
Backend make_backend(const EvictionContext& context) {
  if constexpr (std::is_constructible_v<Backend, const EvictionContext&>) {
    return Backend(context);
  } else {
    return Backend(FifoReuse(context));
  }
}

template <class Backend>
class EvictionConformanceTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 40;

  std::vector<std::uint32_t> peeked(std::size_t n) const {
    std::vector<BlockId> ids(n);
    ids.resize(backend_.peek(ids));
    std::vector<std::uint32_t> values;
    for (const BlockId id : ids) values.push_back(id.value());
    return values;
  }
  void insert(std::uint32_t id) { backend_.insert(BlockId(id), name_of(id % 7, id)); }

  Backend backend_ = make_backend<Backend>(EvictionContext{kBlocks, make_registry()});
};

using Backends = ::testing::Types<LruBackend,  //
                                  HashMapBackend<FifoReuse>>;
TYPED_TEST_SUITE(EvictionConformanceTest, Backends);

TYPED_TEST(EvictionConformanceTest, StartsEmpty) {
  static_assert(EvictionBackend<TypeParam>);
  EXPECT_EQ(this->backend_.size(), 0u);
  EXPECT_FALSE(this->backend_.pop());
  EXPECT_TRUE(this->peeked(5).empty());
}

TYPED_TEST(EvictionConformanceTest, GivesBackEveryBlockExactlyOnce) {
  for (std::uint32_t id = 0; id < this->kBlocks; ++id) this->insert(id);
  EXPECT_EQ(this->backend_.size(), this->kBlocks);
  std::set<std::uint32_t> seen;
  while (const auto victim = this->backend_.pop()) EXPECT_TRUE(seen.insert(victim->value()).second);
  EXPECT_EQ(seen.size(), this->kBlocks);
  EXPECT_EQ(this->backend_.size(), 0u);
  EXPECT_FALSE(this->backend_.pop());
}

TYPED_TEST(EvictionConformanceTest, PeekForetellsPopAndChangesNothing) {
  for (std::uint32_t id = 0; id < 20; ++id) this->insert(id * 2);
  const auto foretold = this->peeked(100);
  ASSERT_EQ(foretold.size(), 20u);
  EXPECT_EQ(this->peeked(100), foretold);
  EXPECT_EQ(this->peeked(3), (std::vector(foretold.begin(), foretold.begin() + 3)));
  EXPECT_TRUE(this->peeked(0).empty());
  EXPECT_EQ(this->backend_.size(), 20u);
  for (const std::uint32_t id : foretold) EXPECT_EQ(this->backend_.pop()->value(), id);
}

TYPED_TEST(EvictionConformanceTest, ARemovedBlockIsNoVictimAndMayComeBack) {
  for (std::uint32_t id = 0; id < 5; ++id) this->insert(id);
  for (const std::uint32_t id : {0u, 2u, 4u}) this->backend_.remove(BlockId(id));
  EXPECT_EQ(this->backend_.size(), 2u);
  for (const std::uint32_t id : this->peeked(5)) EXPECT_TRUE(id == 1 || id == 3);
  this->insert(2);
  EXPECT_EQ(this->backend_.size(), 3u);
}

TYPED_TEST(EvictionConformanceTest, ATouchKeepsTheBlock) {
  for (std::uint32_t id = 0; id < 5; ++id) this->insert(id);
  for (std::uint32_t id = 0; id < 5; ++id) this->backend_.touch(BlockId(id));
  EXPECT_EQ(this->backend_.size(), 5u);
  std::set<std::uint32_t> seen;
  while (const auto victim = this->backend_.pop()) seen.insert(victim->value());
  EXPECT_EQ(seen.size(), 5u);
}

TYPED_TEST(EvictionConformanceTest, HoldsExactlyTheRightBlocksThroughRandomTurns) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    auto backend = make_backend<TypeParam>(EvictionContext{this->kBlocks, make_registry()});
    std::set<std::uint32_t> model;
    Random random(seed);
    for (int turn = 0; turn < 20000; ++turn) {
      const auto id = static_cast<std::uint32_t>(random.below(this->kBlocks));
      switch (random.below(4)) {
        case 0:
          if (model.insert(id).second) backend.insert(BlockId(id), name_of(id % 7, turn));
          break;
        case 1:
          if (model.erase(id) != 0) backend.remove(BlockId(id));
          break;
        case 2:
          if (model.contains(id)) backend.touch(BlockId(id));
          break;
        default: {
          BlockId next[1];
          const std::size_t foretold = backend.peek(next);
          ASSERT_EQ(foretold, model.empty() ? 0u : 1u);
          if (random.chance(0.3)) {
            const auto victim = backend.pop();
            ASSERT_EQ(victim.has_value(), !model.empty());
            if (victim) {
              ASSERT_EQ(*victim, next[0]);
              ASSERT_EQ(model.erase(victim->value()), 1u);
            }
          }
          break;
        }
      }
      ASSERT_EQ(backend.size(), model.size());
      if (turn % 500 == 0) {
        std::vector<BlockId> all(this->kBlocks);
        all.resize(backend.peek(all));
        std::set<std::uint32_t> seen;
        for (const BlockId each : all) seen.insert(each.value());
        ASSERT_EQ(seen, model);
      }
    }
  }
}

TYPED_TEST(EvictionConformanceTest, ThePoolOverItFillsSpansAndReportsWhatItHas) {
  InactivePoolOf<TypeParam> pool(make_backend<TypeParam>(EvictionContext{this->kBlocks, make_registry()}));
  for (std::uint32_t id = 0; id < 10; ++id) pool.insert(BlockId(id), name_of(0, id));
  pool.remove(BlockId(3));
  pool.touch(BlockId(4));
  EXPECT_EQ(pool.size(), 9u);
  BlockId foretold[4];
  EXPECT_EQ(pool.peek(foretold), 4u);
  BlockId out[6];
  EXPECT_EQ(pool.pop(std::span(out).first(4)), 4u);
  EXPECT_TRUE(std::equal(out, out + 4, foretold));
  EXPECT_EQ(pool.pop(out), 5u);
  EXPECT_EQ(pool.pop(out), 0u);
}

// ---- the order of each policy

std::vector<std::uint32_t> drained(auto& backend) {
  std::vector<std::uint32_t> ids;
  while (const auto victim = backend.pop()) ids.push_back(victim->value());
  return ids;
}

TEST(LruBackendTest, EvictsWhatWasReleasedOrTouchedLongestAgo) {
  LruBackend lru(EvictionContext{8, make_registry()});
  for (const std::uint32_t id : {3u, 1u, 4u, 0u, 5u}) lru.insert(BlockId(id), name_of(0, id));
  lru.touch(BlockId(1));
  lru.remove(BlockId(4));
  lru.insert(BlockId(4), name_of(0, 4));
  lru.touch(BlockId(3));
  EXPECT_THAT(drained(lru), ElementsAre(0u, 5u, 1u, 4u, 3u));
}

TEST(FifoReuseTest, EvictsWhatWasReleasedFirstWhateverIsTouched) {
  HashMapBackend<FifoReuse> fifo(FifoReuse(EvictionContext{8, make_registry()}));
  for (const std::uint32_t id : {3u, 1u, 4u, 0u, 5u}) fifo.insert(BlockId(id), name_of(0, id));
  fifo.touch(BlockId(3));
  fifo.remove(BlockId(1));
  fifo.insert(BlockId(1), name_of(0, 1));
  EXPECT_THAT(drained(fifo), ElementsAre(3u, 4u, 0u, 5u, 1u));
}

TEST(IntrusiveOrderTest, FrontIsTheFirstOrNothing) {
  IntrusiveOrder order(3);
  EXPECT_FALSE(order.front());
  EXPECT_TRUE(order.empty());
  order.push_back(BlockId(2));
  order.push_back(BlockId(0));
  EXPECT_EQ(order.front(), BlockId(2));
  order.remove(BlockId(2));
  EXPECT_EQ(order.front(), BlockId(0));
  EXPECT_EQ(order.pop_front(), BlockId(0));
  EXPECT_FALSE(order.pop_front());
}

// ---- by name

TEST(EvictionByNameTest, EveryNameMakesAWorkingBackend) {
  EXPECT_FALSE(eviction_names().empty());
  for (const std::string& name : eviction_names()) {
    const auto factory = eviction_by_name(name);
    ASSERT_TRUE(factory) << name;
    auto pool = (*factory)(EvictionContext{4, make_registry()});
    ASSERT_TRUE(pool) << name;
    (*pool)->insert(BlockId(2), name_of(0, 1));
    BlockId out[2];
    ASSERT_EQ((*pool)->pop(out), 1u) << name;
    EXPECT_EQ(out[0], BlockId(2));
  }
}

TEST(EvictionByNameTest, NamesAreSortedAndUnique) {
  auto names = eviction_names();
  EXPECT_TRUE(std::is_sorted(names.begin(), names.end()));
  EXPECT_EQ(std::unique(names.begin(), names.end()), names.end());
}

TEST(EvictionByNameTest, AnUnknownNameIsAnsweredWithTheNamesThereAre) {
  for (const char* unknown : {"", "LRU", "lru ", "nothing"}) {
    const auto refused = eviction_by_name(unknown);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::kNotFound);
    EXPECT_THAT(refused.error().message(), HasSubstr("'" + std::string(unknown) + "'"));
    for (const std::string& name : eviction_names()) EXPECT_THAT(refused.error().message(), HasSubstr(name));
  }
}

}  // namespace
}  // namespace ashlar::block
