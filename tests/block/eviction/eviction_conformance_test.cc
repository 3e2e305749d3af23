// One suite over every eviction backend, and the names by which configuration finds them. A new backend adds
// a case to Cases (support/eviction_cases.h); tests that spell out its rules have a file of their own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/block/eviction.h"
#include "support/block_fixture.h"
#include "support/eviction_cases.h"
#include "support/rounds.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace): the cases
using std::chrono::microseconds;
using ::testing::HasSubstr;

// A backend as the store drives it: blocks begin lives, are in use, inactive and gone.
template <class Case>
class Driver {
 public:
  using Backend = typename Case::Backend;
  enum class Place { kGone, kInUse, kInactive };

  explicit Driver(std::uint32_t blocks) : world_(blocks), hashes_(blocks), places_(blocks, Place::kGone) {
    if constexpr (HasOrderModel<Case>) model_.emplace(world_);
  }

  EvictionWorld& world() { return world_; }
  Backend& backend() { return backend_; }
  Place place(std::uint32_t id) const { return places_[id]; }
  const SequenceHash& hash(std::uint32_t id) const { return hashes_[id]; }
  std::set<std::uint32_t> inactive() const {
    std::set<std::uint32_t> ids;
    for (std::uint32_t id = 0; id < places_.size(); ++id) {
      if (places_[id] == Place::kInactive) ids.insert(id);
    }
    return ids;
  }

  // The block gets a new name and is in use.
  void begin(std::uint32_t id) {
    hashes_[id] = name_of(id % 7, ++chain_);
    places_[id] = Place::kInUse;
    world_.facts->begin_life(BlockId(id));
    if constexpr (FollowsRegistrations<Backend>) backend_.registered(BlockId(id), hashes_[id]);
  }
  void end(std::uint32_t id) {
    places_[id] = Place::kGone;
    if constexpr (FollowsRegistrations<Backend>) backend_.unregistered(BlockId(id));
  }
  void insert(std::uint32_t id) {
    places_[id] = Place::kInactive;
    backend_.insert(BlockId(id), hashes_[id]);
    if (model_) model_->insert(BlockId(id), hashes_[id]);
  }
  void begin_and_insert(std::uint32_t id) {
    begin(id);
    insert(id);
  }
  void remove(std::uint32_t id) {
    places_[id] = Place::kInUse;
    backend_.remove(BlockId(id));
    world_.facts->acquire(BlockId(id));
    if (model_) model_->remove(BlockId(id));
  }
  void touch(std::uint32_t id) {
    backend_.touch(BlockId(id));
    if (model_) model_->touch(BlockId(id));
  }
  std::optional<std::uint32_t> pop() {
    const std::optional<BlockId> victim = backend_.pop();
    if (!victim) return std::nullopt;
    places_[victim->value()] = Place::kGone;
    if (model_) model_->remove(*victim);
    return victim->value();
  }
  // Facts as users of blocks make them.
  void speak_about(std::uint32_t id, Random& random) {
    if (random.chance(0.5)) {
      BlockRetention retention{static_cast<std::uint8_t>(random.below(101)), BlockRetention::kForever};
      if (random.chance(0.7)) retention.until = world_.clock.now() + microseconds(random.below(60'000'000));
      world_.facts->set_retention(BlockId(id), retention);
    }
    if (random.chance(0.3)) world_.facts->set_hit(BlockId(id));
    for (auto uses = random.below(5); uses > 0; --uses) world_.context.registry.touch(hashes_[id]);
  }
  // The whole order is as the model has it; without a model, the blocks are the right ones.
  void compare() {
    const auto all = peeked(backend_);
    ASSERT_EQ(backend_.size(), all.size());
    ASSERT_EQ((std::set<std::uint32_t>(all.begin(), all.end())), inactive());
    if constexpr (HasOrderModel<Case>) {
      ASSERT_EQ(all, model_->order());
    }
  }

 private:
  struct NoModel {
    void insert(BlockId, const SequenceHash&) {}
    void remove(BlockId) {}
    void touch(BlockId) {}
  };
  template <class C>
  struct ModelOf {
    using Type = NoModel;
  };
  template <HasOrderModel C>
  struct ModelOf<C> {
    using Type = NaiveOrder<C>;
  };

  EvictionWorld world_;
  Backend backend_ = Case::make(world_.context);
  std::vector<SequenceHash> hashes_;
  std::vector<Place> places_;
  std::optional<typename ModelOf<Case>::Type> model_;
  std::uint64_t chain_ = 0;
};

template <class Case>
class EvictionConformanceTest : public ::testing::Test {
 protected:
  static constexpr std::uint32_t kBlocks = 40;

  // Uneven facts, several inserts, touches and moments of time.
  void fill(std::uint32_t blocks, Random& random) {
    for (std::uint32_t id = 0; id < blocks; ++id) {
      driver_.begin(id);
      driver_.speak_about(id, random);
      driver_.insert(id);
      driver_.world().clock.advance(microseconds(random.below(3'000'000)));
    }
  }

  Driver<Case> driver_{kBlocks};
};

struct CaseNames {
  template <class Case>
  static std::string GetName(int) {
    return Case::kName;
  }
};
using Cases =
    ::testing::Types<LruCase, FifoCase, LifoCase, LruReuseCase, PriorityCase,                      //
                     LineageCase, LineageRoundRobinCase, RegisteredFifoCase, LfuCase, S3FifoCase,  //
                     MultiLruCase<3, 8, 15>, MultiLruCase<1, 2, 3>,                                //
                     RetentionCase<UsualRetention>, RetentionCase<RetentionWithoutDecay>,
                     RetentionCase<RetentionOfAll>, RetentionCase<RetentionOfNone>>;
TYPED_TEST_SUITE(EvictionConformanceTest, Cases, CaseNames);

TYPED_TEST(EvictionConformanceTest, StartsEmpty) {
  auto& backend = this->driver_.backend();
  static_assert(EvictionBackend<typename TypeParam::Backend>);
  EXPECT_EQ(backend.size(), 0u);
  EXPECT_FALSE(backend.pop());
  EXPECT_TRUE(peeked(backend).empty());
}

TYPED_TEST(EvictionConformanceTest, GivesBackEveryBlockExactlyOnce) {
  Random random(1);
  this->fill(this->kBlocks, random);
  EXPECT_EQ(this->driver_.backend().size(), this->kBlocks);
  const auto victims = drained(this->driver_.backend());
  EXPECT_EQ((std::set<std::uint32_t>(victims.begin(), victims.end())), this->driver_.inactive());
  EXPECT_EQ(victims.size(), this->kBlocks);
  EXPECT_EQ(this->driver_.backend().size(), 0u);
  EXPECT_FALSE(this->driver_.backend().pop());
}

TYPED_TEST(EvictionConformanceTest, PeekForetellsPopAndChangesNothing) {
  Random random(2);
  this->fill(20, random);
  const auto& backend = this->driver_.backend();
  const auto foretold = peeked(backend);
  ASSERT_EQ(foretold.size(), 20u);
  EXPECT_EQ(peeked(backend), foretold);
  for (std::size_t n = 0; n <= 20; ++n) {
    EXPECT_EQ(peeked(backend, n), (std::vector(foretold.begin(), foretold.begin() + static_cast<long>(n))));
  }
  EXPECT_EQ(backend.size(), 20u);
  EXPECT_EQ(drained(this->driver_.backend()), foretold);
}

TYPED_TEST(EvictionConformanceTest, PeekForetellsPopAfterTouchesUsesAndTime) {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    Driver<TypeParam> driver(this->kBlocks);
    for (std::uint32_t id = 0; id < this->kBlocks; ++id) {
      driver.begin(id);
      driver.speak_about(id, random);
      driver.insert(id);
    }
    for (int round = 0; round < 5; ++round) {
      for (int i = 0; i < 10; ++i) {
        const auto id = static_cast<std::uint32_t>(random.below(this->kBlocks));
        if (driver.place(id) != Driver<TypeParam>::Place::kInactive) continue;
        driver.speak_about(id, random);
        driver.touch(id);
      }
      driver.world().clock.advance(microseconds(random.below(40'000'000)));
      const auto foretold = peeked(driver.backend(), 5);
      for (const std::uint32_t id : foretold) ASSERT_EQ(driver.pop(), id);
    }
    const auto rest = peeked(driver.backend());
    ASSERT_EQ(drained(driver.backend()), rest);
  }
}

TYPED_TEST(EvictionConformanceTest, ARemovedBlockIsNoVictimAndMayComeBack) {
  for (std::uint32_t id = 0; id < 5; ++id) this->driver_.begin_and_insert(id);
  for (const std::uint32_t id : {0u, 2u, 4u}) this->driver_.remove(id);
  EXPECT_EQ(this->driver_.backend().size(), 2u);
  EXPECT_THAT(peeked(this->driver_.backend()), ::testing::UnorderedElementsAre(1u, 3u));
  this->driver_.insert(2);
  this->driver_.end(4);
  this->driver_.begin_and_insert(4);
  EXPECT_THAT(peeked(this->driver_.backend()), ::testing::UnorderedElementsAre(1u, 2u, 3u, 4u));
}

TYPED_TEST(EvictionConformanceTest, ATouchNeverLosesABlock) {
  Random random(3);
  this->fill(this->kBlocks, random);
  for (int i = 0; i < 1000; ++i) {
    this->driver_.touch(static_cast<std::uint32_t>(random.below(this->kBlocks)));
    if (i % 10 == 0) this->driver_.world().clock.advance(microseconds(random.below(1'000'000)));
    ASSERT_EQ(this->driver_.backend().size(), this->kBlocks);
  }
  this->driver_.compare();
  EXPECT_EQ(drained(this->driver_.backend()).size(), this->kBlocks);
}

TYPED_TEST(EvictionConformanceTest, OneBlockIsAVictimWhateverItIsWorth) {
  const BlockId id(7);
  for (const std::uint8_t priority : std::initializer_list<std::uint8_t>{0, 35, 100}) {
    this->driver_.begin(7);
    this->driver_.world().facts->set_retention(id, {priority, BlockRetention::kForever});
    this->driver_.world().facts->set_hit(id);
    this->driver_.insert(7);
    EXPECT_EQ(this->driver_.pop(), 7u);
    EXPECT_EQ(this->driver_.pop(), std::nullopt);
  }
}

TYPED_TEST(EvictionConformanceTest, KeepsItsOrderThroughRandomTurns) {
  for (const std::uint64_t seed : {1u, 2u, 3u, 4u}) {
    Random random(seed);
    Driver<TypeParam> driver(this->kBlocks);
    for (std::uint64_t turn = 0; turn < testing::rounds(10'000); ++turn) {
      const auto id = static_cast<std::uint32_t>(random.below(this->kBlocks));
      switch (driver.place(id)) {
        case Driver<TypeParam>::Place::kGone:
          driver.begin(id);
          driver.speak_about(id, random);
          break;
        case Driver<TypeParam>::Place::kInUse:
          if (random.chance(0.1)) {
            driver.end(id);
          } else {
            driver.insert(id);
          }
          break;
        case Driver<TypeParam>::Place::kInactive:
          if (random.chance(0.3)) {
            driver.remove(id);
            driver.speak_about(id, random);
          } else {
            if (random.chance(0.5)) driver.speak_about(id, random);
            driver.touch(id);
          }
          break;
      }
      if (random.chance(0.1)) driver.world().clock.advance(microseconds(random.below(5'000'000)));
      if (random.chance(0.15)) {
        const auto foretold = peeked(driver.backend(), 1);
        const auto victim = driver.pop();
        ASSERT_EQ(victim.has_value(), !foretold.empty());
        if (victim) {
          ASSERT_EQ(*victim, foretold[0]);
        }
      }
      driver.compare();
      if (this->HasFatalFailure()) FAIL() << "seed " << seed << ", turn " << turn;
    }
  }
}

TYPED_TEST(EvictionConformanceTest, ThePoolOverItFillsSpansAndReportsWhatItHas) {
  EvictionWorld world(this->kBlocks);
  InactivePoolOf<typename TypeParam::Backend> pool(TypeParam::make(world.context));
  for (std::uint32_t id = 0; id < 10; ++id) {
    if (pool.follows_registrations()) pool.registered(BlockId(id), name_of(0, id));
    pool.insert(BlockId(id), name_of(0, id));
  }
  pool.remove(BlockId(3));
  if (pool.follows_registrations()) pool.unregistered(BlockId(3));
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

// ---- by name

TEST(EvictionByNameTest, EveryNameMakesAWorkingBackend) {
  EXPECT_FALSE(eviction_names().empty());
  for (const std::string& name : eviction_names()) {
    const auto factory = eviction_by_name(name);
    ASSERT_TRUE(factory) << name;
    auto pool = (*factory)(EvictionContext{4, make_counting_registry()});
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

TEST(EvictionByNameTest, EveryBackendOfTheLibraryHasAName) {
  EXPECT_THAT(eviction_names(), ::testing::IsSupersetOf({"fifo", "hashmap_fifo", "hashmap_lifo",
                                                         "hashmap_lru", "hashmap_priority", "lfu", "lru",
                                                         "multi_lru", "retention", "s3_fifo"}));
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

TEST(EvictionByNameTest, AFactoryPassesTheErrorOfItsBackendOn) {
  const auto refused = (*eviction_by_name("multi_lru"))(EvictionContext{4, make_registry()});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace ashlar::block
