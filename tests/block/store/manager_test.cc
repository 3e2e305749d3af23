// The manager as a whole: what builds one, its numbers through each step, and managers side by side.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "ashlar/block/block_identity.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// ---- builder

struct BadOption {
  std::string what;
  std::function<void(BlockManagerBuilder<G1>&)> spoil;
  std::string says;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

TEST(ManagerBuilderTest, EveryBadOptionIsNamedWithItsValue) {
  const std::vector<BadOption> cases = {
      {"no blocks", [](auto& b) { b.block_count(0); },
       "block_count is 0; a manager needs 1 to 4294967294 blocks"},
      {"too many blocks", [](auto& b) { b.block_count(UINT32_MAX); }, "block_count is 4294967295"},
      {"no tokens", [](auto& b) { b.block_size(0); }, "block_size is 0 tokens; it must be 1 to 65536"},
      {"too many tokens", [](auto& b) { b.block_size(65537); },
       "block_size is 65537 tokens; it must be 1 to 65536"},
      {"low over high", [](auto& b) { b.watermarks({3, 2}); },
       "low watermark 3 is above the high watermark 2"},
      {"high over all", [](auto& b) { b.watermarks({0, 9}); },
       "high watermark 9 is above the 8 blocks of the pool"},
      {"unknown backend", [](auto& b) { b.with_backend("clock"); }, "there is no eviction backend 'clock'",
       ErrorCode::kNotFound},
      {"null backend",
       [](auto& b) {
         b.with_backend(
             [](const EvictionContext&) { return Result<std::unique_ptr<InactivePool>>(nullptr); });
       },
       "the eviction backend factory returned null"},
      {"null allocator", [](auto& b) { b.reset_allocator([](std::uint32_t) { return nullptr; }); },
       "the reset allocator factory returned null"},
      {"refusing backend",
       [](auto& b) {
         b.with_backend([](const EvictionContext&) -> Result<std::unique_ptr<InactivePool>> {
           return make_error(ErrorCode::kUnsupported, "not on this machine");
         });
       },
       "not on this machine", ErrorCode::kUnsupported},
  };
  for (const BadOption& bad : cases) {
    auto builder = builder_of(8);
    bad.spoil(builder);
    const auto refused = builder.build();
    ASSERT_FALSE(refused) << bad.what;
    EXPECT_EQ(refused.error().code(), bad.code) << bad.what;
    EXPECT_THAT(refused.error().message(), HasSubstr(bad.says));
  }
}

TEST(ManagerBuilderTest, ARegistryAndAClockAreNeeded) {
  const auto refused = Manager::builder().block_count(8).build();
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(),
              HasSubstr("no registry was given; make one with BlockRegistry::create()"));
  ManagerOptions options;
  options.block_count = 8;
  options.registry = make_registry();
  options.clock = nullptr;
  EXPECT_THAT(Manager::create(options).error().message(), HasSubstr("clock is null"));
}

TEST(ManagerBuilderTest, DefaultsAreThoseOfTheOptions) {
  const BlockRegistry registry = make_registry();
  const Manager manager = value_of(Manager::builder().block_count(8).registry(registry).build());
  EXPECT_EQ(manager.total_blocks(), 8u);
  EXPECT_EQ(manager.block_size(), 16u);
  EXPECT_EQ(manager.duplicate_policy(), DuplicatePolicy::kAllow);
  EXPECT_EQ(manager.block_registry(), registry);
  EXPECT_EQ(manager.event_log(), nullptr);
  EXPECT_EQ(manager.available_blocks(), 8u);
}

TEST(ManagerBuilderTest, OneBuilderMakesManyManagers) {
  auto builder = builder_of(4);
  Manager first = value_of(builder.build());
  Manager second = value_of(builder.build());
  const Mutable taken = take_one(first);
  EXPECT_EQ(first.available_blocks(), 3u);
  EXPECT_EQ(second.available_blocks(), 4u);
}

TEST(ManagerBuilderTest, BothNamedBackendFormsWork) {
  EXPECT_TRUE(builder_of(4).with_lru_backend().build());
  EXPECT_TRUE(builder_of(4).with_hashmap_backend().build());
  for (const std::string& name : eviction_names())
    EXPECT_TRUE(builder_of(4, make_counting_registry()).with_backend(name).build());
}

TEST(ManagerBuilderTest, OneBlockIsEnough) {
  Manager manager = manager_of(1);
  const TokenSequence sequence = sequence_of(2);
  {
    const Immutable first = store_one(manager, sequence.blocks()[0]);
  }
  {
    const Immutable second = store_one(manager, sequence.blocks()[1]);
  }
  EXPECT_EQ(places(manager), (Places{.inactive = 1}));
  EXPECT_EQ(manager.counters().evictions, 1u);
}

// ---- numbers

TEST(ManagerTest, CountersAreExactThroughEveryStep) {
  Manager manager = manager_of(4);
  const TokenSequence sequence = sequence_of(3);
  const auto hashes = sequence.sequence_hashes();
  ManagerCounters expected;
  const auto expect_counters = [&](int step) {
    const ManagerCounters now = manager.counters();
    EXPECT_EQ(now.allocations, expected.allocations) << step;
    EXPECT_EQ(now.allocations_from_reset, expected.allocations_from_reset) << step;
    EXPECT_EQ(now.evictions, expected.evictions) << step;
    EXPECT_EQ(now.stagings, expected.stagings) << step;
    EXPECT_EQ(now.registrations, expected.registrations) << step;
    EXPECT_EQ(now.duplicates, expected.duplicates) << step;
    EXPECT_EQ(now.deduplications, expected.deduplications) << step;
    EXPECT_EQ(now.collisions, expected.collisions) << step;
    EXPECT_EQ(now.match_hashes_requested, expected.match_hashes_requested) << step;
    EXPECT_EQ(now.match_blocks_returned, expected.match_blocks_returned) << step;
    EXPECT_EQ(now.scan_hashes_requested, expected.scan_hashes_requested) << step;
    EXPECT_EQ(now.scan_blocks_returned, expected.scan_blocks_returned) << step;
    EXPECT_EQ(now.revivals, expected.revivals) << step;
    EXPECT_EQ(now.quarantines, expected.quarantines) << step;
    EXPECT_EQ(now.late_releases, expected.late_releases) << step;
  };
  expect_counters(0);

  auto blocks = value_of(manager.allocate_blocks(3));
  expected.allocations = expected.allocations_from_reset = 3;
  expect_counters(1);

  BlockList<Complete> complete;
  for (std::size_t i = 0; i < 3; ++i) {
    complete.push_back(value_of(std::move(blocks[i]).complete(sequence.blocks()[i], kReady)));
  }
  expected.stagings = 3;
  expect_counters(2);

  Blocks stored = value_of(manager.register_blocks(std::move(complete)));
  expected.registrations = 3;
  expect_counters(3);

  {
    const Immutable duplicate = store_one(manager, sequence.blocks()[0]);
    expected.allocations = expected.allocations_from_reset = expected.stagings = expected.registrations = 4;
    expected.duplicates = 1;
    expect_counters(4);
  }
  EXPECT_EQ(manager.match_blocks(hashes).size(), 3u);
  expected.match_hashes_requested = 3;
  expected.match_blocks_returned = 3;
  expect_counters(5);

  stored.clear();
  expect_counters(6);
  EXPECT_EQ(manager.match_blocks(std::span(hashes).first(2)).size(), 2u);
  expected.match_hashes_requested = 5;
  expected.match_blocks_returned = 5;
  expected.revivals = 2;
  expect_counters(7);

  EXPECT_EQ(manager.scan_matches(std::vector{hashes[2], name_of(1, 5)}, true).size(), 1u);
  expected.scan_hashes_requested = 2;
  expected.scan_blocks_returned = 1;
  expected.revivals = 3;
  expect_counters(8);

  EXPECT_EQ(value_of(manager.allocate_blocks(2)).size(), 2u);
  expected.allocations += 2;
  expected.allocations_from_reset += 1;
  expected.evictions = 1;
  expect_counters(9);
  EXPECT_FALSE(manager.allocate_blocks(5));
  expect_counters(10);
  EXPECT_EQ(manager.reset_inactive_pool(), 2u);
  expect_counters(11);
}

TEST(ManagerTest, StatusSaysWhereEveryBlockIs) {
  ManualClock clock;
  Manager manager = value_of(builder_of(10).clock(clock).build());
  const TokenSequence sequence = sequence_of(3);
  const Immutable active = store_one(manager, sequence.blocks()[0]);
  {
    const Immutable inactive = store_one(manager, sequence.blocks()[1]);
  }
  {
    const Immutable pinned = store_one(manager, sequence.blocks()[2]);
  }
  const Pin pin = value_of(manager.pin(sequence.sequence_hashes()[2], 1s));
  const Mutable owned = take_one(manager);
  auto [fence, signal] = Fence::create();
  {
    Partial partial = value_of(take_one(manager).init_sequence({}));
    ASSERT_TRUE(partial.add_token(Token(1)));
    const auto inflight = value_of(std::move(partial).schedule()).launch(fence);
  }
  EXPECT_EQ(places(manager),
            (Places{.reset = 5, .inactive = 1, .pinned = 1, .active = 1, .owned = 1, .quarantined = 1}));
  EXPECT_EQ(manager.status().to_string(),
            "10 blocks: 5 reset, 1 inactive, 1 pinned, 0 held, 1 active, 1 owned, 1 quarantined, 0 "
            "allocations waiting");
  std::move(signal).signal();
}

TEST(ManagerTest, StatesHaveNames) {
  std::set<std::string_view> names;
  for (std::size_t i = 0; i < kBlockStates; ++i) names.insert(to_string(static_cast<BlockState>(i)));
  EXPECT_EQ(names.size(), kBlockStates);
  EXPECT_EQ(to_string(BlockState::kQuarantined), "quarantined");
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(ManagerTest, ForEachRegisteredVisitsEveryPrimaryOnceParentsFirst) {
  Manager manager = manager_of(16);
  const TokenSequence sequence = sequence_of(6);
  Blocks stored = store_all(manager, sequence);
  const Immutable last = store_one(manager, sequence.blocks()[2]);  // the one before becomes a duplicate
  const Mutable owned = take_one(manager);
  for (const std::size_t i : {5u, 0u}) stored[i] = Immutable();
  std::vector<SequenceHash> seen;
  manager.for_each_registered([&](const SequenceHash& hash, BlockId id) {
    EXPECT_EQ(id, seen.size() == 2 ? last.block_id() : BlockId(static_cast<std::uint32_t>(seen.size())))
        << "the primary's id";
    seen.push_back(hash);
    EXPECT_EQ(manager.status().total, 16u) << "a visitor may use the manager";
  });
  EXPECT_EQ(seen, sequence.sequence_hashes());
}

// ---- several managers

TEST(ManagerTest, TwoTiersShareARegistryAndNothingElse) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of<G1>(4, registry);
  BlockManager<G2> host = manager_of<G2>(4, registry);
  const TokenSequence sequence = sequence_of(1);
  const auto on_device = store_one(device, sequence.blocks()[0]);
  EXPECT_TRUE(host.match_blocks(sequence.sequence_hashes()).empty());
  const auto on_host = store_one(host, sequence.blocks()[0]);
  EXPECT_FALSE(on_host.is_duplicate());
  EXPECT_EQ(on_device.registration_handle(), on_host.registration_handle());
  EXPECT_EQ(registry.registered_count(), 1u);
}

TEST(ManagerTest, TwoManagersOfOneTierEachHaveTheirPrimary) {
  const BlockRegistry registry = make_registry();
  Manager a = manager_of(4, registry);
  Manager b = manager_of(4, registry);
  const TokenSequence sequence = sequence_of(1);
  const Immutable in_a = store_one(a, sequence.blocks()[0]);
  const Immutable in_b = store_one(b, sequence.blocks()[0]);
  EXPECT_FALSE(in_b.is_duplicate());
  EXPECT_EQ(a.match_blocks(sequence.sequence_hashes())[0].use_count(), 2u);
  a.check_invariants();
  b.check_invariants();
}

TEST(ManagerTest, MovingAManagerLeavesItsGuardsValid) {
  Manager original = manager_of(4);
  const TokenSequence sequence = sequence_of(2);
  Immutable stored = store_one(original, sequence.blocks()[0]);
  Mutable block = take_one(original);
  Manager moved = std::move(original);
  EXPECT_EQ(places(moved), (Places{.reset = 2, .active = 1, .owned = 1}));
  Complete complete = value_of(std::move(block).complete(sequence.blocks()[1], kReady));
  Immutable second = value_of(moved.register_block(std::move(complete)));
  stored = Immutable();
  second = Immutable();
  EXPECT_EQ(moved.match_blocks(sequence.sequence_hashes()).size(), 2u);

  Manager target = manager_of(1);
  target = std::move(moved);
  EXPECT_EQ(target.total_blocks(), 4u);
  EXPECT_EQ(places(target), (Places{.reset = 2, .inactive = 2}));
  Manager& same = target;
  target = std::move(same);
  EXPECT_EQ(places(target), (Places{.reset = 2, .inactive = 2}));
}

TEST(ManagerTest, ADestroyedManagerLeavesTheRegistryEmpty) {
  const BlockRegistry registry = make_registry();
  const RegistrationHandle kept = [&] {
    Manager manager = manager_of(100, registry);
    const Blocks stored = store_all(manager, sequence_of(80));
    return stored[3].registration_handle();
  }();
  EXPECT_EQ(registry.registered_count(), 1u) << "only the handle that is kept";
  EXPECT_FALSE(kept.has_block<G1>());
}

}  // namespace
}  // namespace ashlar::block
