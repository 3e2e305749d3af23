#include "ashlar/feed/index_feeder.h"

#include <gtest/gtest.h>

#include "ashlar/feed/engine_session.h"
#include "ashlar/index/radix_tree.h"
#include "feed/batch_builder.h"
#include "feed/untidy_engine.h"

namespace ashlar::feed {
namespace {

using events::BlocksStored;
using events::StorageTier;
using events::StoreVerdict;

constexpr events::WorkerId kFedWorker{7};

// An index that also notes the calls.
class NotingIndex final : public events::IndexSink {
 public:
  StoreVerdict store(const BlocksStored& event) override {
    std::string call = "store " + std::to_string(static_cast<int>(event.tier)) + " behind " +
                       (event.parent ? std::to_string(event.parent->value()) : "nothing") + ":";
    for (const events::StoredBlock& block : event.blocks) call += " " + std::to_string(block.name.value());
    calls.push_back(call);
    return refuse ? StoreVerdict::kFull : index.store(event);
  }
  std::size_t remove(const events::Worker& worker, StorageTier tier,
                     std::span<const BlockName> names) override {
    std::string call = "remove " + std::to_string(static_cast<int>(tier)) + ":";
    for (const BlockName name : names) call += " " + std::to_string(name.value());
    calls.push_back(call);
    return index.remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override {
    calls.push_back("clear " + std::to_string(worker.rank));
    index.clear(worker);
  }
  void remove_worker(events::WorkerId worker) override { index.remove_worker(worker); }
  bool presence(const events::Worker& worker, std::span<const BlockName> names,
                std::span<events::BlockPresence> out) const override {
    ++questions;
    return tells && index.presence(worker, names, out);
  }
  bool list(const events::Worker& worker, std::vector<events::BlockPresence>& out) const override {
    return tells && index.list(worker, out);
  }

  bool tells = true;
  mutable int questions = 0;
  index::RadixTree index;
  std::vector<std::string> calls;
  bool refuse = false;
};

// Over a sink that tells what it holds, and over one that does not.
class IndexFeederTest : public ::testing::TestWithParam<bool> {
 protected:
  IndexFeederTest() { sink_.tells = GetParam(); }
  // The event of block `position` of one sequence; its name is 100 + position.
  static KvEvent event(KvEventKind kind, std::uint32_t position, std::uint8_t tier = 0, bool local = true) {
    KvEvent event;
    event.kind = kind;
    event.tier = events::TierId(tier);
    event.hash = tokens::SequenceHash::make(position, position + 50, position + 49).value();
    event.has_parent = position > 0;
    if (position > 0)
      event.parent_bits = tokens::SequenceHash::make(position - 1, position + 49, position + 48).value();
    event.has_name = true;
    event.name_bits = 100 + position;
    event.has_local = local;
    event.local_bits = 500 + position;
    return event;
  }
  static KvEvent stored(std::uint32_t position, std::uint8_t tier = 0, bool local = true) {
    return event(KvEventKind::kStored, position, tier, local);
  }
  static KvEvent removed(std::uint32_t position, std::uint8_t tier = 0) {
    return event(KvEventKind::kRemoved, position, tier);
  }
  void apply(std::vector<KvEvent> events) { feeder_.apply(events); }
  std::vector<std::string> calls() { return std::exchange(sink_.calls, {}); }

  NotingIndex sink_;
  IndexFeeder feeder_{sink_, kFedWorker};
};

using Calls = std::vector<std::string>;

TEST_P(IndexFeederTest, GathersRuns) {
  apply({stored(0), stored(1), stored(2), stored(0, 1), stored(3), removed(3), removed(2), removed(0, 1)});
  EXPECT_EQ(calls(), (Calls{"store 0 behind nothing: 100 101 102", "store 1 behind nothing: 100",
                            "store 0 behind 102: 103", "remove 0: 103 102", "remove 1: 100"}));
  EXPECT_EQ(feeder_.counters().stored_blocks, 5u);
  EXPECT_EQ(feeder_.counters().removed_blocks, 3u);
  EXPECT_EQ(feeder_.counters().verdicts[0], 3u);
}

TEST_P(IndexFeederTest, AnExpectedNumberOfBlocksChangesNoCall) {
  NotingIndex sink;
  sink.tells = GetParam();
  IndexFeeder sized(sink, kFedWorker, 2);
  for (const std::uint32_t rank : {5u, 2u, 5u}) {
    const std::vector<KvEvent> events = {stored(0), stored(1), stored(2), removed(2), removed(1), stored(1)};
    feeder_.apply(rank, events);
    sized.apply(rank, events);
  }
  EXPECT_EQ(sink.calls, calls());
  EXPECT_EQ(sized.counters(), feeder_.counters());
  sized.check_invariants();
}

TEST_P(IndexFeederTest, WhereParentsAreNamedARemovalAsksNothing) {
  std::vector<KvEvent> named = {stored(0), stored(1), stored(2)};
  for (KvEvent& event : named)
    event.set_parent_name(event.has_parent ? std::optional(BlockName(event.name_bits - 1)) : std::nullopt);
  apply({named[0]});
  apply({named[1], named[2]});
  EXPECT_EQ(calls(), (Calls{"store 0 behind nothing: 100", "store 0 behind 100: 101 102"}));
  const int questions = sink_.questions;
  apply({removed(2), removed(1), removed(1, 1)});
  EXPECT_EQ(calls(),
            GetParam() ? (Calls{"remove 0: 102 101", "remove 1: 101"}) : (Calls{"remove 0: 102 101"}));
  EXPECT_EQ(sink_.questions, questions);
  EXPECT_EQ(feeder_.counters().removed_blocks, 2u);
  EXPECT_EQ(feeder_.counters().missing_removals, 0u);
  // A name that is found by its hash stays until the block has left all tiers.
  KvEvent anew;
  anew.kind = KvEventKind::kResync;
  apply({anew, stored(0), stored(1)});
  apply({stored(1, 1), removed(1)});
  apply({stored(2)});
  EXPECT_EQ(calls(), (Calls{"clear 0", "store 0 behind nothing: 100 101", "store 1 behind 100: 101",
                            "remove 0: 101", "store 0 behind 101: 102"}));
}

TEST_P(IndexFeederTest, ALocalHashComesFromAnotherTier) {
  apply({stored(0, 1, false)});
  EXPECT_EQ(calls(), Calls{});
  EXPECT_EQ(feeder_.counters().without_local, 1u);
  apply({stored(0, 0)});
  EXPECT_EQ(calls(), (Calls{"store 0 behind nothing: 100", "store 1 behind nothing: 100"}));
  apply({stored(1), stored(1, 2, false), stored(2, 6)});
  EXPECT_EQ(calls(), (Calls{"store 0 behind 100: 101", "store 2 behind 100: 101"}));
  EXPECT_EQ(feeder_.counters().other_tiers, 1u);
}

TEST_P(IndexFeederTest, ABlockWithoutItsParentFollowsWhenTheParentComes) {
  apply({stored(2), stored(3), stored(1)});
  EXPECT_EQ(calls(), Calls{});
  apply({removed(3)});
  apply({stored(0)});
  EXPECT_EQ(calls(), (Calls{"store 0 behind nothing: 100 101 102"}));
  EXPECT_EQ(feeder_.counters().verdicts[static_cast<std::size_t>(StoreVerdict::kUnknownParent)], 3u);
  EXPECT_EQ(sink_.index.sizes().blocks, 3u);
}

TEST_P(IndexFeederTest, TiersOfAChainMayHaveHoles) {
  const std::uint8_t remote = events::Remote::kIndex;
  apply({stored(1, 1), stored(3, 1)});  // a snapshot lists tier after tier
  apply({stored(4, 2), stored(0, remote)});
  EXPECT_EQ(calls(), (Calls{"store 4 behind nothing: 100", "store 1 behind 100: 101"}));
  apply({stored(2, 2)});
  EXPECT_EQ(calls(),
            (Calls{"store 2 behind 101: 102", "store 1 behind 102: 103", "store 2 behind 103: 104"}));
  // In place after a removal, and at once behind a parent that left its last tier and came back.
  apply({removed(2, 2), stored(2, 1), removed(1, 1), stored(2, 2), stored(1)});
  EXPECT_EQ(sink_.index.sizes().blocks, 6u);
  index::MatchScores scores;
  std::vector<tokens::LocalHash> request;
  for (std::uint64_t i = 0; i < 5; ++i) request.emplace_back(500 + i);
  sink_.index.find_matches(request, scores);
  const auto score = scores.of({kFedWorker, 0});
  ASSERT_TRUE(score);
  EXPECT_EQ(score->blocks, (std::array<std::uint32_t, events::kStorageTiers>{1, 2, 1, 0, 1}));
  feeder_.check_invariants();
}

TEST_P(IndexFeederTest, ARefusedRunIsCountedAndItsChildrenAreLeftOut) {
  sink_.refuse = true;
  apply({stored(0), stored(1)});
  sink_.refuse = false;
  calls();
  apply({stored(2), removed(1)});
  EXPECT_EQ(calls(), Calls{});
  EXPECT_EQ(feeder_.counters().verdicts[static_cast<std::size_t>(StoreVerdict::kFull)], 1u);
  EXPECT_EQ(feeder_.counters().refused(), 2u);
}

TEST_P(IndexFeederTest, ABlockOfSeveralGroupsIsThereWhileAllHoldIt) {
  const auto in_group = [](KvEvent event, std::uint16_t group) {
    event.hash = event.hash.in_group(group);
    event.parent_bits = event.parent_bits.in_group(group);
    event.group = group;
    return event;
  };
  apply({stored(0), stored(1)});
  apply({in_group(stored(0), 4), in_group(stored(1), 4)});
  EXPECT_EQ(sink_.index.sizes().blocks, 2u);
  apply({stored(2)});
  EXPECT_EQ(sink_.index.sizes().blocks, 2u);
  apply({in_group(stored(2), 4)});
  EXPECT_EQ(sink_.index.sizes().blocks, 3u);
  apply({in_group(removed(2), 4)});
  EXPECT_EQ(sink_.index.sizes().blocks, 2u);
  apply({removed(2), removed(1), removed(0)});
  EXPECT_EQ(sink_.index.sizes().blocks, 0u);
  KvEvent sliding = in_group(stored(0), 5);
  sliding.metadata = EngineIngest::kTrackedOnly;
  apply({sliding});
  EXPECT_EQ(feeder_.counters().tracked_only, 1u);
}

TEST_P(IndexFeederTest, ClearsOfATierAndOfEverything) {
  apply({stored(0), stored(1), stored(0, 1)});
  KvEvent clear;
  clear.kind = KvEventKind::kCleared;
  clear.tier = events::TierId(0);
  apply({clear});
  EXPECT_EQ(sink_.index.sizes().blocks, 1u);
  clear.tier = events::kAllTiers;
  calls();
  apply({clear, stored(0)});
  EXPECT_EQ(calls(), (Calls{"clear 0", "store 0 behind nothing: 100"}));
  KvEvent resync;
  resync.kind = KvEventKind::kResync;
  feeder_.apply(0, std::vector<KvEvent>{resync});
  EXPECT_EQ(sink_.index.sizes().blocks, 0u);
}

// The index holds what the events add up to, as far as a path leads there.
TEST_P(IndexFeederTest, TheIndexFollowsAnUntidyEngine) {
  UntidyEngine engine(5, {.ranks = 2, .full_reports = 0.2});
  auto ingest = EngineIngest::create({});
  ASSERT_TRUE(ingest);
  PresenceBook book;
  for (int i = 0; i < 300; ++i) {
    std::vector<KvEvent> out;
    ingest->apply(engine.step(), out);
    book.apply(out);
    feeder_.apply(out);
    feeder_.check_invariants();
    ingest->check_invariants();
    ASSERT_EQ(feeder_.counters().missing_removals, 0u);
    // A host block whose parent is in no tier is left out.
    ASSERT_LE(sink_.index.sizes().blocks, book.present().size());
    std::size_t left_out = 0;
    for (const auto& [key, hash] : book.present()) left_out += key.tier == 1 && hash.position() > 0;
    ASSERT_GE(sink_.index.sizes().blocks + left_out, book.present().size());
  }
  for (std::size_t verdict = 0; verdict < feeder_.counters().verdicts.size(); ++verdict) {
    if (verdict == static_cast<std::size_t>(StoreVerdict::kApplied)) continue;
    if (verdict == static_cast<std::size_t>(StoreVerdict::kUnknownParent)) continue;
    EXPECT_EQ(feeder_.counters().verdicts[verdict], 0u) << verdict;
  }
}

INSTANTIATE_TEST_SUITE_P(Sinks, IndexFeederTest, ::testing::Bool(),
                         [](const auto& sink) { return sink.param ? "Tells" : "DoesNotTell"; });

}  // namespace
}  // namespace ashlar::feed
