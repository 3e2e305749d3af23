// The changes of an EngineIngest, fed into indexes: what they cost where the index tells at once what it
// holds, and that they mean the same elsewhere.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/flash_index.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "feed/batch_builder.h"

namespace ashlar::feed {
namespace {

using events::StorageTier;
using events::StoreVerdict;

constexpr std::uint32_t kTokens = 4;
constexpr events::Worker kFed{events::WorkerId(7), 0};

// An index that counts what it is asked.
class CountingIndex final : public events::IndexSink {
 public:
  StoreVerdict store(const events::BlocksStored& event) override {
    ++stores;
    most = std::max(most, event.blocks.size());
    return refuses > 0 && refuses-- > 0 ? StoreVerdict::kFull : index.store(event);
  }
  std::size_t remove(const events::Worker& worker, StorageTier tier,
                     std::span<const BlockName> names) override {
    most = std::max(most, names.size());
    removed += names.size();
    return index.remove(worker, tier, names);
  }
  void clear(const events::Worker& worker) override { index.clear(worker); }
  void remove_worker(events::WorkerId worker) override { index.remove_worker(worker); }
  bool presence(const events::Worker& worker, std::span<const BlockName> names,
                std::span<events::BlockPresence> out) const override {
    ++questions;
    return tells && index.presence(worker, names, out);
  }
  bool list(const events::Worker& worker, std::vector<events::BlockPresence>& out) const override {
    ++lists;
    return tells && index.list(worker, out);
  }
  bool holds_nothing(const events::Worker& worker) const override {
    return tells && index.holds_nothing(worker);
  }

  bool tells = true;
  int refuses = 0;  // so many stores
  int stores = 0;
  std::size_t most = 0;  // blocks of a store, or names of a removal
  std::size_t removed = 0;
  mutable int questions = 0;
  mutable int lists = 0;
  index::FlashIndex index;
};

class IndexChangesTest : public ::testing::Test {
 protected:
  static std::vector<Token> text(std::size_t first, std::size_t count) {
    std::vector<Token> out(count * kTokens);
    for (std::size_t i = 0; i < out.size(); ++i)
      out[i] = Token(static_cast<std::uint32_t>(first * kTokens + i));
    return out;
  }
  // Blocks [first, first + count) of one sequence; block i is called 100 + i.
  void store(std::size_t first, std::size_t count, std::string_view medium = "GPU") {
    std::vector<BlockName> names;
    for (std::size_t i = first; i < first + count; ++i) names.emplace_back(100 + i);
    BatchBuilder builder;
    builder.stored(first == 0 ? std::nullopt : std::optional(BlockName(99 + first)), names,
                   text(first, count), kTokens, medium);
    apply(builder.batch());
  }
  void remove(std::size_t first, std::size_t count) {
    std::vector<BlockName> names;
    for (std::size_t i = first + count; i > first; --i) names.emplace_back(99 + i);
    BatchBuilder builder;
    builder.removed(names);
    apply(builder.batch());
  }
  void apply(const EngineBatch& batch) {
    IndexChanges changes;
    ingest_.apply(batch, changes);
    feeder_.apply(changes);
    feeder_.check_invariants();
    ingest_.check_invariants();
  }
  std::uint32_t depth(std::size_t blocks) const {
    std::vector<tokens::LocalHash> locals;
    for (std::size_t i = 0; i < blocks; ++i)
      locals.push_back(tokens::SequenceHasher().local_hash(text(i, 1)));
    index::MatchScores scores;
    sink_.index.find_matches(locals, scores);
    const auto score = scores.of(kFed);
    return score ? score->depth : 0;
  }

  CountingIndex sink_;
  EngineIngest ingest_ = EngineIngest::create({}).value();
  IndexFeeder feeder_{sink_, kFed.id};
};

TEST_F(IndexChangesTest, ARunIsOneCallAndNoQuestion) {
  store(0, 8);  // the first one tells which groups there are
  const int questions = sink_.questions;
  const int stores = sink_.stores;
  store(8, 40);
  store(48, 16);
  store(0, 8, "CPU");
  EXPECT_EQ(depth(64), 64u);
  remove(32, 32);
  EXPECT_EQ(depth(64), 32u);
  store(32, 8);
  EXPECT_EQ(depth(64), 40u);
  EXPECT_EQ(sink_.questions, questions);
  EXPECT_EQ(sink_.stores, stores + 4);
  EXPECT_EQ(feeder_.counters().stored_blocks, 80u);
  EXPECT_EQ(feeder_.counters().removed_blocks, 32u);
  EXPECT_EQ(feeder_.kept(), 0u);
}

TEST_F(IndexChangesTest, LongRunsAreStoredInPieces) {
  store(0, 8);
  store(8, 5000);
  EXPECT_EQ(depth(5008), 5008u);
  EXPECT_LE(sink_.most, 1024u);
  remove(100, 4908);
  EXPECT_EQ(depth(5008), 100u);
}

TEST_F(IndexChangesTest, AClearOfATierGoesInPieces) {
  store(0, 3000);
  store(0, 3000, "CPU");
  BatchBuilder builder;
  builder.cleared();
  apply(builder.batch());
  EXPECT_EQ(depth(3000), 3000u) << "in the host's tier";
  EXPECT_EQ(sink_.index.sizes().blocks, 3000u);
  EXPECT_LE(sink_.most, 1024u);
}

// Two groups of layers that an index needs, in one message: a block is there when both have it.
TEST_F(IndexChangesTest, GroupsOfOneMessageAreKnownBeforeAnythingIsSent) {
  const std::vector<BlockName> names = {BlockName(100), BlockName(101), BlockName(102)};
  BatchBuilder builder;
  builder.stored(std::nullopt, names, text(0, 3), kTokens);
  builder.stored(std::nullopt, names, text(0, 3), kTokens).group = 1;
  apply(builder.batch());
  EXPECT_EQ(depth(3), 3u);
  EXPECT_EQ(sink_.stores, 1);
  EXPECT_EQ(sink_.removed, 0u);
  EXPECT_EQ(sink_.lists, 0);
  BatchBuilder gone;
  gone.removed(names[2]).group = 1;
  apply(gone.batch());
  EXPECT_EQ(depth(3), 2u);
}

// Events of a decoder of one's own may share the names in their batch.
TEST_F(IndexChangesTest, EventsMayShareNamesInTheirBatch) {
  const std::vector<BlockName> names = {BlockName(100), BlockName(101), BlockName(102)};
  BatchBuilder builder;
  builder.stored(std::nullopt, names, text(0, 3), kTokens);
  builder.stored(std::nullopt, names, text(0, 3), kTokens).group = 1;
  EngineBatch& batch = builder.batch();
  batch.events[1].names = batch.events[0].names;
  batch.events[1].tokens = batch.events[0].tokens;
  apply(batch);
  EXPECT_EQ(ingest_.present(), 6u);
  BatchBuilder gone;
  gone.removed(names);
  gone.removed(names).group = 1;
  gone.batch().events[1].names = gone.batch().events[0].names;
  apply(gone.batch());
  EXPECT_EQ(ingest_.present(), 0u);
  EXPECT_EQ(ingest_.counters().unknown_removals, 0u);
}

// Two ranks of an engine that a listener takes for one.
TEST_F(IndexChangesTest, WhatTwoRanksTellIsStoredOnce) {
  const std::vector<BlockName> names = {BlockName(100), BlockName(101)};
  for (const std::uint32_t rank : {0u, 1u}) {
    BatchBuilder builder(rank);
    builder.stored(std::nullopt, names, text(0, 2), kTokens);
    IndexChanges changes;
    ingest_.apply(builder.batch(), changes);
    feeder_.apply(0, changes);
  }
  EXPECT_EQ(depth(2), 2u);
  EXPECT_EQ(sink_.index.counters().repeated, 0u);
}

// Longer than what is looked ahead, among short ones, and a batch that ends with nothing held.
TEST_F(IndexChangesTest, EventsOfAllLengthsInOneBatch) {
  Random random(3);
  for (int round = 0; round < 30; ++round) {
    std::vector<std::size_t> lengths;
    for (int i = 0; i < 20; ++i)
      lengths.push_back(random.below(4) == 0 ? 100 + random.below(400) : 1 + random.below(20));
    BatchBuilder builder;
    std::size_t first = 0;
    for (const std::size_t length : lengths) {
      std::vector<BlockName> names;
      for (std::size_t i = first; i < first + length; ++i) names.emplace_back(100 + i);
      builder.stored(first == 0 ? std::nullopt : std::optional(BlockName(99 + first)), names,
                     text(first, length), kTokens);
      if (random.below(3) == 0) builder.removed(BlockName(random.next() | 1u << 31));  // nobody knows it
      first += length;
    }
    const bool ends = random.below(2) == 0;
    if (ends) {
      std::vector<BlockName> all;
      for (std::size_t i = first; i > 0; --i) all.emplace_back(99 + i);
      for (std::span<const BlockName> left = all; !left.empty();) {
        const std::size_t some = std::min<std::size_t>(left.size(), 1 + random.below(300));
        builder.removed(left.first(some));
        left = left.subspan(some);
      }
    }
    apply(builder.batch());
    ASSERT_EQ(depth(first), ends ? 0 : first) << round;
    ASSERT_EQ(ingest_.present(), ends ? 0 : first);
    remove(0, first);
    ASSERT_EQ(ingest_.present(), 0u);
    ASSERT_EQ(sink_.index.sizes().blocks, 0u);
  }
}

// As where the state of another router was read first: a block that is there is not stored again.
TEST_F(IndexChangesTest, AnIndexThatHoldsBlocksIsAsked) {
  std::vector<events::StoredBlock> known;
  for (std::size_t i = 0; i < 12; ++i)
    known.push_back({.local = tokens::SequenceHasher().local_hash(text(i, 1)), .name = BlockName(100 + i)});
  ASSERT_EQ(sink_.index.store({.worker = kFed, .parent = {}, .start_position = {}, .blocks = known}),
            StoreVerdict::kApplied);
  store(0, 8);
  store(8, 8);
  EXPECT_EQ(depth(16), 16u);
  EXPECT_EQ(sink_.index.counters().repeated, 0u);
  EXPECT_GT(sink_.questions, 1);
  // After a clear it is known to hold nothing.
  IndexChanges changes;
  ingest_.resync(changes);
  feeder_.apply(changes);
  EXPECT_EQ(depth(16), 0u);
  store(0, 8);
  const int questions = sink_.questions;
  store(8, 8);
  EXPECT_EQ(depth(16), 16u);
  EXPECT_EQ(sink_.questions, questions);
}

TEST_F(IndexChangesTest, WhatComesBehindARefusedRunWaitsForNothingThatIsNotThere) {
  store(0, 8);
  sink_.refuses = 3;  // as it is, as events, and block by block
  store(8, 8);
  EXPECT_EQ(depth(16), 8u);
  EXPECT_EQ(feeder_.counters().verdicts[static_cast<std::size_t>(StoreVerdict::kFull)], 1u);
  store(16, 8);
  EXPECT_EQ(depth(24), 8u);
  remove(8, 16);
  EXPECT_EQ(feeder_.kept(), 0u);
  store(8, 16);
  EXPECT_EQ(depth(24), 24u);
}

TEST_F(IndexChangesTest, ARunThatIsRefusedOnceGoesInTheLongWay) {
  store(0, 8);
  sink_.refuses = 1;
  store(8, 8);
  EXPECT_EQ(depth(16), 16u);
  EXPECT_EQ(feeder_.kept(), 0u);
}

TEST_F(IndexChangesTest, AnIndexThatDoesNotTellHoldsTheSame) {
  sink_.tells = false;
  store(0, 8);
  store(8, 8);
  store(0, 12, "CPU");
  remove(4, 12);
  EXPECT_EQ(depth(16), 12u);
  EXPECT_EQ(sink_.index.sizes().blocks, 16u);
}

// A child that an engine tells before its parent waits in the ingest; one whose parent was evicted waits in
// the feeder, which was told its hash.
TEST_F(IndexChangesTest, ABlockInALowerTierWhoseParentIsGoneWaits) {
  store(0, 4);
  store(0, 4, "CPU");
  std::vector<BlockName> second = {BlockName(101)};
  BatchBuilder gone;
  gone.removed(second);
  gone.removed(second, "CPU");
  apply(gone.batch());
  EXPECT_EQ(depth(4), 1u);
  EXPECT_EQ(sink_.index.sizes().blocks, 6u);
  store(1, 1);
  EXPECT_EQ(depth(4), 4u);
}

TEST_F(IndexChangesTest, RanksAndTheEndOfARankAreToldInOrder) {
  for (const std::uint32_t rank : {0u, 3u, 0u}) {
    BatchBuilder builder(rank);
    const std::vector<BlockName> names = {BlockName(100), BlockName(101)};
    builder.stored(std::nullopt, names, text(0, 2), kTokens);
    apply(builder.batch());
  }
  EXPECT_EQ(sink_.index.sizes().workers, 2u);
  IndexChanges changes;
  ingest_.clear(3, changes);
  ASSERT_EQ(changes.changes.size(), 1u);
  EXPECT_EQ(changes.changes[0].kind, KvEventKind::kCleared);
  EXPECT_EQ(changes.changes[0].rank, 3u);
  feeder_.apply(changes);
  EXPECT_EQ(sink_.index.sizes().workers, 1u);
  EXPECT_EQ(depth(2), 2u);
}

// The copies of a block are counted up to a limit, from which on it goes early.
TEST(EngineCopies, MoreCopiesThanCanBeCountedEndEarly) {
  constexpr std::uint32_t kCounted = 0xFFFF;
  EngineIngest ingest = EngineIngest::create({.full_reports = false}).value();
  std::vector<KvEvent> out;
  const BlockName name(5);
  const std::vector<Token> tokens(kTokens, Token(1));
  for (std::uint32_t i = 0; i < kCounted + 3; ++i) {
    BatchBuilder builder;
    builder.stored(std::nullopt, std::span(&name, 1), tokens, kTokens);
    ingest.apply(builder.batch(), out);
  }
  EXPECT_EQ(out.size(), 1u);
  for (std::uint32_t i = 0; i < kCounted; ++i) {
    EXPECT_EQ(ingest.present(), 1u);
    BatchBuilder builder;
    builder.removed(name);
    ingest.apply(builder.batch(), out);
  }
  EXPECT_EQ(out.size(), 2u);
  EXPECT_EQ(ingest.present(), 0u);
  ingest.check_invariants();
}

}  // namespace
}  // namespace ashlar::feed
