// The registry: one entry per hash, handles, lookups, growth and frequency.
#include "ashlar/block/block_registry.h"

#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)

TEST(RegistryTest, OneEntryPerHashWhileAHandleLives) {
  const BlockRegistry registry = make_registry();
  const SequenceHash hash = name_of(3, 33);
  EXPECT_FALSE(registry.is_registered(hash));
  {
    const RegistrationHandle first = registry.register_sequence_hash(hash);
    const RegistrationHandle second = registry.register_sequence_hash(hash);
    EXPECT_EQ(first, second);
    EXPECT_EQ(first.sequence_hash(), hash);
    EXPECT_EQ(registry.registered_count(), 1u);
    const auto found = registry.match_sequence_hash(hash, false);
    ASSERT_TRUE(found);
    EXPECT_EQ(*found, first);
    EXPECT_FALSE(registry.match_sequence_hash(name_of(3, 34), false));
  }
  EXPECT_FALSE(registry.is_registered(hash));
  EXPECT_EQ(registry.registered_count(), 0u);
  EXPECT_FALSE(registry.match_sequence_hash(hash, true));
}

TEST(RegistryTest, CopiesAreTheSameRegistry) {
  const BlockRegistry registry = make_registry();
  const BlockRegistry copy = registry;
  EXPECT_EQ(copy, registry);
  EXPECT_FALSE(copy == make_registry());
  const RegistrationHandle handle = copy.register_sequence_hash(name_of(0, 1));
  EXPECT_TRUE(registry.is_registered(name_of(0, 1)));
}

TEST(RegistryTest, TheEntryVanishesWithTheLastHandle) {
  const BlockRegistry registry = make_registry();
  std::optional<RegistrationHandle> first = registry.register_sequence_hash(name_of(0, 1));
  std::optional<RegistrationHandle> copy = *first;
  RegistrationHandle moved = *std::move(first);
  first.reset();
  copy.reset();
  EXPECT_EQ(registry.registered_count(), 1u);
  moved = registry.register_sequence_hash(name_of(0, 2));
  EXPECT_FALSE(registry.is_registered(name_of(0, 1)));
  EXPECT_TRUE(registry.is_registered(name_of(0, 2)));
}

TEST(RegistryTest, AHandleKeepsTheRegistryAlive) {
  std::optional<BlockRegistry> registry = make_registry();
  const RegistrationHandle handle = registry->register_sequence_hash(name_of(0, 1));
  registry.reset();
  EXPECT_EQ(handle.sequence_hash(), name_of(0, 1));
  ASSERT_TRUE(handle.attach_unique(7));
}

TEST(RegistryTest, AnOldHandlesDropDoesNotTouchItsReplacement) {
  const BlockRegistry registry = make_registry();
  const SequenceHash hash = name_of(0, 1);
  for (int life = 0; life < 5; ++life) {
    RegistrationHandle old = registry.register_sequence_hash(hash);
    ASSERT_TRUE(old.attach_unique(life));
    // The entry is given up and made again while the old handle's memory is reused.
    {
      const RegistrationHandle gone = std::move(old);
    }
    EXPECT_FALSE(registry.is_registered(hash));
    const RegistrationHandle fresh = registry.register_sequence_hash(hash);
    EXPECT_TRUE(fresh.get<int>().empty()) << "a new life has no attachments";
    EXPECT_TRUE(registry.is_registered(hash));
    EXPECT_EQ(registry.registered_count(), 1u);
  }
}

TEST(RegistryTest, ABatchAnswersInOrder) {
  const BlockRegistry registry = make_registry();
  std::vector<SequenceHash> names = names_from(1, 100);
  std::reverse(names.begin(), names.end());
  names.push_back(names.front());
  const auto handles = registry.register_sequence_hashes(names);
  ASSERT_EQ(handles.size(), names.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(handles[i].sequence_hash(), names[i]);
  EXPECT_EQ(handles.front(), handles.back());
  EXPECT_EQ(registry.registered_count(), 100u);
  EXPECT_TRUE(registry.register_sequence_hashes({}).empty());
}

TEST(RegistryTest, RegisteredPrefixStopsAtTheFirstMiss) {
  const BlockRegistry registry = make_registry();
  const auto names = names_from(9, 70);
  auto handles = registry.register_sequence_hashes(names);
  EXPECT_EQ(registry.registered_prefix(names), 70u);
  EXPECT_EQ(registry.registered_prefix({}), 0u);
  handles.erase(handles.begin() + 33);
  EXPECT_EQ(registry.registered_prefix(names), 33u);
  handles.erase(handles.begin());
  EXPECT_EQ(registry.registered_prefix(names), 0u);
  EXPECT_EQ(registry.registered_count(), 68u) << "looking makes no entries";
}

TEST(RegistryTest, CountsPerPosition) {
  const BlockRegistry registry = make_registry();
  std::vector<RegistrationHandle> handles;
  for (std::uint64_t chain = 0; chain < 50; ++chain) {
    handles.push_back(registry.register_sequence_hash(name_of(7, chain)));
    if (chain < 20) handles.push_back(registry.register_sequence_hash(name_of(70000, chain)));
  }
  EXPECT_EQ(registry.registered_count_at(7), 50u);
  EXPECT_EQ(registry.registered_count_at(70000), 20u);
  EXPECT_EQ(registry.registered_count_at(8), 0u);
  EXPECT_EQ(registry.registered_count_at(SequenceHash::kMaxPosition), 0u);
  handles.clear();
  EXPECT_EQ(registry.registered_count_at(7), 0u);
}

TEST(RegistryTest, KeepsItsNamespace) {
  RegistryOptions options;
  const BlockRegistry registry = value_of(BlockRegistry::create(options));
  EXPECT_EQ(registry.name_space(), options.name_space);
  EXPECT_EQ(registry.frequency_tracker(), nullptr);
  EXPECT_EQ(registry.count(name_of(0, 1)), 0u);
  registry.touch(name_of(0, 1));  // no tracker, no effect
}

TEST(RegistryTest, GrowsToAHundredThousandHashesOverSeventyThousandPositions) {
  const BlockRegistry registry = make_registry();
  constexpr std::size_t kHashes = 100000;
  Random random(1);
  std::vector<SequenceHash> names;
  names.reserve(kHashes);
  for (std::size_t i = 0; i < kHashes; ++i) {
    // Half of them crowd a few positions, half are spread out.
    const auto position = static_cast<std::uint32_t>(i % 2 == 0 ? random.below(5) : random.below(70000));
    names.push_back(name_of(position, random.next()));
  }
  auto handles = registry.register_sequence_hashes(names);
  EXPECT_EQ(registry.registered_count(), kHashes);
  for (std::size_t i = 0; i < kHashes; i += 7) ASSERT_TRUE(registry.is_registered(names[i]));
  // Every second one goes; the others stay where they are found.
  for (std::size_t i = 0; i < kHashes; i += 2) handles[i] = handles[1];
  EXPECT_EQ(registry.registered_count(), kHashes / 2);
  for (std::size_t i = 0; i < kHashes; ++i) ASSERT_EQ(registry.is_registered(names[i]), i % 2 == 1) << i;
  handles.clear();
  EXPECT_EQ(registry.registered_count(), 0u);
}

TEST(RegistryTest, HandlesComeAndGoFromManyThreads) {
  const BlockRegistry registry = make_registry();
  const auto names = names_from(1, 40);
  std::vector<std::thread> threads;
  for (std::uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Random random(t);
      for (int i = 0; i < 3000; ++i) {
        const SequenceHash& name = names[random.below(names.size())];
        const RegistrationHandle handle = registry.register_sequence_hash(name);
        ASSERT_EQ(handle.sequence_hash(), name);
        const RegistrationHandle copy = handle;
        ASSERT_TRUE(registry.is_registered(name));
        ASSERT_TRUE(handle.attach(std::uint64_t{t}));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(registry.registered_count(), 0u);
}

// ---- frequency: exactly once per use

class FrequencyTest : public ::testing::Test {
 protected:
  unsigned count() const { return registry_.count(hash_); }
  TokenSequence sequence_ = sequence_of(1);
  SequenceHash hash_ = sequence_.blocks()[0].sequence_hash();
  BlockRegistry registry_ = make_counting_registry();
  Manager manager_ = manager_of(4, registry_);
};

TEST_F(FrequencyTest, ANewRegistrationIsOneUseAndAnExistingOneIsNone) {
  const RegistrationHandle first = registry_.register_sequence_hash(hash_);
  EXPECT_EQ(count(), 1u);
  const RegistrationHandle second = registry_.register_sequence_hash(hash_);
  const auto batch = registry_.register_sequence_hashes(std::vector{hash_, hash_});
  EXPECT_EQ(count(), 1u);
  const Immutable stored = store_one(manager_, sequence_.blocks()[0]);
  EXPECT_EQ(count(), 1u) << "its hash has an entry already";
}

TEST_F(FrequencyTest, ABatchCountsEachNewHashOnce) {
  const auto names = names_from(1, 50);
  const auto handles = registry_.register_sequence_hashes(names);
  for (const SequenceHash& name : names) EXPECT_EQ(registry_.count(name), 1u);
}

TEST_F(FrequencyTest, ATransferIsNoUse) {
  const RegistrationHandle moved = registry_.transfer_registration(hash_);
  EXPECT_EQ(count(), 0u);
  EXPECT_EQ(registry_.transfer_registration(hash_), moved);
  EXPECT_TRUE(registry_.is_registered(hash_));
}

TEST_F(FrequencyTest, EveryHitIsOneUse) {
  const Immutable stored = store_one(manager_, sequence_.blocks()[0]);
  EXPECT_EQ(count(), 1u);
  (void)manager_.match_blocks(std::vector{hash_});
  EXPECT_EQ(count(), 2u);
  (void)manager_.match_blocks(sequence_.blocks());
  EXPECT_EQ(count(), 3u);
  (void)manager_.match_blocks_scattered(std::vector{hash_, hash_});
  EXPECT_EQ(count(), 5u) << "one use per answer";
  (void)manager_.scan_matches(std::vector{hash_, hash_}, true);
  EXPECT_EQ(count(), 6u) << "one use per distinct hash";
  (void)registry_.match_sequence_hash(hash_, true);
  EXPECT_EQ(count(), 7u);
  registry_.touch(hash_);
  EXPECT_EQ(count(), 8u);
  stored.registration_handle().touch();
  EXPECT_EQ(count(), 9u);
}

TEST_F(FrequencyTest, LooksThatAreNoUseCountNothing) {
  Immutable stored = store_one(manager_, sequence_.blocks()[0]);
  (void)manager_.scan_matches(std::vector{hash_}, false);
  (void)registry_.match_sequence_hash(hash_, false);
  (void)registry_.is_registered(hash_);
  (void)registry_.registered_prefix(std::vector{hash_});
  (void)registry_.check_presence<G1>(std::vector{hash_});
  (void)stored.downgrade().upgrade();
  (void)manager_.eviction_candidates(4);
  const Immutable copy = stored;
  stored = Immutable();
  EXPECT_EQ(count(), 1u);
}

TEST_F(FrequencyTest, MissesCountNothing) {
  (void)manager_.match_blocks(std::vector{hash_});
  (void)manager_.match_blocks_scattered(std::vector{hash_});
  (void)manager_.scan_matches(std::vector{hash_}, true);
  (void)registry_.match_sequence_hash(hash_, true);
  EXPECT_EQ(count(), 0u);
  registry_.touch(hash_);
  EXPECT_EQ(count(), 1u) << "a touch by name counts, registered or not";
}

TEST_F(FrequencyTest, AVerifiedMissCountsNothing) {
  Manager poisoned = value_of(builder_of(4, registry_).block_size(2).build());
  const Immutable stored = store_name(poisoned, hash_);
  EXPECT_EQ(count(), 1u);
  EXPECT_TRUE(poisoned.match_blocks(sequence_.blocks()).empty());
  EXPECT_EQ(count(), 1u);
}

TEST_F(FrequencyTest, LargeMatchesCountEachHashOnce) {
  Manager manager = manager_of(200, registry_);
  const auto names = names_from(77, 150);
  const Blocks stored = store_names(manager, names);
  EXPECT_EQ(manager.match_blocks(names).size(), 150u);
  for (const SequenceHash& name : names) EXPECT_EQ(registry_.count(name), 2u);
}

}  // namespace
}  // namespace ashlar::block
