// What a manager, its guards and its handles show of their blocks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ashlar/testing/manual_clock.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using events::kTierId;
using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<Token> listed(std::span<const Token> tokens) {
  return {tokens.begin(), tokens.end()};
}

class DescribeTest : public ::testing::Test {
 protected:
  BlockState state_of(BlockId id) { return manager_.describe(id)->state; }

  ashlar::testing::ManualClock clock_;
  BlockRegistry registry_ = make_registry();
  Manager manager_ = value_of(builder_of(4, registry_).keep_tokens(true).clock(clock_).max_pins(2).build());
  BlockManager<G2> below_ = manager_of<G2>(4, registry_);
  TokenSequence sequence_ = sequence_of(2, 10);
  SequenceHash hash_ = sequence_.blocks()[0].sequence_hash();
};

TEST_F(DescribeTest, ABlockIsFollowedThroughItsLife) {
  EXPECT_EQ(state_of(BlockId(0)), BlockState::kReset);
  EXPECT_EQ(manager_.describe(BlockId(0))->references, 0u);
  Mutable block = take_one(manager_);
  const BlockId id = block.block_id();
  EXPECT_EQ(state_of(id), BlockState::kMutable);
  EXPECT_EQ(manager_.describe(id)->references, 1u);
  EXPECT_FALSE(manager_.describe(id)->identity) << "a guard owns the block alone, and may change it";
  Partial partial = value_of(std::move(block).init_sequence({}));
  EXPECT_EQ(state_of(id), BlockState::kPartial);
  ASSERT_TRUE(partial.add_tokens(sequence_.blocks()[0].tokens()));
  auto scheduled = value_of(std::move(partial).schedule());
  EXPECT_EQ(state_of(id), BlockState::kScheduled);
  auto inflight = std::move(scheduled).launch(Fence::passed_already());
  EXPECT_EQ(state_of(id), BlockState::kInflight);
  auto done = value_of(std::move(inflight).compute_done());
  EXPECT_EQ(state_of(id), BlockState::kComplete);
  Immutable registered = value_of(manager_.register_block(std::get<Complete>(std::move(done))));
  const Immutable second = registered;
  const BlockDescription here = manager_.describe(id).value();
  EXPECT_EQ(here.id, id);
  EXPECT_EQ(here.state, BlockState::kPrimary);
  EXPECT_EQ(here.references, 2u);
  EXPECT_FALSE(here.is_inactive());
  ASSERT_TRUE(here.identity);
  EXPECT_EQ(here.identity->hash, hash_);
  EXPECT_EQ(here.identity->prefix, sequence_.blocks()[0].prefix_digest());
  EXPECT_THAT(here.tokens.value(), ElementsAreArray(sequence_.blocks()[0].tokens()));
  EXPECT_THAT(here.tiers, ElementsAre(kTierId<G1>));
  EXPECT_THAT(here.to_string(), HasSubstr("primary"));
  EXPECT_THAT(here.to_string(), HasSubstr("2 references, 0 pins, 0 holds"));
}

TEST_F(DescribeTest, PinsHoldsAndTiersAreCounted) {
  const BlockId id = store_one(manager_, sequence_.blocks()[0]).block_id();
  EXPECT_TRUE(manager_.describe(id)->is_inactive());
  EXPECT_THAT(manager_.describe(id)->to_string(), HasSubstr("inactive"));
  {
    const Pin pin = value_of(manager_.pin(hash_, std::chrono::seconds(10)));
    const Pin other = value_of(manager_.pin(hash_, std::chrono::seconds(20)));
    const Hold hold = value_of(manager_.hold(hash_));
    const auto below = store_name(below_, hash_);
    const BlockDescription here = manager_.describe(hash_).value();
    EXPECT_EQ(here.id, id);
    EXPECT_EQ(here.pins, 2u);
    EXPECT_EQ(here.holds, 1u);
    EXPECT_EQ(here.references, 0u);
    EXPECT_THAT(here.tiers, ElementsAre(kTierId<G1>, kTierId<G2>));
    EXPECT_EQ(below_.describe(hash_)->references, 1u);
    EXPECT_EQ(below_.describe(hash_)->pins, 0u);
    clock_.advance(std::chrono::seconds(15));
    EXPECT_EQ(manager_.describe(id)->pins, 1u) << "the first pin is over";
  }
  EXPECT_EQ(manager_.describe(id)->pins, 0u);
  EXPECT_EQ(manager_.describe(id)->holds, 0u);
  EXPECT_TRUE(manager_.describe(id)->is_inactive()) << "nobody used it";
  EXPECT_EQ(manager_.counters().match_blocks_returned, 0u);
}

TEST_F(DescribeTest, ADuplicateNamesThePrimaryOfItsHash) {
  const Immutable first = store_one(manager_, sequence_.blocks()[0]);
  const Immutable second = store_one(manager_, sequence_.blocks()[0]);
  ASSERT_NE(first.block_id(), second.block_id());
  EXPECT_EQ(state_of(first.block_id()), BlockState::kDuplicate);
  EXPECT_EQ(manager_.describe(first.block_id())->identity->hash, hash_);
  EXPECT_THAT(manager_.describe(first.block_id())->tiers, ElementsAre(kTierId<G1>));
  EXPECT_EQ(manager_.describe(hash_)->id, second.block_id());
}

TEST_F(DescribeTest, RetentionAndMetadataAreSetByHash) {
  auto kept = value_of(builder_of(4, make_registry())
                           .with_retention_backend()
                           .event_log(std::make_shared<events::EventLog>(64))
                           .build());
  {
    const auto block = store_one(kept, sequence_.blocks()[0]);
  }
  EXPECT_FALSE(kept.describe(hash_)->retention);
  ASSERT_TRUE(kept.set_retention(hash_, {.priority = 80}));
  EXPECT_EQ(kept.describe(hash_)->retention.value(), BlockRetention{.priority = 80});
  EXPECT_EQ(kept.describe(hash_)->identity->metadata, 0u);
  ASSERT_TRUE(kept.set_metadata(hash_, 77));
  EXPECT_EQ(kept.describe(hash_)->identity->metadata, 77u);
  std::vector<events::KvEvent> listed_events;
  kept.list_stored(listed_events);
  ASSERT_EQ(listed_events.size(), 1u);
  EXPECT_EQ(listed_events[0].metadata, 77u);
  const Hold hold = value_of(kept.hold(hash_));
  EXPECT_EQ(kept.identity(hold).metadata, 77u);
  EXPECT_EQ(kept.set_metadata(sequence_.blocks()[1].sequence_hash(), 1).error().code(), ErrorCode::kNotFound);

  const auto block = store_one(manager_, sequence_.blocks()[0]);
  const auto refused = manager_.set_metadata(hash_, 1);
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.error().message(), HasSubstr("give it an event log or an observer"));
}

TEST_F(DescribeTest, WhatIsNotThereIsSaidSo) {
  const auto refused = manager_.describe(BlockId(4));
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().message(), HasSubstr("no block 4 in g1, which has blocks 0 to 3"));
  EXPECT_FALSE(manager_.describe(hash_));
  const Complete complete = complete_one(manager_, sequence_.blocks()[0]);
  EXPECT_FALSE(manager_.describe(hash_)) << "it is not registered yet";
}

// ---- guards

class GuardTokensTest : public ::testing::Test {
 protected:
  Partial filled(std::size_t count) {
    Partial partial = value_of(take_one(manager_).init_sequence({}));
    EXPECT_TRUE(partial.add_tokens(sequence_.blocks()[0].tokens().first(count)));
    return partial;
  }
  Manager manager_ = manager_of(1);  // its one slot has many lives
  TokenSequence sequence_ = sequence_of(2, 10);
};

TEST_F(GuardTokensTest, EveryGuardOnTheWayShowsItsTokens) {
  Partial partial = filled(3);
  EXPECT_FALSE(partial.sequence_hash()) << "not full";
  auto scheduled = value_of(std::move(partial).schedule());
  EXPECT_EQ(listed(scheduled.tokens()), tokens_from(10, 3));
  EXPECT_EQ(scheduled.computed_tokens(), 0u);
  auto inflight = std::move(scheduled).launch(Fence::passed_already());
  EXPECT_EQ(listed(inflight.tokens()), tokens_from(10, 3));
  partial = std::get<Partial>(value_of(std::move(inflight).compute_done()));
  ASSERT_TRUE(partial.add_token(Token(13)));
  EXPECT_EQ(partial.sequence_hash(), sequence_.blocks()[0].sequence_hash());
  scheduled = value_of(std::move(partial).schedule());
  EXPECT_EQ(scheduled.computed_tokens(), 3u);
  inflight = std::move(scheduled).launch(Fence::passed_already());
  EXPECT_EQ(inflight.computed_tokens(), 3u);
  const Complete complete = std::get<Complete>(value_of(std::move(inflight).compute_done()));
  EXPECT_EQ(listed(complete.tokens()), tokens_from(10, 4));
  EXPECT_EQ(complete.sequence_hash(), sequence_.blocks()[0].sequence_hash());
}

TEST_F(GuardTokensTest, TheHashOfAFullBlockFollowsItsParent) {
  const TokenBlock& first = sequence_.blocks()[0];
  Partial partial = value_of(take_one(manager_).init_sequence({.hasher = {},
                                                               .parent = first.sequence_hash(),
                                                               .root = first.root(),
                                                               .parent_prefix = first.prefix_digest()}));
  ASSERT_TRUE(partial.add_tokens(sequence_.blocks()[1].tokens()));
  EXPECT_EQ(partial.sequence_hash(), sequence_.blocks()[1].sequence_hash());
  ASSERT_TRUE(partial.pop_token());
  EXPECT_FALSE(partial.sequence_hash());
}

TEST_F(GuardTokensTest, TokensOfAnEarlierLifeAreNotShown) {
  (void)value_of(filled(4).commit(kReady));  // dropped at once
  EXPECT_THAT(stage_one(manager_, name_of(0, 5)).tokens(), IsEmpty());
  EXPECT_THAT(complete_one(manager_, sequence_.blocks()[1]).tokens(), IsEmpty()) << "keep_tokens is off";
  // In one life, by reset().
  Complete complete = value_of(filled(4).commit(kReady));
  EXPECT_EQ(complete.tokens().size(), 4u);
  complete = std::move(complete).reset().stage(name_of(0, 6), kReady);
  EXPECT_THAT(complete.tokens(), IsEmpty());
}

TEST_F(GuardTokensTest, AManagerThatKeepsTokensShowsThoseOfTokenBlocks) {
  auto keeping = value_of(builder_of(1).keep_tokens(true).build());
  const Complete complete = complete_one(keeping, sequence_.blocks()[1]);
  EXPECT_THAT(complete.tokens(), ElementsAreArray(sequence_.blocks()[1].tokens()));
}

// ---- attachments and callbacks end

TEST(DetachTest, ValuesAreRemovedByTypeOrOneByOne) {
  const BlockRegistry registry = make_registry();
  const RegistrationHandle handle = registry.register_sequence_hash(name_of(0, 1));
  EXPECT_EQ(handle.detach<int>(), 0u);
  for (int i = 0; i < 6; ++i) ASSERT_TRUE(handle.attach(i));
  ASSERT_TRUE(handle.attach_unique(std::string("kept")));
  EXPECT_EQ(handle.detach_if<int>([](int value) { return value % 2 == 0; }), 3u);
  std::vector<int> left;
  EXPECT_TRUE(handle.get<int>().with_multiple(
      [&](std::span<const int> values) { left.assign(values.begin(), values.end()); }));
  EXPECT_THAT(left, ElementsAre(1, 3, 5));
  EXPECT_FALSE(handle.attach_unique(7)) << "values attached many times are left";
  EXPECT_EQ(handle.detach<int>(), 3u);
  EXPECT_TRUE(handle.get<int>().empty());
  ASSERT_TRUE(handle.attach_unique(7)) << "the form is free again";
  EXPECT_TRUE(handle.get<int>().with_unique([](int value) { EXPECT_EQ(value, 7); }));
  EXPECT_FALSE(handle.get<std::string>().empty());
}

TEST(DetachTest, RemovedValuesAreDestroyedOutsideTheLock) {
  struct Looks {
    std::unique_ptr<RegistrationHandle> handle;
    bool* looked = nullptr;
    Looks(const RegistrationHandle& at, bool* seen)
        : handle(std::make_unique<RegistrationHandle>(at)), looked(seen) {}
    Looks(Looks&&) = default;
    Looks& operator=(Looks&&) = default;
    ~Looks() {
      if (handle) *looked = handle->get<Looks>().empty();
    }
  };
  const BlockRegistry registry = make_registry();
  const RegistrationHandle handle = registry.register_sequence_hash(name_of(0, 1));
  bool looked = false;
  ASSERT_TRUE(handle.attach(Looks(handle, &looked)));
  EXPECT_EQ(handle.detach<Looks>(), 1u);
  EXPECT_TRUE(looked);
}

TEST(RemoveTouchTest, OnlyTheNamedCallbackEnds) {
  const BlockRegistry registry = make_registry();
  const RegistrationHandle handle = registry.register_sequence_hash(name_of(0, 1));
  const RegistrationHandle other = registry.register_sequence_hash(name_of(0, 2));
  std::string seen;
  const TouchId a = handle.on_touch([&](const RegistrationHandle&) { seen += 'a'; });
  const TouchId b = handle.on_touch([&](const RegistrationHandle&) { seen += 'b'; });
  const TouchId c = other.on_touch([&](const RegistrationHandle&) { seen += 'c'; });
  EXPECT_FALSE(handle.remove_touch(c)) << "it belongs to another hash";
  EXPECT_TRUE(handle.remove_touch(a));
  EXPECT_FALSE(handle.remove_touch(a));
  registry.touch(name_of(0, 1));
  registry.touch(name_of(0, 2));
  EXPECT_EQ(seen, "bc");
  EXPECT_TRUE(handle.remove_touch(b));
  handle.touch();
  EXPECT_EQ(seen, "bc");
}

TEST(RemoveTouchTest, ACallbackMayRemoveItself) {
  const BlockRegistry registry = make_registry();
  const RegistrationHandle handle = registry.register_sequence_hash(name_of(0, 1));
  int calls = 0;
  TouchId id;
  id = handle.on_touch([&](const RegistrationHandle& self) {
    ++calls;
    EXPECT_TRUE(self.remove_touch(id));
  });
  handle.touch();
  handle.touch();
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace ashlar::block
