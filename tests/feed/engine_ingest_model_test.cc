// EngineIngest beside an engine that knows what it holds. What it tells is fed to three indexes: events,
// events without the names of parents, and changes. They hold the same.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "ashlar/feed/index_feeder.h"
#include "ashlar/index/make_index.h"
#include "ashlar/testing/index_oracle.h"
#include "feed/untidy_engine.h"
#include "support/rounds.h"

namespace ashlar::feed {
namespace {

struct Outcome {
  EngineIngestCounters counters;
  std::size_t compared = 0;  // quiet moments at which both were the same
  std::size_t missing = 0;   // held by the engine, and not reported, over all moments
  std::size_t moves = 0;     // to another ingest, with `moves`
};

class FedIndexes {
 public:
  void apply(std::span<const KvEvent> events) {
    named_.apply(events);
    std::vector<KvEvent> unnamed(events.begin(), events.end());
    for (KvEvent& event : unnamed) event.drop_parent_name();
    by_hash_.apply(unnamed);
  }
  void apply(const IndexChanges& changes) { changes_.apply(changes); }
  void clear(std::uint32_t ranks) {
    for (std::uint32_t rank = 0; rank < ranks; ++rank) {
      KvEvent event;
      event.kind = KvEventKind::kResync;
      event.metadata = rank;
      apply(std::span(&event, 1));
      IndexChanges changes;
      changes.changes.push_back({.kind = KvEventKind::kCleared, .tier = events::kAllTiers, .rank = rank});
      apply(changes);
    }
  }
  std::string compared() const {
    testing::IndexOracle named;
    testing::IndexOracle by_hash;
    testing::IndexOracle changed;
    named_index_->dump(named);
    by_hash_index_->dump(by_hash);
    changes_index_->dump(changed);
    return difference(named, by_hash) + difference(named, changed);
  }
  void check() const {
    named_.check_invariants();
    by_hash_.check_invariants();
    changes_.check_invariants();
    ASSERT_EQ(named_.counters().stored_blocks, by_hash_.counters().stored_blocks);
    ASSERT_EQ(named_.counters().stored_blocks, changes_.counters().stored_blocks);
    ASSERT_EQ(named_.counters().removed_blocks, changes_.counters().removed_blocks);
    ASSERT_EQ(named_.counters().events, changes_.counters().events);
    ASSERT_EQ(named_.counters().tracked_only, changes_.counters().tracked_only);
  }

 private:
  std::unique_ptr<index::AnyIndex> named_index_ = index::make_index({.kind = "flash"}).value();
  std::unique_ptr<index::AnyIndex> by_hash_index_ = index::make_index({.kind = "flash"}).value();
  std::unique_ptr<index::AnyIndex> changes_index_ = index::make_index({.kind = "flash"}).value();
  IndexFeeder named_{*named_index_, events::WorkerId(1)};
  IndexFeeder by_hash_{*by_hash_index_, events::WorkerId(1)};
  IndexFeeder changes_{*changes_index_, events::WorkerId(1)};
};

// Events for an index name the parent wherever its name is held.
void check_parent(const KvEvent& event, const UntidyEngine& engine, const PresenceBook& book) {
  if (event.kind != KvEventKind::kStored || !EngineIngest::for_index(event)) return;
  const std::optional<BlockName> parent = engine.parent_of(event.name_bits);
  bool is_held = false;
  for (std::uint32_t tier = 0; parent && tier < events::kStorageTiers; ++tier)
    is_held |= book.present().contains({EngineIngest::rank_of(event), event.group, tier, parent->value()});
  ASSERT_EQ(event.has_parent_name, !parent || is_held);
  ASSERT_EQ(event.parent_name(), is_held ? parent : std::nullopt);
}

// Nothing is ever reported that is not there; what is missing is counted. With `moves` another ingest goes on
// from the state of the first wherever it can be had.
void run(std::uint64_t seed, const UntidyOptions& untidy, bool full_reports, Outcome& outcome,
         bool moves = false) {
  UntidyEngine engine(seed, untidy);
  auto ingest = EngineIngest::create({.full_reports = full_reports});
  ASSERT_TRUE(ingest);
  auto twin = EngineIngest::create({.full_reports = full_reports});  // tells changes
  ASSERT_TRUE(twin);
  IndexChanges changes;
  PresenceBook book;
  book.strict_parents = !(untidy.first_blocks_twice && full_reports);
  FedIndexes indexes;
  std::vector<KvEvent> out;
  for (int i = 0; i < 300; ++i) {
    const EngineBatch& batch = engine.step();
    out.clear();
    ingest->apply(batch, out);
    indexes.apply(out);
    changes.clear();
    twin->apply(batch, changes);
    indexes.apply(changes);
    indexes.check();
    ASSERT_EQ(twin->counters(), ingest->counters());
    ASSERT_EQ(changes.size(), out.size());
    for (const KvEvent& event : out) {
      check_parent(event, engine, book);
      book.apply(std::span(&event, 1));
      ASSERT_EQ(book.problem(), "") << "seed " << seed << " step " << i;
      ASSERT_EQ(event.hash, engine.hash_of(event.name_bits).in_group(event.group)) << "seed " << seed;
      ASSERT_EQ(EngineIngest::for_index(event), event.group == 0);
    }
    ASSERT_EQ(ingest->present(), book.present().size());
    ingest->check_invariants();
    if (const auto state = ingest->save(); moves && state) {
      auto next = EngineIngest::create({.full_reports = full_reports});
      ASSERT_TRUE(next);
      PresenceBook told;
      told.strict_parents = false;  // of a block whose parent was evicted
      out.clear();
      ASSERT_TRUE(next->load(*state, out));
      for (const KvEvent& event : out) {
        check_parent(event, engine, told);
        told.apply(std::span(&event, 1));
      }
      indexes.clear(untidy.ranks);
      indexes.apply(out);
      auto next_twin = EngineIngest::create({.full_reports = full_reports});
      ASSERT_TRUE(next_twin);
      changes.clear();
      ASSERT_TRUE(next_twin->load(*state, changes));
      indexes.apply(changes);
      twin = std::move(next_twin);
      ASSERT_EQ(told.problem(), "") << "seed " << seed << " step " << i;
      ASSERT_EQ(told.present(), book.present()) << "seed " << seed << " step " << i;
      ASSERT_EQ(next->save().value(), *state);
      book = told;
      ingest = std::move(next);
      ++outcome.moves;
    }
    if (!engine.quiet()) continue;
    ASSERT_EQ(indexes.compared(), "") << "seed " << seed << " step " << i;
    const auto held = engine.contents();
    const auto reported = book.keys();
    for (const auto& key : reported)
      ASSERT_TRUE(held.contains(key))
          << "seed " << seed << " step " << i << ": rank " << key.rank << " group " << key.group << " tier "
          << key.tier << " name " << key.name << " is not there";
    outcome.missing += held.size() - reported.size();
    ++outcome.compared;
  }
  outcome.counters = ingest->counters();
}

TEST(EngineIngestModel, PresenceIsWhatTheEngineHoldsWithFullReports) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(6); ++seed) {
    Outcome outcome;
    run(seed, {.ranks = 2, .full_reports = 0.3}, true, outcome);
    if (HasFatalFailure()) return;
    EXPECT_EQ(outcome.missing, 0u) << "seed " << seed;
    EXPECT_GT(outcome.compared, 100u);
    EXPECT_GT(outcome.counters.reannounced, 0u);
    EXPECT_GT(outcome.counters.released, 0u);
    EXPECT_GT(outcome.counters.resolved, 0u);
    EXPECT_GT(outcome.counters.placeholders, 0u);
    EXPECT_GT(outcome.counters.unknown_removals, 0u);
    EXPECT_EQ(outcome.counters.collisions, 0u);
  }
}

TEST(EngineIngestModel, PresenceIsWhatTheEngineHoldsWhenFirstBlocksAreComputedTwice) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(6); ++seed) {
    Outcome outcome;
    run(seed, {.first_blocks_twice = true}, false, outcome);
    if (HasFatalFailure()) return;
    EXPECT_EQ(outcome.missing, 0u) << "seed " << seed;
    EXPECT_EQ(outcome.counters.reannounced, 0u);
  }
}

TEST(EngineIngestModel, PresenceIsExactOverGroupsOfLayers) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(6); ++seed) {
    Outcome outcome;
    run(seed, {.groups = 3, .clears = 0.05}, false, outcome);
    if (HasFatalFailure()) return;
    EXPECT_EQ(outcome.missing, 0u) << "seed " << seed;
  }
}

TEST(EngineIngestModel, AnotherIngestGoesOnFromAState) {
  for (std::uint64_t seed = 1; seed <= testing::rounds(6); ++seed) {
    const UntidyOptions untidy{
        .ranks = 2, .groups = 2, .full_reports = 0.2, .offload = 0.1, .out_of_order = 0.05};
    Outcome stays;
    run(seed, untidy, true, stays);
    Outcome moves;
    run(seed, untidy, true, moves, true);
    if (HasFatalFailure()) return;
    EXPECT_EQ(moves.missing, stays.missing) << "seed " << seed;
    EXPECT_EQ(moves.compared, stays.compared) << "seed " << seed;
    EXPECT_GT(moves.moves, 20u);
  }
}

TEST(EngineIngestModel, NothingIsReportedThatIsNotThereWhereReportsAndSecondCopiesMix) {
  std::size_t missing = 0;
  for (std::uint64_t seed = 1; seed <= testing::rounds(6); ++seed) {
    Outcome outcome;
    run(seed, {.ranks = 2, .groups = 2, .full_reports = 0.3, .first_blocks_twice = true, .clears = 0.03},
        true, outcome);
    if (HasFatalFailure()) return;
    missing += outcome.missing;
  }
  EXPECT_GT(missing, 0u) << "the test does not reach what cannot be told apart";
}

}  // namespace
}  // namespace ashlar::feed
