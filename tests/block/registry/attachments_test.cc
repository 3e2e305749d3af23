// Attachments, presence and touch callbacks of registered hashes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using events::kTierId;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// ---- attachments

class AttachmentsTest : public ::testing::Test {
 protected:
  BlockRegistry registry_ = make_registry();
  SequenceHash hash_ = name_of(2, 22);
  RegistrationHandle handle_ = registry_.register_sequence_hash(hash_);
};

TEST_F(AttachmentsTest, AUniqueValueIsReplacedByTheNext) {
  EXPECT_TRUE(handle_.get<int>().empty());
  EXPECT_FALSE(handle_.get<int>().with_unique([](int) { FAIL(); }));
  ASSERT_TRUE(handle_.attach_unique(1));
  ASSERT_TRUE(handle_.attach_unique(2));
  int seen = 0;
  EXPECT_TRUE(handle_.get<int>().with_unique([&](const int& value) { seen = value; }));
  EXPECT_EQ(seen, 2);
  EXPECT_FALSE(handle_.get<int>().empty());
  std::size_t all = 0;
  EXPECT_TRUE(handle_.get<int>().with_all([&](std::span<const int> values) { all = values.size(); }));
  EXPECT_EQ(all, 1u);
}

TEST_F(AttachmentsTest, ManyValuesKeepTheirOrder) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(handle_.attach(std::to_string(i)));
  std::vector<std::string> seen;
  const auto keep = [&](std::span<const std::string> values) { seen.assign(values.begin(), values.end()); };
  EXPECT_TRUE(handle_.get<std::string>().with_multiple(keep));
  EXPECT_THAT(seen, ElementsAre("0", "1", "2"));
  EXPECT_TRUE(handle_.get<std::string>().with_all(keep));
  EXPECT_FALSE(handle_.get<int>().with_multiple([](std::span<const int>) { FAIL(); }));
}

TEST_F(AttachmentsTest, ATypeIsUniqueOrManyForItsLife) {
  ASSERT_TRUE(handle_.attach_unique(1));
  const auto many = handle_.attach(2);
  ASSERT_FALSE(many);
  EXPECT_EQ(many.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(many.error().message(), HasSubstr("attached uniquely on this hash"));
  EXPECT_THAT(many.error().message(), HasSubstr("use attach_unique()"));
  ASSERT_TRUE(handle_.attach(std::string("a")));
  const auto unique = handle_.attach_unique(std::string("b"));
  ASSERT_FALSE(unique);
  EXPECT_EQ(unique.error().code(), ErrorCode::kAlreadyExists);
  EXPECT_THAT(unique.error().message(), HasSubstr("attached many times on this hash"));
  // Refusals changed nothing, and the other form of a visit finds nothing.
  EXPECT_TRUE(handle_.get<int>().with_unique([](int value) { EXPECT_EQ(value, 1); }));
  EXPECT_FALSE(handle_.get<int>().with_multiple([](std::span<const int>) { FAIL(); }));
  EXPECT_FALSE(handle_.get<std::string>().with_unique([](const std::string&) { FAIL(); }));
  EXPECT_TRUE(handle_.get<std::string>().with_multiple(
      [](std::span<const std::string> v) { EXPECT_EQ(v.size(), 1u); }));
}

TEST_F(AttachmentsTest, MutableFormsChangeTheValues) {
  ASSERT_TRUE(handle_.attach_unique(1));
  EXPECT_TRUE(handle_.get<int>().with_unique_mut([](int& value) { value += 10; }));
  EXPECT_TRUE(handle_.get<int>().with_all_mut([](std::span<int> values) { values[0] += 100; }));
  EXPECT_TRUE(handle_.get<int>().with_unique([](int value) { EXPECT_EQ(value, 111); }));
  ASSERT_TRUE(handle_.attach(1.5));
  ASSERT_TRUE(handle_.attach(2.5));
  EXPECT_TRUE(handle_.get<double>().with_multiple_mut([](std::span<double> values) {
    for (double& value : values) value *= 2;
  }));
  EXPECT_TRUE(handle_.get<double>().with_all([](std::span<const double> v) { EXPECT_EQ(v[0] + v[1], 8.0); }));
  EXPECT_FALSE(handle_.get<double>().with_unique_mut([](double&) { FAIL(); }));
  EXPECT_FALSE(handle_.get<int>().with_multiple_mut([](std::span<int>) { FAIL(); }));
  EXPECT_FALSE(handle_.get<float>().with_all_mut([](std::span<float>) { FAIL(); }));
}

TEST_F(AttachmentsTest, EveryHandleOfTheHashSeesThem) {
  ASSERT_TRUE(handle_.attach_unique(5));
  Manager manager = manager_of(2, registry_);
  const Immutable block = store_name(manager, hash_);
  EXPECT_TRUE(block.registration_handle().get<int>().with_unique([](int value) { EXPECT_EQ(value, 5); }));
  EXPECT_TRUE(registry_.register_sequence_hash(name_of(2, 23)).get<int>().empty()) << "another hash";
}

TEST_F(AttachmentsTest, ValuesNeedNoCopy) {
  ASSERT_TRUE(handle_.attach_unique(std::make_unique<int>(4)));
  ASSERT_TRUE(handle_.attach_unique(std::make_unique<int>(5)));
  EXPECT_TRUE(
      handle_.get<std::unique_ptr<int>>().with_unique([](const auto& value) { EXPECT_EQ(*value, 5); }));
}

TEST_F(AttachmentsTest, AVisitorMayUseTheRegistryOtherTypesAndOtherHandles) {
  ASSERT_TRUE(handle_.attach_unique(1));
  EXPECT_TRUE(handle_.get<int>().with_unique([&](int) {
    EXPECT_TRUE(registry_.is_registered(hash_));
    EXPECT_TRUE(handle_.attach_unique(std::string("other type")));
    const RegistrationHandle other = registry_.register_sequence_hash(name_of(2, 24));
    EXPECT_TRUE(other.attach_unique(2));
  }));
}

// Uses the registry when it dies: possible only when no lock of the registry or a manager is held.
struct Probe {
  BlockRegistry registry;
  std::shared_ptr<int> deaths;
  bool armed = true;

  Probe(BlockRegistry r, std::shared_ptr<int> d) : registry(std::move(r)), deaths(std::move(d)) {}
  Probe(Probe&& other) noexcept
      : registry(other.registry), deaths(other.deaths), armed(std::exchange(other.armed, false)) {}
  Probe& operator=(Probe&&) = delete;
  ~Probe() {
    if (!armed) return;
    ++*deaths;
    for (std::uint32_t position = 0; position < 40; ++position) {  // every nearby shard
      const RegistrationHandle handle = registry.register_sequence_hash(name_of(position, 4711));
      (void)registry.registered_count();
    }
  }
};

TEST_F(AttachmentsTest, ValuesDieOutsideAllLocksWithTheLastHandle) {
  const auto deaths = std::make_shared<int>(0);
  std::optional<RegistrationHandle> handle = registry_.register_sequence_hash(name_of(3, 1));
  ASSERT_TRUE(handle->attach_unique(Probe(registry_, deaths)));
  std::optional<RegistrationHandle> copy = handle;
  handle.reset();
  EXPECT_EQ(*deaths, 0);
  copy.reset();
  EXPECT_EQ(*deaths, 1);
}

TEST_F(AttachmentsTest, AReplacedValueDiesOutsideItsLock) {
  const auto deaths = std::make_shared<int>(0);
  ASSERT_TRUE(handle_.attach_unique(Probe(registry_, deaths)));
  ASSERT_TRUE(handle_.attach_unique(Probe(registry_, deaths)));
  EXPECT_EQ(*deaths, 1);
}

TEST_F(AttachmentsTest, ValuesDieOutsideAllLocksWhenTheBlockGoes) {
  const auto deaths = std::make_shared<int>(0);
  ManualClock clock;
  std::optional<Manager> manager = value_of(builder_of(2, registry_).clock(clock).build());
  int stored = 0;
  const auto store = [&](bool reset_on_release = false) {
    Immutable block = store_name(*manager, name_of(5, static_cast<std::uint64_t>(++stored)));
    block.set_reset_on_release(reset_on_release);
    EXPECT_TRUE(block.registration_handle().attach_unique(Probe(registry_, deaths)));
  };
  store();
  store();
  {
    const auto evicted = value_of(manager->allocate_blocks(2));
  }  // by eviction
  EXPECT_EQ(*deaths, 2);
  store(/*reset_on_release=*/true);  // by the last drop
  EXPECT_EQ(*deaths, 3);
  store();
  EXPECT_EQ(manager->reset_inactive_pool(), 1u);  // by reset
  EXPECT_EQ(*deaths, 4);
  store(true);
  {
    Immutable block = store_name(*manager, name_of(6, 6));
    block.set_reset_on_release(true);
    EXPECT_TRUE(block.registration_handle().attach_unique(Probe(registry_, deaths)));
    const Pin pin = value_of(block.pin(std::chrono::seconds(1)));
    block = Immutable();
    clock.advance(std::chrono::seconds(1));
    (void)manager->status();  // by the end of a pin
  }
  EXPECT_EQ(*deaths, 6);
  store();
  manager.reset();  // by the end of the manager
  EXPECT_EQ(*deaths, 7);
  EXPECT_EQ(registry_.registered_count(), 1u);
}

// ---- presence

TEST(PresenceTest, IsExactThroughALife) {
  const BlockRegistry registry = make_registry();
  Manager manager = manager_of(1, registry);
  const SequenceHash hash = name_of(1, 1);
  const RegistrationHandle handle = registry.register_sequence_hash(hash);
  const auto present = [&] {
    EXPECT_EQ(registry.check_presence<G1>(std::vector{hash})[0], handle.has_block<G1>());
    return handle.has_block<G1>();
  };
  EXPECT_FALSE(present());
  Complete complete = stage_one(manager, hash);
  EXPECT_FALSE(present());
  Immutable block = value_of(manager.register_block(std::move(complete)));
  EXPECT_TRUE(present());
  block = Immutable();
  EXPECT_TRUE(present()) << "inactive is present";
  {
    const Mutable evicts = take_one(manager);
  }
  EXPECT_FALSE(present());
  block = store_name(manager, hash);
  block.set_reset_on_release(true);
  EXPECT_TRUE(present());
  block = Immutable();
  EXPECT_FALSE(present());
  {
    const Immutable again = store_name(manager, hash);
  }
  EXPECT_EQ(manager.reset_inactive_pool(), 1u);
  EXPECT_FALSE(present());
}

TEST(PresenceTest, TiersAreSeparate) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of<G1>(1, registry);
  BlockManager<G2> host = manager_of<G2>(1, registry);
  const SequenceHash hash = name_of(1, 1);
  const auto on_device = store_name(device, hash);
  auto on_host = store_name(host, hash);
  const RegistrationHandle handle = on_device.registration_handle();
  EXPECT_TRUE(handle.has_block<G1>() && handle.has_block<G2>());
  EXPECT_TRUE(handle.has_any_block({kTierId<G2>, kTierId<events::G3>}));
  EXPECT_FALSE(handle.has_any_block({kTierId<events::G3>, kTierId<events::G4>}));
  EXPECT_FALSE(handle.has_any_block({}));
  on_host = ImmutableBlock<G2>();
  {
    const auto evicted = take_one(host);
  }
  EXPECT_TRUE(handle.has_block(kTierId<G1>));
  EXPECT_FALSE(handle.has_block(kTierId<G2>));
}

TEST(PresenceTest, TwoManagersOfOneTierBothCount) {
  const BlockRegistry registry = make_registry();
  Manager a = manager_of(1, registry);
  Manager b = manager_of(1, registry);
  const SequenceHash hash = name_of(1, 1);
  {
    const Immutable in_a = store_name(a, hash);
  }
  {
    const Immutable in_b = store_name(b, hash);
  }
  {
    const Mutable evicted = take_one(a);
  }
  EXPECT_TRUE(registry.check_presence<G1>(std::vector{hash})[0]) << "the other manager still has it";
  {
    const Mutable evicted = take_one(b);
  }
  EXPECT_FALSE(registry.check_presence<G1>(std::vector{hash})[0]);
  EXPECT_EQ(registry.registered_count(), 0u);
}

TEST(PresenceTest, AnswersStandBesideTheirHashes) {
  const BlockRegistry registry = make_registry();
  Manager device = manager_of<G1>(8, registry);
  BlockManager<G2> host = manager_of<G2>(8, registry);
  const auto names = names_from(1, 6);
  const auto a = store_names(device, std::vector{names[0], names[4]});
  const auto b = store_names(host, std::vector{names[4], names[2]});
  const RegistrationHandle bare = registry.register_sequence_hash(names[5]);
  EXPECT_EQ(registry.check_presence<G1>(names), (std::vector{true, false, false, false, true, false}));
  EXPECT_EQ(registry.check_presence<G2>(names), (std::vector{false, false, true, false, true, false}));
  EXPECT_EQ(registry.check_presence_any(names, {kTierId<G1>, kTierId<G2>}),
            (std::vector{true, false, true, false, true, false}));
  EXPECT_EQ(registry.check_presence_any(std::vector{names[4], names[1], names[4]}, {kTierId<G1>}),
            (std::vector{true, false, true}));
  EXPECT_EQ(registry.check_presence_any(names, {}), std::vector<bool>(6, false));
  EXPECT_TRUE(registry.check_presence<G1>({}).empty());
}

// ---- touch callbacks

class TouchTest : public ::testing::Test {
 protected:
  BlockRegistry registry_ = make_registry();
  Manager manager_ = manager_of(4, registry_);
  TokenSequence sequence_ = sequence_of(2);
  SequenceHash hash_ = sequence_.blocks()[0].sequence_hash();
};

TEST_F(TouchTest, EveryKindOfHitRunsTheCallback) {
  Immutable block = store_one(manager_, sequence_.blocks()[0]);
  const RegistrationHandle handle = block.registration_handle();
  int touched = 0;
  handle.on_touch([&](const RegistrationHandle& self) {
    EXPECT_EQ(self.sequence_hash(), hash_);
    ++touched;
  });
  const std::vector hashes{hash_};
  auto expect = [&, expected = 0](int more, const char* what) mutable {
    expected += more;
    EXPECT_EQ(touched, expected) << what;
  };
  (void)manager_.match_blocks(hashes);
  expect(1, "match_blocks");
  Blocks list;
  (void)manager_.match_blocks(hashes, list);
  list.clear();
  expect(1, "match_blocks into a list");
  std::vector<Immutable> span(1);
  (void)manager_.match_blocks(std::span<const SequenceHash>(hashes), span);
  span.clear();
  expect(1, "match_blocks into a span");
  (void)manager_.match_blocks(sequence_.blocks());
  expect(1, "verified match");
  (void)manager_.match_blocks_scattered(std::vector{hash_, hash_});
  expect(2, "scattered");
  (void)manager_.scan_matches(hashes, true);
  expect(1, "scan with touch");
  (void)manager_.scan_matches(hashes, false);
  expect(0, "scan without touch");
  (void)registry_.match_sequence_hash(hash_, true);
  expect(1, "registry match with touch");
  (void)registry_.match_sequence_hash(hash_, false);
  expect(0, "registry match without touch");
  registry_.touch(hash_);
  expect(1, "registry touch");
  handle.touch();
  expect(1, "handle touch");
  block = Immutable();
  (void)manager_.match_blocks(hashes);
  expect(1, "an inactive block");
  (void)manager_.match_blocks(std::vector{sequence_.blocks()[1].sequence_hash()});
  expect(0, "another hash");
}

TEST_F(TouchTest, SeveralCallbacksRunInTheOrderTheyWereAdded) {
  const RegistrationHandle handle = registry_.register_sequence_hash(hash_);
  std::string order;
  for (const char c : {'a', 'b', 'c'})
    handle.on_touch([&order, c](const RegistrationHandle&) { order += c; });
  handle.touch();
  registry_.touch(hash_);
  EXPECT_EQ(order, "abcabc");
}

TEST_F(TouchTest, CallbacksGoWithTheEntry) {
  int touched = 0;
  registry_.register_sequence_hash(hash_).on_touch([&](const RegistrationHandle&) { ++touched; });
  const RegistrationHandle fresh = registry_.register_sequence_hash(hash_);
  fresh.touch();
  EXPECT_EQ(touched, 0);
}

TEST_F(TouchTest, ACallbackMayUseTheManagerAndTheRegistry) {
  Immutable block = store_one(manager_, sequence_.blocks()[0]);
  const RegistrationHandle handle = block.registration_handle();
  int depth = 0;
  handle.on_touch([&](const RegistrationHandle& self) {
    if (++depth > 1) return;
    EXPECT_EQ(manager_.status().total, 4u);
    EXPECT_TRUE(manager_.allocate_blocks(1));
    EXPECT_EQ(manager_.match_blocks(std::vector{hash_}).size(), 1u) << "and touches again";
    EXPECT_TRUE(registry_.is_registered(self.sequence_hash()));
    self.on_touch([](const RegistrationHandle&) {});
    EXPECT_TRUE(self.attach_unique(1));
  });
  (void)manager_.match_blocks(std::vector{hash_});
  EXPECT_EQ(depth, 2);
  block = Immutable();
  depth = 0;
  (void)manager_.match_blocks(std::vector{hash_});  // by the slow way, under the lock until it is revived
  EXPECT_EQ(depth, 2);
  depth = 0;
  (void)manager_.scan_matches(std::vector{hash_}, true);
  (void)manager_.match_blocks_scattered(std::vector{hash_});
  EXPECT_GE(depth, 2);
}

TEST_F(TouchTest, EveryBlockOfALongMatchIsTouchedOnce) {
  Manager manager = manager_of(200, registry_);
  const auto names = names_from(3, 130);
  const Blocks stored = store_names(manager, names);
  std::vector<int> touched(names.size(), 0);
  std::vector<RegistrationHandle> handles;
  for (std::size_t i = 0; i < names.size(); ++i) {
    handles.push_back(stored[i].registration_handle());
    handles.back().on_touch([&touched, i](const RegistrationHandle&) { ++touched[i]; });
  }
  (void)manager.match_blocks(names);
  EXPECT_EQ(touched, std::vector<int>(names.size(), 1));
}

TEST_F(TouchTest, ATouchInOneManagerIsHeardInAll) {
  BlockManager<G2> host = manager_of<G2>(4, registry_);
  const auto on_host = store_one(host, sequence_.blocks()[0]);
  int touched = 0;
  on_host.registration_handle().on_touch([&](const RegistrationHandle&) { ++touched; });
  const auto on_device = store_one(manager_, sequence_.blocks()[0]);
  (void)manager_.match_blocks(std::vector{hash_});
  EXPECT_EQ(touched, 1);
}

TEST(AttachmentChainTest, HandlesAttachedToTheNextHashAreGivenBackOneByOne) {
  struct Parent {
    RegistrationHandle handle;
  };
  const BlockRegistry registry = value_of(BlockRegistry::create());
  std::optional<RegistrationHandle> last;
  for (std::uint32_t i = 0; i < 200000; ++i) {
    RegistrationHandle next = registry.register_sequence_hash(value_of(tokens::SequenceHash::make(i, i, i)));
    if (last) {
      ASSERT_TRUE(next.attach_unique(Parent{*last}));
    }
    last = std::move(next);
  }
  EXPECT_EQ(registry.registered_count(), 200000u);
  last.reset();
  EXPECT_EQ(registry.registered_count(), 0u);
}

}  // namespace
}  // namespace ashlar::block
