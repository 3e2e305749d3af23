// What a manager publishes: Stored at 0 -> 1, Removed at 1 -> 0 of a hash, in order, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ashlar/base/random.h"
#include "support/block_fixture.h"

namespace ashlar::block {
namespace {

using namespace support;  // NOLINT(google-build-using-namespace)
using events::EventLog;
using events::KvEvent;
using events::KvEventKind;

class Recorder final : public events::EventSink {
 public:
  void on_events(std::span<const KvEvent> events) override {
    seen.insert(seen.end(), events.begin(), events.end());
  }
  std::vector<KvEvent> seen;
};

class ManagerEventsTest : public ::testing::Test {
 protected:
  Manager build(std::uint32_t blocks, DuplicatePolicy policy = DuplicatePolicy::kAllow) {
    return value_of(builder_of(blocks).event_log(log_).duplicate_policy(policy).build());
  }
  // What was published since the last call.
  std::vector<KvEvent> news() {
    Recorder sink;
    log_->drain(sink);
    return std::move(sink.seen);
  }
  // As "+2" and "-2" for the block at position 2 of the sequence.
  std::vector<std::string> story() {
    std::vector<std::string> words;
    for (const KvEvent& event : news()) {
      EXPECT_NE(event.kind, KvEventKind::kResync);
      words.push_back((event.kind == KvEventKind::kStored ? "+" : "-") +
                      std::to_string(event.hash.position()));
    }
    return words;
  }

  std::shared_ptr<EventLog> log_ = std::make_shared<EventLog>(1 << 12);
  TokenSequence sequence_ = sequence_of(4);
};
using Story = std::vector<std::string>;

TEST_F(ManagerEventsTest, StoredCarriesTheWholeIdentity) {
  Manager manager = build(8);
  EXPECT_EQ(manager.event_log(), log_);
  const Blocks stored = store_all(manager, sequence_);
  const auto events = news();
  ASSERT_EQ(events.size(), 4u);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(events[i].kind, KvEventKind::kStored);
    EXPECT_EQ(events[i].hash, sequence_.blocks()[i].sequence_hash());
    EXPECT_EQ(events[i].block, stored[i].block_id().value());
    EXPECT_EQ(events[i].tier, events::kTierId<G1>);
    EXPECT_EQ(events[i].sequence, i);
    EXPECT_EQ(events[i].parent(), sequence_.blocks()[i].parent());
    EXPECT_EQ(events[i].prefix_group(), sequence_.blocks()[0].sequence_hash());
  }
}

TEST_F(ManagerEventsTest, OnlyTheChangesOfPresenceArePublished) {
  Manager manager = build(2);
  Complete complete = complete_one(manager, sequence_.blocks()[0]);
  EXPECT_EQ(story(), Story{}) << "complete is not visible";
  Immutable block = value_of(manager.register_block(std::move(complete)));
  EXPECT_EQ(story(), Story{"+0"});
  block = Immutable();
  EXPECT_EQ(story(), Story{}) << "inactive is still there";
  {
    const Blocks found = manager.match_blocks(sequence_.sequence_hashes());
  }
  EXPECT_EQ(story(), Story{}) << "revived and dropped";
  const auto both = value_of(manager.allocate_blocks(2));
  EXPECT_EQ(story(), Story{"-0"});
}

TEST_F(ManagerEventsTest, EveryWayOutOfTheCachePublishesRemovedOnce) {
  ManualClock clock;
  Manager manager = value_of(builder_of(4).event_log(log_).clock(clock).build());
  {
    Immutable block = store_one(manager, sequence_.blocks()[0]);
    block.set_reset_on_release(true);
  }
  EXPECT_EQ(story(), (Story{"+0", "-0"}));
  {
    const Immutable block = store_one(manager, sequence_.blocks()[1]);
  }
  EXPECT_EQ(manager.reset_inactive_pool(), 1u);
  EXPECT_EQ(story(), (Story{"+1", "-1"}));
  {
    Immutable block = store_one(manager, sequence_.blocks()[2]);
    block.set_reset_on_release(true);
    const Pin pin = value_of(block.pin(std::chrono::seconds(1)));
    block = Immutable();
    EXPECT_EQ(story(), (Story{"+2"}));
  }
  EXPECT_EQ(story(), (Story{"-2"}));
}

TEST_F(ManagerEventsTest, DuplicatesAndDeduplicationsPublishNothing) {
  for (const DuplicatePolicy policy : {DuplicatePolicy::kAllow, DuplicatePolicy::kReject}) {
    Manager manager = build(4, policy);
    Immutable first = store_one(manager, sequence_.blocks()[0]);
    Immutable second = store_one(manager, sequence_.blocks()[0]);
    EXPECT_EQ(story(), Story{"+0"});
    first = Immutable();
    second = Immutable();
    EXPECT_EQ(story(), Story{});
    EXPECT_EQ(manager.reset_inactive_pool(), 1u);
    EXPECT_EQ(story(), Story{"-0"});
  }
}

TEST_F(ManagerEventsTest, ARefusedRegistrationPublishesNothing) {
  Manager manager = build(4);
  Manager other = manager_of(4);
  BlockList<Complete> batch;
  batch.push_back(complete_one(manager, sequence_.blocks()[0]));
  batch.push_back(complete_one(other, sequence_.blocks()[1]));
  EXPECT_FALSE(manager.register_blocks(std::move(batch)));
  EXPECT_EQ(story(), Story{});
}

TEST_F(ManagerEventsTest, EveryEventNamesTheTrueParent) {
  Manager manager = build(8);
  const std::span<const TokenBlock> chain = sequence_.blocks();
  Immutable child = store_one(manager, chain[1]);
  auto events = news();
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].parent(), chain[0].sequence_hash()) << "the tier has not had it";

  child.set_reset_on_release(true);
  child = Immutable();
  const Immutable grandchild = store_one(manager, chain[2]);
  events = news();
  ASSERT_EQ(events.size(), 2u);
  EXPECT_EQ(events[0].kind, KvEventKind::kRemoved);
  EXPECT_EQ(events[0].parent(), chain[0].sequence_hash());
  EXPECT_EQ(events[1].parent(), chain[1].sequence_hash()) << "the tier no longer has it";
  std::vector<KvEvent> listed;
  manager.list_stored(listed);
  ASSERT_EQ(listed.size(), 1u);
  EXPECT_EQ(listed[0].parent(), chain[1].sequence_hash());
}

TEST_F(ManagerEventsTest, ABatchInAnyOrderNamesTheTrueParents) {
  Manager manager = build(8);
  BlockList<Complete> batch;
  for (const std::size_t i : {1u, 0u, 2u}) batch.push_back(complete_one(manager, sequence_.blocks()[i]));
  const Blocks stored = value_of(manager.register_blocks(std::move(batch)));
  const auto events = news();
  ASSERT_EQ(events.size(), 3u);
  for (const std::size_t i : {0u, 1u, 2u})
    EXPECT_EQ(events[i].parent(), sequence_.blocks()[i == 2 ? 2 : 1 - i].parent());
}

TEST_F(ManagerEventsTest, ARemovalSaysAsMuchAsItsStore) {
  Manager manager = build(8);
  {
    const Blocks all = store_all(manager, sequence_);
  }
  const auto stored = news();
  EXPECT_EQ(manager.reset_inactive_pool(), 4u);
  const auto removed = news();
  ASSERT_EQ(removed.size(), 4u);
  for (KvEvent event : removed) {
    const auto same = std::ranges::find(stored, event.hash, &KvEvent::hash);
    ASSERT_NE(same, stored.end());
    EXPECT_TRUE(event.has_root && event.has_local);
    event.kind = KvEventKind::kStored;
    event.sequence = same->sequence;
    EXPECT_EQ(event, *same);
  }
}

TEST_F(ManagerEventsTest, ARegistrationSaysWhatStagedBlocksLack) {
  Manager manager = build(8);
  const std::span<const TokenBlock> chain = sequence_.blocks();
  BlockList<Complete> batch;
  for (const std::size_t i : {1u, 2u}) batch.push_back(stage_one(manager, chain[i].sequence_hash()));
  const Blocks stored = value_of(
      manager.register_blocks(std::move(batch), {.parent = chain[0].sequence_hash(), .metadata = 7}));
  const Immutable other = value_of(manager.register_block(
      take_one(manager).stage(
          BlockIdentity{.hash = chain[3].sequence_hash(), .parent = {}, .root = {}, .metadata = 8}, kReady),
      {.parent = chain[1].sequence_hash(), .metadata = 7}));
  const auto events = news();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[0].parent(), chain[0].sequence_hash());
  EXPECT_EQ(events[1].parent(), chain[1].sequence_hash()) << "it follows the one before";
  EXPECT_EQ(events[1].metadata, 7u);
  EXPECT_FALSE(events[2].parent()) << "block 1 is not the parent of block 3";
  EXPECT_EQ(events[2].metadata, 8u) << "its own";
}

TEST_F(ManagerEventsTest, StagedBlocksSayWhatTheirIdentitySays) {
  Manager manager = build(8);
  const SequenceHash root = name_of(0, 1);
  const SequenceHash child = name_of(1, 2);
  const Immutable bare = value_of(manager.register_block(stage_one(manager, root)));
  const Immutable full =
      value_of(manager.register_block(take_one(manager).stage(BlockIdentity{child, root, root}, kReady)));
  const auto events = news();
  EXPECT_FALSE(events[0].prefix_group());
  EXPECT_EQ(events[1].parent(), root);
  EXPECT_EQ(events[1].prefix_group(), root);
}

TEST_F(ManagerEventsTest, AReusedSlotForgetsItsFormerAncestry) {
  Manager manager = build(1);
  {
    const Immutable first = store_one(manager, sequence_.blocks()[0]);
  }
  const Immutable bare = value_of(manager.register_block(stage_one(manager, name_of(3, 3))));
  const auto events = news();
  EXPECT_FALSE(events.back().parent());
  EXPECT_FALSE(events.back().prefix_group());
}

TEST_F(ManagerEventsTest, PartialBlocksSayTheirParentAndRoot) {
  Manager manager = build(4);
  const Immutable first = store_one(manager, sequence_.blocks()[0]);
  const SequenceHash root = sequence_.blocks()[0].sequence_hash();
  SequenceStart start;
  start.parent = root;
  start.root = root;
  Partial partial = value_of(take_one(manager).init_sequence(start));
  ASSERT_TRUE(partial.add_tokens(sequence_.blocks()[1].tokens()));
  const Immutable second = value_of(manager.register_block(value_of(std::move(partial).commit(kReady))));
  Partial alone = value_of(take_one(manager).init_sequence({}));
  ASSERT_TRUE(alone.add_tokens(tokens_from(500, kBlockSize)));
  const Immutable third = value_of(manager.register_block(value_of(std::move(alone).commit(kReady))));
  const auto events = news();
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(events[1].hash, sequence_.blocks()[1].sequence_hash());
  EXPECT_EQ(events[1].parent(), root);
  EXPECT_EQ(events[1].prefix_group(), root);
  EXPECT_FALSE(events[2].parent());
  EXPECT_EQ(events[2].prefix_group(), third.sequence_hash()) << "the first block is its own prefix group";
}

TEST_F(ManagerEventsTest, ADestroyedManagerTakesItsBlocksBack) {
  {
    Manager manager = build(8);
    {
      const Blocks stored = store_all(manager, sequence_);
    }
    EXPECT_EQ(news().size(), 4u);
  }
  const auto events = news();
  ASSERT_EQ(events.size(), 4u);
  for (const KvEvent& event : events) EXPECT_EQ(event.kind, KvEventKind::kRemoved);
}

TEST_F(ManagerEventsTest, ALogHasOneManagerAtATime) {
  {
    const Manager first = build(2);
    const auto second = builder_of(2).event_log(log_).build();
    ASSERT_FALSE(second.has_value());
    EXPECT_EQ(second.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(second.error().message(), ::testing::HasSubstr("belongs to another manager"));
  }
  Manager next = build(2);
  const Blocks stored = store_all(next, sequence_of(2));
  EXPECT_EQ(news().size(), 2u);
}

TEST_F(ManagerEventsTest, TheSinkMayUseTheManager) {
  Manager manager = build(8);
  const Blocks stored = store_all(manager, sequence_);
  class Curious final : public events::EventSink {
   public:
    explicit Curious(Manager& manager) : manager_(manager) {}
    void on_events(std::span<const KvEvent> events) override {
      for (const KvEvent& event : events) found += manager_.match_blocks(std::vector{event.hash}).size();
      if (!std::exchange(stored_, true)) more = store_name(manager_, name_of(7, 7));
    }
    std::size_t found = 0;
    Immutable more;

   private:
    Manager& manager_;
    bool stored_ = false;
  } sink(manager);
  EXPECT_EQ(log_->drain(sink), 5u) << "what the sink causes is delivered too";
  EXPECT_EQ(sink.found, 5u);
}

TEST_F(ManagerEventsTest, ReplayingTheEventsGivesWhatIsRegistered) {
  Manager manager = build(24);
  std::set<SequenceHash> replayed;
  std::map<SequenceHash, std::uint32_t> registered;
  std::size_t passed_on = 0;
  std::vector<Immutable> held;
  std::vector<TokenSequence> sequences;
  for (std::uint32_t i = 0; i < 6; ++i) sequences.push_back(sequence_of(5, i * 1000));
  Random random(3);
  for (int turn = 0; turn < 3000; ++turn) {
    const TokenSequence& sequence = sequences[random.below(sequences.size())];
    const TokenBlock& tokens = sequence.blocks()[random.below(5)];
    if (random.chance(0.5)) {
      if (auto block = manager.allocate_blocks(1)) {
        held.push_back(
            value_of(manager.register_block(value_of(block->take_back().complete(tokens, kReady)))));
        if (random.chance(0.2)) held.back().set_reset_on_release(random.chance(0.5));
      }
    } else if (!held.empty()) {
      std::swap(held[random.below(held.size())], held.back());
      held.pop_back();
    }
    if (random.chance(0.01)) manager.reset_inactive_pool();
    std::map<SequenceHash, std::uint32_t> now;
    manager.for_each_registered([&](const SequenceHash& hash, BlockId id) { now.emplace(hash, id.value()); });
    const std::vector<KvEvent> heard = news();
    for (const KvEvent& event : heard) {
      if (event.kind == KvEventKind::kStored) {
        ASSERT_EQ(event.parent().has_value(), event.hash.position() != 0);
        ASSERT_TRUE(replayed.insert(event.hash).second) << "stored twice";
        ASSERT_EQ(now.at(event.hash), event.block);
      } else {
        ASSERT_EQ(event.kind, KvEventKind::kRemoved);
        ASSERT_EQ(replayed.erase(event.hash), 1u) << "removed without being there";
        ASSERT_EQ(registered.at(event.hash), event.block) << "the block that the hash found last";
      }
    }
    ASSERT_TRUE(std::ranges::equal(replayed, now, {}, {}, &decltype(now)::value_type::first));
    // Another block of a hash, and nothing was said about it: its place was passed on.
    for (const auto& [hash, block] : now) {
      const auto before = registered.find(hash);
      if (before != registered.end() && before->second != block &&
          std::ranges::find(heard, hash, &KvEvent::hash) == heard.end()) {
        ++passed_on;
      }
    }
    registered = std::move(now);
    if (turn % 100 == 0) manager.check_invariants();
  }
  EXPECT_GT(passed_on, 0u);
}

TEST_F(ManagerEventsTest, AfterALossTheSnapshotIsTheTruth) {
  log_ = std::make_shared<EventLog>(4);
  Manager manager = build(16);
  const TokenSequence sequence = sequence_of(10);
  const Blocks stored = store_all(manager, sequence);
  EXPECT_EQ(log_->lost(), 6u);
  const auto events = news();
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events.back().kind, KvEventKind::kResync);
  EXPECT_EQ(events.back().block, 6u);
  std::vector<SequenceHash> snapshot;
  manager.for_each_registered([&](const SequenceHash& hash, BlockId) { snapshot.push_back(hash); });
  EXPECT_EQ(snapshot, sequence.sequence_hashes());
}

}  // namespace
}  // namespace ashlar::block
