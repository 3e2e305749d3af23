// Every call of the block layer with its first allocation failing, with its second, and so on: it refuses, or
// lets std::bad_alloc pass, and everything is as before; afterwards the same call succeeds.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "ashlar/block/block_manager.h"
#include "ashlar/testing/managers.h"
#include "support/block_fixture.h"
#include "support/failing_new.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using ashlar::support::FailingAllocation;
using ashlar::support::for_every_allocation;
using std::chrono::seconds;

constexpr std::uint32_t kBlocks = 192;

// Two tiers with one registry, and a sequence in the first, which nobody uses.
struct World {
  World() {
    for (const TokenBlock& block : tokens.blocks()) names.push_back(block.sequence_hash());
    (void)store_all(device, tokens);
  }
  // What must not change, as text.
  std::string seen() const {
    std::ostringstream out;
    out << places(device) << "; " << places(host) << "; " << registry.registered_count() << " hashes";
    return out.str();
  }

  static constexpr std::size_t kCached = 100;  // more than one chunk
  BlockRegistry registry = make_counting_registry();
  BlockManager<G1> device = manager_of<G1>(kBlocks, registry);
  BlockManager<G2> host = manager_of<G2>(kBlocks, registry);
  TokenSequence tokens = sequence_of(kCached);
  std::vector<SequenceHash> names;
};

// True when it was done; what it took it has given back.
using Call = std::function<bool(World&)>;

// The call refuses wherever memory fails, changes nothing, and succeeds afterwards.
void expect_undone(const Call& call) {
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    World world;
    const std::string before = world.seen();
    const bool done = failing.during([&] { return call(world); });
    EXPECT_EQ(done, !failing.happened()) << "allocation " << failing.number();
    EXPECT_EQ(world.seen(), before) << "allocation " << failing.number();
    if (failing.happened()) {
      EXPECT_TRUE(call(world)) << "allocation " << failing.number();
    }
    EXPECT_EQ(world.seen(), before);
  });
  EXPECT_GT(failures, 0u) << "nothing was allocated: the test is of no use";
}

// ---- allocation

TEST(AllocationFailureTest, AllocateBlocksRefuses) {
  expect_undone([](World& world) {
    const auto blocks = world.device.allocate_blocks(20);
    if (!blocks) {
      EXPECT_EQ(blocks.error().reason, Reason::kOutOfMemory);
    }
    return blocks.has_value();
  });
}

TEST(AllocationFailureTest, AllocateBlocksWithEvictionsRefusesAndEvictsNothing) {
  std::size_t evicted = 0;
  for_every_allocation([&](FailingAllocation& failing) {
    World world;
    const std::string before = world.seen();
    const bool done = failing.during([&] {
      const auto allocation = world.device.allocate_blocks_with_evictions(kBlocks);
      if (!allocation) {
        EXPECT_EQ(allocation.error().reason, Reason::kOutOfMemory);
      }
      evicted = allocation ? allocation->evicted.size() : 0;
      return allocation.has_value();
    });
    EXPECT_EQ(done, !failing.happened());
    if (!done) {
      EXPECT_EQ(world.seen(), before);
    }
  });
  EXPECT_EQ(evicted, World::kCached);
}

TEST(AllocationFailureTest, AWaitingAllocationRefuses) {
  expect_undone([](World& world) {
    const auto blocks = world.device.try_allocate_until(20, Clock::TimePoint::max());
    if (!blocks) {
      EXPECT_EQ(blocks.error().reason, Reason::kOutOfMemory);
    }
    return blocks.has_value();
  });
}

TEST(AllocationFailureTest, TheRefusalSaysSo) {
  const AllocationRefusal refusal{Reason::kOutOfMemory, 7, {}};
  EXPECT_EQ(refusal.to_error().code(), ErrorCode::kCapacity);
  EXPECT_NE(refusal.to_error().message().find("out of memory for 7 blocks"), std::string::npos);
}

// ---- matching

TEST(AllocationFailureTest, AMatchKeepsNoReference) {
  expect_undone([](World& world) { return world.device.match_blocks(world.names).size() == World::kCached; });
}

TEST(AllocationFailureTest, AMatchIntoAListLeavesTheListAsItWas) {
  for_every_allocation([](FailingAllocation& failing) {
    World world;
    Blocks list;
    list.push_back(store_one(world.device, sequence_of(1, 5000).blocks()[0]));
    const std::string before = world.seen();
    const bool done = failing.during([&] { return world.device.match_blocks(world.names, list) != 0; });
    EXPECT_EQ(list.size(), done ? World::kCached + 1 : 1);
    list.truncate(1);
    EXPECT_EQ(world.seen(), before) << "allocation " << failing.number();
  });
}

TEST(AllocationFailureTest, AMatchOfTokensKeepsNoReference) {
  expect_undone([](World& world) {
    return world.device.match_blocks(std::span(world.tokens.blocks())).size() == World::kCached;
  });
}

TEST(AllocationFailureTest, AScatteredMatchKeepsNoReference) {
  expect_undone([](World& world) {
    const auto found = world.device.match_blocks_scattered(std::span<const SequenceHash>(world.names));
    return found.size() == World::kCached && found.back();
  });
}

TEST(AllocationFailureTest, AScanKeepsNoReference) {
  expect_undone([](World& world) {
    return world.device.scan_matches(world.names, /*touch=*/false).size() == World::kCached;
  });
}

// The caller brings the room: what else a match needs is only to refresh other tiers.
TEST(AllocationFailureTest, AMatchIntoASpanHitsWithoutAnyMemory) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    World world;
    const auto in_host = store_all(world.host, world.tokens);
    std::vector<Immutable> found(World::kCached);
    const bool hit = failing.from_then_on(
        [&] { return world.device.match_blocks(world.names, std::span(found)) == World::kCached; });
    EXPECT_TRUE(hit);
    EXPECT_EQ(places(world.device).active, World::kCached);
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, TouchCallbacksRunWithoutMemory) {
  for_every_allocation([](FailingAllocation& failing) {
    World world;
    int calls = 0;
    {
      const auto handle = world.registry.match_sequence_hash(world.names[0], /*touch=*/false);
      handle->on_touch([&](const RegistrationHandle&) { ++calls; });
    }
    std::vector<Immutable> found(1);
    EXPECT_TRUE(failing.from_then_on(
        [&] { return world.device.match_blocks(std::span(world.names).first(1), std::span(found)) == 1; }));
    // The callback went with the last handle, unless a block keeps the entry.
    EXPECT_EQ(calls, 1);
  });
}

// ---- registration

// Names that the other tier has, which must be spelled out there, and names that nobody has.
TEST(AllocationFailureTest, ARegistrationIsAllOrNone) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    World world;
    const TokenSequence fresh = sequence_of(80, 70'000);
    (void)store_all(world.host, fresh);
    BlockList<Complete> complete;
    auto blocks = value_of(world.device.allocate_blocks(80));
    for (std::size_t i = 0; i < 80; ++i) {
      complete.push_back(value_of(std::move(blocks[i]).complete(fresh.blocks()[i], kReady)));
    }
    const std::string before = world.seen();
    std::optional<Blocks> registered;
    const bool done = failing.during([&] {
      auto result = world.device.register_blocks(std::move(complete));
      if (result) {
        registered = *std::move(result);
      } else {
        EXPECT_EQ(result.error().error.code(), ErrorCode::kCapacity);
        complete = std::move(result.error().guard);
      }
      return registered.has_value();
    });
    EXPECT_EQ(done, !failing.happened()) << "allocation " << failing.number();
    if (!done) {
      EXPECT_EQ(complete.size(), 80u) << "the blocks come back";
      EXPECT_EQ(world.seen(), before) << "allocation " << failing.number();
      EXPECT_TRUE(world.device.match_blocks(std::span(fresh.blocks())).empty());
      registered = value_of(world.device.register_blocks(std::move(complete)));
    }
    EXPECT_EQ(registered->size(), 80u);
    EXPECT_EQ(world.device.match_blocks(std::span(fresh.blocks())).size(), 80u);
    (void)world.seen();
  });
  EXPECT_GT(failures, 1u) << "the list, and entries of the registry";
}

TEST(AllocationFailureTest, OneBlockComesBackFromARefusedRegistration) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    World world;
    const TokenSequence fresh = sequence_of(1, 70'000);
    (void)store_all(world.host, fresh);
    Complete block = complete_one(world.device, fresh.blocks()[0]);
    std::optional<Immutable> registered;
    failing.during([&] {
      auto result = world.device.register_block(std::move(block));
      if (result) {
        registered = *std::move(result);
      } else {
        block = std::move(result.error().guard);
      }
      return true;
    });
    EXPECT_EQ(registered.has_value(), !failing.happened());
    if (!registered) registered = value_of(world.device.register_block(std::move(block)));
    (void)world.seen();
  });
  EXPECT_GT(failures, 0u);
}

// ---- what gives back never needs memory

TEST(AllocationFailureTest, DroppingAndEvictingNeedNoMemory) {
  for_every_allocation([](FailingAllocation& failing) {
    World world;
    const RegistrationHandle kept = *world.registry.match_sequence_hash(world.names[0], /*touch=*/false);
    auto used = world.device.match_blocks(world.names);
    std::vector<Mutable> room(kBlocks);
    EXPECT_TRUE(failing.from_then_on([&] {
      used.clear();
      const bool refused = !world.device.allocate_blocks(std::span(room));
      for (Mutable& block : room) block = Mutable();
      (void)world.host.reset_inactive_pool();
      return !refused;
    }));
    EXPECT_FALSE(failing.happened());
    EXPECT_EQ(world.registry.registered_count(), 1u) << "the handle";
  });
}

// Handles keep entries when the blocks go. Their index has room for all entries there are.
TEST(AllocationFailureTest, ManyHandlesOutliveTheirBlocksWithoutMemory) {
  for_every_allocation([](FailingAllocation& failing) {
    BlockRegistry registry = make_registry();
    Manager manager = manager_of<G1>(3000, registry);
    std::vector<SequenceHash> names;
    for (std::uint64_t i = 0; i < 3000; ++i) names.push_back(name_of(0, i * 0x9E3779B97F4A7C15u));
    std::vector<RegistrationHandle> handles;
    {
      const auto blocks = store_names(manager, names);
      for (const Immutable& block : blocks) handles.push_back(block.registration_handle());
    }
    EXPECT_TRUE(failing.from_then_on([&] { return manager.reset_inactive_pool() == 3000; }));
    EXPECT_FALSE(failing.happened());
    EXPECT_EQ(registry.registered_count(), 3000u);
    for (const SequenceHash& name : names) EXPECT_TRUE(registry.is_registered(name));
  });
}

TEST(AllocationFailureTest, AManagerIsDestroyedWithoutMemory) {
  for_every_allocation([](FailingAllocation& failing) {
    BlockRegistry registry = make_registry();
    Manager other = manager_of<G1>(4, registry);
    auto manager = std::make_unique<Manager>(manager_of<G1>(4, registry));
    (void)store_one(*manager, sequence_of(1).blocks()[0]);
    EXPECT_TRUE(failing.from_then_on([&] {
      manager.reset();
      return true;
    }));
    EXPECT_FALSE(failing.happened());
    EXPECT_EQ(registry.registered_count(), 0u);
    (void)store_one(other, sequence_of(1).blocks()[0]);
  });
}

// A block in flight whose end cannot be watched: the pool finds it when somebody looks.
TEST(AllocationFailureTest, ABlockThatIsDroppedInFlightComesBackWithItsFence) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    Manager manager = manager_of(2);
    auto [fence, signal] = Fence::create();
    auto partial = value_of(take_one(manager).init_sequence({}));
    ASSERT_TRUE(partial.add_tokens(tokens_from(1, 2)));
    auto flying = std::make_optional(value_of(std::move(partial).schedule()).launch(fence));
    EXPECT_TRUE(failing.from_then_on([&] {
      flying.reset();
      return true;
    }));
    EXPECT_EQ(places(manager), (Places{.reset = 1, .quarantined = 1}));
    std::move(signal).signal();
    EXPECT_EQ(places(manager), (Places{.reset = 2})) << "allocation " << failing.number();
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, AReferenceThatCannotWaitForItsFenceIsKept) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    Manager manager = manager_of(2);
    auto [fence, signal] = Fence::create();
    Immutable block = store_one(manager, sequence_of(1).blocks()[0]);
    const bool released = failing.during([&] {
      std::move(block).release_after(fence);
      return true;
    });
    EXPECT_EQ(released, !failing.happened());
    EXPECT_EQ(static_cast<bool>(block), !released);
    EXPECT_EQ(places(manager), (Places{.reset = 1, .active = 1}));
    block = Immutable();
    std::move(signal).signal();
    EXPECT_EQ(places(manager), (Places{.reset = 1, .inactive = 1}));
  });
  EXPECT_GT(failures, 0u);
}

// ---- the rest

TEST(AllocationFailureTest, ASequenceThatCannotBeginGivesItsBlockBack) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    Manager manager = manager_of(1);
    Mutable block = take_one(manager);
    std::optional<Partial> partial;
    failing.during([&] {
      auto result = std::move(block).init_sequence({});
      if (result) {
        partial = *std::move(result);
      } else {
        EXPECT_EQ(result.error().error.code(), ErrorCode::kCapacity);
        block = std::move(result.error().guard);
      }
      return true;
    });
    EXPECT_EQ(partial.has_value(), !failing.happened());
    EXPECT_EQ(places(manager), (Places{.owned = 1}));
    if (!partial) partial = value_of(std::move(block).init_sequence({}));
    EXPECT_TRUE(partial->add_tokens(tokens_from(1, kBlockSize)));
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, AManagerThatCannotBeMadeLeavesRegistryAndLogFree) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    BlockRegistry registry = make_registry();
    const auto log = testing::make_event_log(64);
    auto builder = builder_of<G1>(8, registry);
    builder.event_log(log);
    std::optional<Manager> manager;
    failing.during([&] {
      auto made = builder.build();
      if (made) {
        manager.emplace(*std::move(made));
      } else {
        EXPECT_EQ(made.error().code(), ErrorCode::kCapacity);
        EXPECT_EQ(made.error().message(),
                  "out of memory for the 8 blocks of a g1 manager; lower block_count");
      }
      return true;
    });
    EXPECT_EQ(manager.has_value(), !failing.happened()) << "allocation " << failing.number();
    if (!manager) manager.emplace(value_of(builder.build()));
    (void)store_one(*manager, sequence_of(1).blocks()[0]);
    EXPECT_EQ(registry.registered_count(), 1u);
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, ARegistryThatCannotBeMadeIsRefused) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    RegistryOptions options;
    options.frequency = TinyLfuOptions{1 << 10, TinyLfuOptions::kNever};
    const bool made = failing.during([&] { return BlockRegistry::create(options).has_value(); });
    EXPECT_EQ(made, !failing.happened());
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, HandlesOfManyHashesComeTogetherOrNotAtAll) {
  expect_undone([](World& world) {
    std::vector<SequenceHash> names = world.names;
    for (std::uint64_t i = 0; i < 3000; ++i) names.push_back(name_of(0, i * 0x9E3779B97F4A7C15u));
    return world.registry.register_sequence_hashes(names).size() == names.size();
  });
}

struct Label {
  std::string text;
};

TEST(AllocationFailureTest, AnAttachmentThatCannotBeReplacedStays) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    BlockRegistry registry = make_registry();
    const RegistrationHandle handle = registry.register_sequence_hash(name_of(0, 1));
    for (const std::string_view text : {"first", "other"}) {
      Label label{std::string(text)};
      const bool attached =
          failing.during([&] { return handle.attach_unique(std::move(label)).has_value(); });
      EXPECT_EQ(attached, !failing.happened());
      if (attached) {
        EXPECT_TRUE(
            handle.get<Label>().with_unique([&](const Label& found) { EXPECT_EQ(found.text, text); }));
        continue;
      }
      EXPECT_EQ(handle.get<Label>().with_unique([&](const Label& found) { EXPECT_EQ(found.text, "first"); }),
                text == "other");
      return;
    }
  });
  EXPECT_GT(failures, 0u);
}

TEST(AllocationFailureTest, AListOfStoredBlocksIsWholeOrAbsent) {
  const std::size_t failures = for_every_allocation([](FailingAllocation& failing) {
    auto builder = builder_of<G1>(100);
    builder.event_log(testing::make_event_log(1024));
    Manager manager = value_of(builder.build());
    const auto blocks = store_all(manager, sequence_of(100));
    std::vector<events::KvEvent> out(1);
    const bool listed = failing.during([&] {
      (void)manager.list_stored(out);
      return true;
    });
    EXPECT_EQ(out.size(), listed ? 101u : 1u);
  });
  EXPECT_GT(failures, 0u);
}

}  // namespace
}  // namespace ashlar::block
