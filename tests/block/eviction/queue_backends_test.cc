// The backends that order by registration and by count, each against a model that looks at every block: fifo,
// lfu, s3_fifo.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "ashlar/base/random.h"
#include "block/eviction/fifo_backend.h"
#include "block/eviction/lfu_backend.h"
#include "block/eviction/s3_fifo_backend.h"
#include "support/block_fixture.h"
#include "support/eviction_cases.h"
#include "support/rounds.h"

namespace ashlar::block {
namespace {

using support::drained;
using support::EvictionWorld;
using support::name_of;
using support::peeked;
using ::testing::ElementsAre;

constexpr std::uint32_t kPool = 30;

// Written from the rules, with lists that are searched from their beginning.
struct FifoModel {
  std::vector<std::uint32_t> queue;  // by registration
  std::set<std::uint32_t> inactive;

  void registered(std::uint32_t id, std::uint64_t) { queue.push_back(id); }
  void gone(std::uint32_t id) { std::erase(queue, id), inactive.erase(id); }
  void insert(std::uint32_t id) { inactive.insert(id); }
  void remove(std::uint32_t id) { inactive.erase(id); }
  void touch(std::uint32_t) {}
  std::uint32_t pop() {
    const std::uint32_t victim =
        *std::ranges::find_if(queue, [&](std::uint32_t id) { return inactive.contains(id); });
    gone(victim);
    return victim;
  }
};

struct LfuModel {
  std::map<std::uint32_t, std::uint32_t> uses;
  std::map<std::uint32_t, std::uint64_t> names;
  std::vector<std::uint32_t> inactive;         // by release or touch
  PastUses past{LfuBackend::names_of(kPool)};  // which has a test of its own

  void registered(std::uint32_t id, std::uint64_t name) {
    names[id] = name;
    uses[id] = past.take(name_of(0, name));
  }
  void gone(std::uint32_t id) {
    std::erase(inactive, id);
    if (uses[id] != 0) past.put(name_of(0, names[id]), uses[id]);
  }
  void insert(std::uint32_t id) { ++uses[id], inactive.push_back(id); }
  void remove(std::uint32_t id) { std::erase(inactive, id); }
  void touch(std::uint32_t id) { remove(id), insert(id); }
  std::uint32_t pop() {
    const std::uint32_t victim =
        *std::ranges::min_element(inactive, {}, [&](std::uint32_t id) { return uses[id]; });
    gone(victim);
    return victim;
  }
};

struct S3Model {
  struct Block {
    std::uint64_t name = 0;
    int uses = 0;
    bool released = false;
    bool inactive = false;
  };
  std::vector<std::uint32_t> small;
  std::vector<std::uint32_t> main;
  GhostNames ghosts{kPool};  // which has a test of its own
  std::map<std::uint32_t, Block> blocks;

  void registered(std::uint32_t id, std::uint64_t name) {
    blocks[id] = {.name = name};
    (ghosts.take(name_of(0, name)) ? main : small).push_back(id);
  }
  void gone(std::uint32_t id) { std::erase(small, id), std::erase(main, id), blocks.erase(id); }
  void insert(std::uint32_t id) {
    if (blocks[id].released) touch(id);
    blocks[id].released = blocks[id].inactive = true;
  }
  void remove(std::uint32_t id) { blocks[id].inactive = false; }
  void touch(std::uint32_t id) { blocks[id].uses = std::min(3, blocks[id].uses + 1); }
  std::optional<std::uint32_t> oldest(const std::vector<std::uint32_t>& queue) {
    const auto found = std::ranges::find_if(queue, [&](std::uint32_t id) { return blocks[id].inactive; });
    return found == queue.end() ? std::nullopt : std::optional(*found);
  }
  std::uint32_t pop() {
    for (;;) {
      const auto in_small = oldest(small);
      const auto in_main = oldest(main);
      if (in_small && (small.size() > kPool / 10 || !in_main)) {
        std::erase(small, *in_small);
        if (blocks[*in_small].uses >= 1) {
          blocks[*in_small].uses = 0;
          main.push_back(*in_small);
          continue;
        }
        ghosts.put(name_of(0, blocks[*in_small].name));
        gone(*in_small);
        return *in_small;
      }
      std::erase(main, *in_main);
      if (blocks[*in_main].uses-- > 0) {
        main.push_back(*in_main);
        continue;
      }
      gone(*in_main);
      return *in_main;
    }
  }
};

// Random lives of blocks under 60 names; every victim is the model's.
template <class Backend, class Model>
void expect_as_model(std::uint64_t seed) {
  enum class Place { kGone, kInUse, kInactive };
  Random random(seed);
  EvictionWorld world(kPool);
  Backend backend(world.context);
  Model model;
  std::vector<Place> places(kPool, Place::kGone);
  std::vector<std::uint64_t> names(kPool);
  std::size_t victims = 0;
  for (std::uint64_t turn = 0; turn < testing::rounds(20'000); ++turn) {
    const auto id = static_cast<std::uint32_t>(random.below(kPool));
    const BlockId block(id);
    switch (places[id]) {
      case Place::kGone:
        // One block has a name at a time.
        names[id] = 1 + id + kPool * random.below(3);
        backend.registered(block, name_of(0, names[id]));
        model.registered(id, names[id]);
        places[id] = Place::kInUse;
        break;
      case Place::kInUse:
        if (random.chance(0.05)) {
          backend.unregistered(block);
          model.gone(id);
          places[id] = Place::kGone;
        } else {
          backend.insert(block, name_of(0, names[id]));
          model.insert(id);
          places[id] = Place::kInactive;
        }
        break;
      case Place::kInactive:
        if (random.chance(0.5)) {
          backend.remove(block);
          model.remove(id);
          places[id] = Place::kInUse;
        } else {
          backend.touch(block);
          model.touch(id);
        }
        break;
    }
    if (backend.size() == 0 || !random.chance(0.2)) continue;
    const std::vector<std::uint32_t> foretold = peeked(backend, 1 + random.below(4));
    const std::optional<BlockId> victim = backend.pop();
    ASSERT_TRUE(victim);
    ASSERT_EQ(victim->value(), foretold[0]) << "seed " << seed << ", turn " << turn;
    ASSERT_EQ(victim->value(), model.pop()) << "seed " << seed << ", turn " << turn;
    places[victim->value()] = Place::kGone;
    ++victims;
  }
  EXPECT_GT(victims, 100u);
}

TEST(FifoBackendTest, RandomLivesEndAsTheModelSays) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) expect_as_model<FifoBackend, FifoModel>(seed);
}
TEST(LfuBackendTest, RandomLivesEndAsTheModelSays) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) expect_as_model<LfuBackend, LfuModel>(seed);
}
TEST(S3FifoBackendTest, RandomLivesEndAsTheModelSays) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) expect_as_model<S3FifoBackend, S3Model>(seed);
}

TEST(FifoBackendTest, ABlockKeepsItsTurnWhileItIsUsed) {
  EvictionWorld world(4);
  FifoBackend backend(world.context);
  for (std::uint32_t id = 0; id < 3; ++id) backend.insert(BlockId(id), name_of(0, id));
  backend.remove(BlockId(0));
  backend.insert(BlockId(0), name_of(0, 0));
  backend.touch(BlockId(1));
  EXPECT_THAT(drained(backend), ElementsAre(0u, 1u, 2u));
}

TEST(LfuBackendTest, TheLeastUsedGoesAndAmongEqualsTheOldest) {
  EvictionWorld world(4);
  LfuBackend backend(world.context);
  for (std::uint32_t id = 0; id < 4; ++id) backend.insert(BlockId(id), name_of(0, id));
  backend.touch(BlockId(0));
  backend.touch(BlockId(2));
  backend.touch(BlockId(2));
  EXPECT_THAT(drained(backend), ElementsAre(1u, 3u, 0u, 2u));
}

TEST(LfuBackendTest, CountsOutliveBlocks) {
  EvictionWorld world(4);
  LfuBackend backend(world.context);
  for (std::uint32_t id = 0; id < 4; ++id) backend.insert(BlockId(id), name_of(0, id));
  for (int i = 0; i < 3; ++i) backend.touch(BlockId(1));
  ASSERT_THAT(drained(backend), ElementsAre(0u, 2u, 3u, 1u));
  backend.registered(BlockId(2), name_of(0, 1));  // the popular one, as another block
  backend.insert(BlockId(2), name_of(0, 1));
  backend.registered(BlockId(3), name_of(0, 7));
  backend.insert(BlockId(3), name_of(0, 7));
  backend.touch(BlockId(3));
  EXPECT_THAT(drained(backend), ElementsAre(3u, 2u));
}

TEST(LfuBackendTest, ASmallPoolRemembersMoreNames) {
  EXPECT_EQ(LfuBackend::names_of(4), 1024u);
  EXPECT_EQ(LfuBackend::names_of(10'000), std::size_t{1} << 18);
  EXPECT_EQ(LfuBackend::names_of(1'000'000), 16'000'000u);
  EvictionWorld world(4);
  LfuBackend backend(world.context);
  const auto use = [&](std::uint32_t id, std::uint64_t name) {
    backend.registered(BlockId(id), name_of(0, name));
    backend.insert(BlockId(id), name_of(0, name));
  };
  // One name twice; then two hundred others pass, once each, through another block.
  use(0, 0);
  backend.touch(BlockId(0));
  EXPECT_EQ(backend.pop(), BlockId(0));
  for (std::uint64_t name = 1; name <= 200; ++name) {
    use(1, name);
    EXPECT_EQ(backend.pop(), BlockId(1));
  }
  use(0, 0);
  use(1, 300);
  EXPECT_EQ(backend.pop(), BlockId(1)) << "the first name's count was kept, and the other was used once";
}

TEST(PastUsesTest, RemembersTheLastOnes) {
  PastUses counts(1000);
  for (std::uint64_t i = 0; i < 5000; ++i) counts.put(name_of(0, i), static_cast<std::uint32_t>(i + 1));
  std::size_t last = 0;
  std::size_t wrong = 0;
  for (std::uint64_t i = 5000; i-- > 0;) {
    const std::uint32_t found = counts.take(name_of(0, i));
    if (i >= 4500) last += found == i + 1 ? 1 : 0;
    if (found != 0 && found != i + 1) ++wrong;
    EXPECT_EQ(counts.take(name_of(0, i)), 0u) << "taken once";
  }
  EXPECT_GT(last, 400u);  // of 500; buckets are not equally full
  EXPECT_LT(wrong, 5u);
}

// A scan of names that come once passes through the small queue; what was used again stays.
TEST(S3FifoBackendTest, AScanDoesNotFlushWhatIsUsedAgain) {
  EvictionWorld world(20);
  S3FifoBackend backend(world.context);
  for (std::uint32_t id = 0; id < 10; ++id) backend.insert(BlockId(id), name_of(0, id));
  for (std::uint32_t id = 0; id < 10; ++id) backend.touch(BlockId(id));
  std::vector<std::uint32_t> victims;
  for (std::uint32_t i = 0; i < 100; ++i) {
    const BlockId fresh = i < 10 ? BlockId(10 + i) : BlockId(victims.back());
    backend.insert(fresh, name_of(1, i));
    if (i >= 9) victims.push_back(backend.pop()->value());
  }
  EXPECT_GE(*std::ranges::min_element(victims), 10u);
}

TEST(S3FifoBackendTest, ANameThatComesBackSoonIsNotNew) {
  EvictionWorld world(20);
  S3FifoBackend backend(world.context);
  for (std::uint32_t id = 0; id < 20; ++id) backend.insert(BlockId(id), name_of(0, id));
  ASSERT_EQ(backend.pop()->value(), 0u);
  backend.insert(BlockId(0), name_of(0, 0));  // a ghost: main
  const std::vector<std::uint32_t> order = peeked(backend);
  // The others go first until the small queue is as short as it should be.
  EXPECT_EQ(std::ranges::find(order, 0u) - order.begin(), 17);
}

TEST(GhostNamesTest, RemembersTheLastOnes) {
  GhostNames ghosts(1000);
  for (std::uint64_t i = 0; i < 5000; ++i) ghosts.put(name_of(0, i));
  std::size_t young = 0;
  std::size_t old = 0;
  for (std::uint64_t i = 0; i < 5000; ++i) (i < 4000 ? old : young) += ghosts.take(name_of(0, i)) ? 1 : 0;
  EXPECT_EQ(old, 0u);
  EXPECT_GT(young, 980u);  // some share a bucket with more than eight
  for (std::uint64_t i = 4000; i < 5000; ++i) EXPECT_FALSE(ghosts.take(name_of(0, i))) << "taken once";
}

}  // namespace
}  // namespace ashlar::block
