// set_reset_on_release: whether the last drop resets a block instead of caching it.
#include <gtest/gtest.h>

#include "block/eviction/lru_backend.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;

class ReleaseFlagTest : public ::testing::Test {
 protected:
  Blocks find(Manager& manager) { return manager.match_blocks(sequence_.sequence_hashes()); }
  const TokenBlock& tokens() const { return sequence_.blocks()[0]; }
  TokenSequence sequence_ = sequence_of(1);
};

TEST_F(ReleaseFlagTest, CachedByDefault) {
  Manager manager = manager_of(2);
  {
    const Immutable block = store_one(manager, tokens());
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
}

TEST_F(ReleaseFlagTest, SetItResetsTheBlockAtTheLastDropAndOnlyThen) {
  Manager manager = manager_of(2);
  Immutable block = store_one(manager, tokens());
  Immutable copy = block;
  block.set_reset_on_release(true);
  block = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1}));
  copy = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 2}));
  EXPECT_TRUE(find(manager).empty());
  EXPECT_EQ(manager.block_registry().registered_count(), 0u);
}

TEST_F(ReleaseFlagTest, TheLastWriterWins) {
  Manager manager = manager_of(2);
  {
    Immutable block = store_one(manager, tokens());
    Immutable copy = block;
    block.set_reset_on_release(true);
    copy.set_reset_on_release(false);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  {
    Blocks found = find(manager);
    found[0].set_reset_on_release(false);
    found[0].set_reset_on_release(true);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 2}));
}

TEST_F(ReleaseFlagTest, StaysWithTheBlockThroughInactivityAndRevival) {
  Manager manager = value_of(builder_of(2).default_reset_on_release(true).build());
  {
    Immutable block = store_one(manager, tokens());
    block.set_reset_on_release(false);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  {
    const Blocks found = find(manager);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}))
      << "revived and dropped, the flag is still off";
}

TEST_F(ReleaseFlagTest, IsNotInheritedByTheSlotsNextLife) {
  Manager manager = manager_of(1);
  {
    Immutable block = store_one(manager, tokens());
    block.set_reset_on_release(true);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1}));
  {
    const Immutable next = store_one(manager, tokens());
  }
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
  // The same over an eviction: the flag is off, goes on for the next life only by default.
  {
    const Immutable evicts = store_one(manager, sequence_of(1, 100).blocks()[0]);
  }
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
  EXPECT_EQ(manager.counters().evictions, 1u);
}

TEST_F(ReleaseFlagTest, ClearedFlagIsNotInheritedAfterEvictionWhenTheDefaultIsOn) {
  Manager manager = value_of(builder_of(1).default_reset_on_release(true).build());
  {
    Immutable block = store_one(manager, tokens());
    block.set_reset_on_release(false);
  }
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
  {
    const Immutable next = store_one(manager, sequence_of(1, 100).blocks()[0]);
  }
  EXPECT_EQ(places(manager), (Places{.reset = 1})) << "the new life starts with the manager's default";
}

TEST_F(ReleaseFlagTest, TheBuildersDefaultHoldsForEveryBlock) {
  Manager manager = value_of(builder_of(40).default_reset_on_release(true).build());
  {
    const Blocks stored = store_all(manager, sequence_of(40));
  }
  EXPECT_EQ(places(manager), (Places{.reset = 40}));
  EXPECT_EQ(manager.block_registry().registered_count(), 0u);
}

TEST_F(ReleaseFlagTest, ADuplicateIsResetWhateverItsFlag) {
  for (const bool reset : {false, true}) {
    Manager manager = manager_of(4);
    Immutable duplicate = store_one(manager, tokens());
    Immutable primary = store_one(manager, tokens());
    duplicate.set_reset_on_release(reset);
    duplicate = Immutable();
    EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
    primary = Immutable();
    EXPECT_EQ(places(manager), (Places{.reset = 3, .inactive = 1})) << "the primary's flag was not touched";
  }
}

TEST_F(ReleaseFlagTest, TheFlagOfTheLastBlockOfAHashDecides) {
  for (const bool first : {false, true}) {
    for (const bool last : {false, true}) {
      Manager manager = manager_of(4);
      Immutable duplicate = store_one(manager, tokens());
      Immutable primary = store_one(manager, tokens());
      primary.set_reset_on_release(first);
      duplicate.set_reset_on_release(last);
      primary = Immutable();
      EXPECT_EQ(places(manager), (Places{.reset = 3, .active = 1}));
      EXPECT_EQ(find(manager).size(), 1u);
      duplicate = Immutable();
      EXPECT_EQ(places(manager), last ? (Places{.reset = 4}) : (Places{.reset = 3, .inactive = 1}));
    }
  }
}

TEST_F(ReleaseFlagTest, APinComesFirstAndTheFlagActsWhenItEnds) {
  ManualClock clock;
  Manager manager = value_of(builder_of(2).clock(clock).build());
  Immutable block = store_one(manager, tokens());
  block.set_reset_on_release(true);
  Pin pin = value_of(block.pin(1s));
  block = Immutable();
  EXPECT_EQ(places(manager), (Places{.reset = 1, .pinned = 1}));
  EXPECT_EQ(find(manager).size(), 1u);
  std::move(pin).unpin();
  EXPECT_EQ(places(manager), (Places{.reset = 2}));

  Immutable other = store_one(manager, tokens());
  other.set_reset_on_release(true);
  const Pin timed = value_of(other.pin(1s));
  other = Immutable();
  clock.advance(1s);
  EXPECT_EQ(places(manager), (Places{.reset = 2}));
  EXPECT_FALSE(timed.active());
}

TEST_F(ReleaseFlagTest, ResetByReleaseAfterAFenceToo) {
  Manager manager = manager_of(1);
  auto [fence, signal] = Fence::create();
  Immutable block = store_one(manager, tokens());
  block.set_reset_on_release(true);
  std::move(block).release_after(fence);
  EXPECT_EQ(places(manager), (Places{.active = 1}));
  std::move(signal).signal();
  EXPECT_EQ(places(manager), (Places{.reset = 1}));
}

// Asks the registry about every block it is given, as a policy that looks at other tiers does.
class AskingBackend {
 public:
  explicit AskingBackend(const EvictionContext& context) : lru_(context), registry_(context.registry) {}
  void insert(BlockId id, const tokens::SequenceHash& hash) {
    (void)registry_.check_presence<events::G2>({&hash, 1});
    lru_.insert(id, hash);
  }
  void remove(BlockId id) {
    (void)registry_.registered_count();
    lru_.remove(id);
  }
  void touch(BlockId id) { lru_.touch(id); }
  std::optional<BlockId> pop() {
    (void)registry_.registered_count();
    return lru_.pop();
  }
  std::size_t peek(std::span<BlockId> out) const { return lru_.peek(out); }
  std::size_t size() const { return lru_.size(); }

 private:
  LruBackend lru_;
  BlockRegistry registry_;
};

TEST(AskingBackendTest, ABackendMayAskTheRegistryWheneverItIsCalled) {
  Manager manager = value_of(builder_of(8)
                                 .with_backend([](const EvictionContext& context) {
                                   using Pool = InactivePoolOf<AskingBackend>;
                                   return Result<std::unique_ptr<InactivePool>>(
                                       std::make_unique<Pool>(AskingBackend(context)));
                                 })
                                 .build());
  const TokenSequence sequence = sequence_of(4);
  for (int turn = 0; turn < 3; ++turn) {
    Blocks stored = store_all(manager, sequence);
    stored.back().set_reset_on_release(true);
    stored.clear();
    (void)manager.match_blocks(sequence.sequence_hashes());
    EXPECT_EQ(value_of(manager.allocate_blocks(8)).size(), 8u);
    Blocks again = store_all(manager, sequence);
    Blocks twins = store_all(manager, sequence);
    again.clear();
    twins.clear();
    manager.reset_inactive_pool();
    manager.check_invariants();
  }
}

}  // namespace
}  // namespace ashlar::block
