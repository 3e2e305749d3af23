// The order of each backend that keeps one list or one heap, spelled out; the suite over all of them is
// eviction_conformance_test.cc.
#include "ashlar/block/reuse_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "block/eviction/lru_backend.h"
#include "support/block_fixture.h"
#include "support/eviction_cases.h"

namespace ashlar::block {
namespace {

using support::drained;
using support::EvictionWorld;
using support::make_registry;
using support::name_of;
using support::value_of;
using ::testing::ElementsAre;

template <class Backend>
void insert_all(Backend& backend, std::initializer_list<std::uint32_t> ids) {
  for (const std::uint32_t id : ids) backend.insert(BlockId(id), name_of(0, id));
}
template <class Backend>
void renew(Backend& backend, std::uint32_t id) {
  backend.remove(BlockId(id));
  backend.insert(BlockId(id), name_of(0, id));
}

TEST(LruBackendTest, EvictsWhatWasReleasedOrTouchedLongestAgo) {
  LruBackend lru(EvictionContext{8, make_registry()});
  insert_all(lru, {3, 1, 4, 0, 5});
  lru.touch(BlockId(1));
  renew(lru, 4);
  lru.touch(BlockId(3));
  EXPECT_THAT(drained(lru), ElementsAre(0u, 5u, 1u, 4u, 3u));
}

TEST(FifoReuseTest, EvictsWhatWasReleasedFirstWhateverIsTouched) {
  HashMapBackend<FifoReuse> fifo(FifoReuse(EvictionContext{8, make_registry()}));
  insert_all(fifo, {3, 1, 4, 0, 5});
  fifo.touch(BlockId(3));
  renew(fifo, 1);
  EXPECT_THAT(drained(fifo), ElementsAre(3u, 4u, 0u, 5u, 1u));
}

TEST(LifoReuseTest, EvictsWhatWasReleasedLastWhateverIsTouched) {
  HashMapBackend<LifoReuse> lifo(EvictionContext{8, make_registry()});
  insert_all(lifo, {3, 1, 4, 0, 5});
  lifo.touch(BlockId(3));
  renew(lifo, 1);
  EXPECT_THAT(drained(lifo), ElementsAre(1u, 5u, 0u, 4u, 3u));
}

TEST(LruReuseTest, EvictsWhatWasReleasedOrTouchedLongestAgo) {
  HashMapBackend<LruReuse> lru(EvictionContext{8, make_registry()});
  insert_all(lru, {3, 1, 4, 0, 5});
  lru.touch(BlockId(3));
  renew(lru, 1);
  EXPECT_THAT(drained(lru), ElementsAre(4u, 0u, 5u, 3u, 1u));
}

class PriorityReuseTest : public ::testing::Test {
 protected:
  void prioritise(std::uint32_t id, std::uint8_t priority,
                  Clock::TimePoint until = BlockRetention::kForever) {
    world_.facts->set_retention(BlockId(id), {priority, until});
  }
  EvictionWorld world_{8};
  HashMapBackend<PriorityReuse> backend_{world_.context};
};

TEST_F(PriorityReuseTest, EvictsTheLowestPriorityFirstAndOfEqualsTheOldestRelease) {
  prioritise(0, 80);
  prioritise(1, 10);
  prioritise(2, 80);
  prioritise(3, 10);
  insert_all(backend_, {0, 1, 4, 2, 3, 5});
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 3u, 4u, 5u, 0u, 2u));
}

TEST_F(PriorityReuseTest, ABlockNobodySpokeAboutHasTheDefaultPriority) {
  prioritise(0, BlockRetention::kDefaultPriority + 1);
  prioritise(1, BlockRetention::kDefaultPriority);
  prioritise(2, BlockRetention::kDefaultPriority - 1);
  insert_all(backend_, {0, 1, 3, 2});
  EXPECT_THAT(drained(backend_), ElementsAre(2u, 1u, 3u, 0u));
}

TEST_F(PriorityReuseTest, ATouchIsANewReleaseWithThePriorityOfThatMoment) {
  insert_all(backend_, {0, 1, 2});
  backend_.touch(BlockId(0));
  prioritise(1, 0);  // not seen before the next touch
  EXPECT_THAT(support::peeked(backend_), ElementsAre(1u, 2u, 0u));
  prioritise(2, 90);
  backend_.touch(BlockId(2));
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 0u, 2u));
}

TEST_F(PriorityReuseTest, TheTimeOfARetentionIsNotLookedAt) {
  prioritise(0, 90, world_.clock.now() + std::chrono::seconds(1));
  insert_all(backend_, {0, 1});
  world_.clock.advance(std::chrono::hours(1));
  EXPECT_THAT(drained(backend_), ElementsAre(1u, 0u));
}

TEST_F(PriorityReuseTest, AsksForTheFactsItReads) {
  EXPECT_TRUE(world_.facts->keeps_retentions());
  EXPECT_TRUE(world_.facts->keeps_acquisitions());
  EXPECT_FALSE(world_.facts->keeps_hits());
  EXPECT_FALSE(world_.facts->keeps_parents());
}

TEST(PriorityKeyTest, PriorityThenReturnThenAcquisition) {
  EXPECT_LT((PriorityKey{1, 9, 9}), (PriorityKey{2, 0, 0}));
  EXPECT_LT((PriorityKey{1, 1, 9}), (PriorityKey{1, 2, 0}));
  EXPECT_LT((PriorityKey{1, 1, 1}), (PriorityKey{1, 1, 2}));
  EXPECT_EQ((PriorityKey{1, 1, 1}), (PriorityKey{1, 1, 1}));
}

// ---- a policy of one's own: the highest block id first

class HighestIdReuse {
 public:
  explicit HighestIdReuse(const EvictionContext&) {}
  void insert(BlockId id, const tokens::SequenceHash&) { ids_.insert(id); }
  void remove(BlockId id) { ids_.erase(id); }
  std::optional<BlockId> next() {
    if (ids_.empty()) return std::nullopt;
    const BlockId id = *ids_.rbegin();
    ids_.erase(id);
    return id;
  }
  std::size_t peek(std::span<BlockId> out) const {
    std::size_t count = 0;
    for (auto id = ids_.rbegin(); id != ids_.rend() && count < out.size(); ++id) out[count++] = *id;
    return count;
  }
  std::size_t size() const { return ids_.size(); }

 private:
  std::set<BlockId> ids_;
};

TEST(HashMapBackendTest, APolicyOfOnesOwnNeedsNoTouchAndNoSize) {
  support::Manager manager = value_of(support::builder_of(4).with_hashmap_backend<HighestIdReuse>().build());
  support::store_names(manager, support::names_from(1, 4)).clear();
  const auto blocks = value_of(manager.allocate_blocks(4));
  EXPECT_THAT(support::ids_of(blocks), ElementsAre(3u, 2u, 1u, 0u));
}

TEST(HashMapBackendTest, EveryReuseOrderBuildsAManager) {
  for (const auto order : {ReuseOrder::kFifo, ReuseOrder::kLifo, ReuseOrder::kLru, ReuseOrder::kPriority}) {
    support::Manager manager = value_of(support::builder_of(3).with_hashmap_backend(order).build());
    auto held = support::store_names(manager, support::names_from(1, 3));
    const auto ids = support::ids_of(held);
    for (std::size_t i = 0; i < 3; ++i) const auto released = held.take_back();
    const auto victims = support::ids_of(value_of(manager.allocate_blocks(3)));
    if (order == ReuseOrder::kLifo) {
      EXPECT_EQ(victims, ids);
    } else {
      EXPECT_EQ(victims, (std::vector<std::uint32_t>(ids.rbegin(), ids.rend())));
    }
  }
}

}  // namespace
}  // namespace ashlar::block
