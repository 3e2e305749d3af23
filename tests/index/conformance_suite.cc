#include "index/conformance_suite.h"

namespace ashlar::index::conformance {

Scores scores_of(const MatchScores& scores) {
  Scores by_worker;
  std::uint32_t longest = 0;
  scores.for_each([&](const Worker& worker, const Score& score) {
    EXPECT_TRUE(by_worker.emplace(worker, score).second)
        << "two slots for worker " << worker.id << "/" << worker.rank;
    std::uint32_t blocks = 0;
    for (const std::uint32_t of_tier : score.blocks) blocks += of_tier;
    EXPECT_EQ(blocks, score.depth) << "the tiers of worker " << worker.id << "/" << worker.rank;
    EXPECT_LE(score.device_depth, score.blocks[0]);
    longest = std::max(longest, score.depth);
  });
  EXPECT_EQ(scores.matched(), by_worker.size());
  EXPECT_EQ(scores.longest(), longest);
  for (std::size_t slot = 0; slot < scores.slots(); ++slot)
    if (scores.depths()[slot] == 0) {
      EXPECT_EQ(scores.score(slot), Score{}) << "slot " << slot << " has no depth";
    }
  return by_worker;
}

StoreVerdict IndexTest::store(const BlocksStored& event) {
  if (GetParam().answers_at_once) return index_->store(event);
  const IndexCounters before = counters();
  index_->store(event);
  const IndexCounters after = counters();
  if (after.empty_stores != before.empty_stores) return StoreVerdict::kEmpty;
  if (after.unknown_tiers != before.unknown_tiers) return StoreVerdict::kUnknownTier;
  if (after.unknown_parents != before.unknown_parents) return StoreVerdict::kUnknownParent;
  if (after.wrong_positions != before.wrong_positions) return StoreVerdict::kWrongPosition;
  if (after.names_in_use != before.names_in_use) return StoreVerdict::kNameInUse;
  if (after.full != before.full) return StoreVerdict::kFull;
  EXPECT_EQ(after.stored, before.stored + event.blocks.size());
  return StoreVerdict::kApplied;
}

StoreVerdict IndexTest::store(const Worker& worker, const Chain& chain, std::size_t from, std::size_t count,
                              StorageTier tier) {
  const std::vector<StoredBlock> blocks = chain.blocks(from, count);
  BlocksStored event{worker, tier, std::nullopt, std::nullopt, blocks};
  if (from > 0) event.parent = chain.names[from - 1];
  return store(event);
}

std::size_t IndexTest::remove(const Worker& worker, StorageTier tier, std::span<const BlockName> names) {
  if (GetParam().answers_at_once) return index_->remove(worker, tier, names);
  const IndexCounters before = counters();
  index_->remove(worker, tier, names);
  const IndexCounters after = counters();
  EXPECT_EQ(after.removed - before.removed + after.unknown_removals - before.unknown_removals, names.size());
  return after.removed - before.removed;
}

Scores IndexTest::scores(std::span<const LocalHash> locals, bool early_exit) {
  index_->settle();
  index_->find_matches(locals, found_, {.early_exit = early_exit});
  return scores_of(found_);
}

Depths IndexTest::depths(std::span<const LocalHash> locals, bool early_exit) {
  Depths depths;
  for (const auto& [worker, score] : scores(locals, early_exit)) depths[worker] = score.depth;
  return depths;
}

IndexSizes IndexTest::sizes() {
  index_->settle();
  return index_->sizes();
}

IndexCounters IndexTest::counters() {
  index_->settle();
  return index_->counters();
}

testing::IndexOracle IndexTest::held() {
  index_->settle();
  testing::IndexOracle held;
  index_->dump(held);
  const IndexCounters counters = held.counters();
  EXPECT_EQ(counters.unknown_parents + counters.wrong_positions + counters.names_in_use +
                counters.empty_stores + counters.unknown_removals,
            0u)
      << "a dump has calls that do not apply: " << ::testing::PrintToString(counters);
  return held;
}

std::unique_ptr<AnyIndex> IndexTest::rebuilt() {
  index_->settle();
  std::unique_ptr<AnyIndex> other = GetParam().make();
  index_->dump(*other);
  other->settle();
  return other;
}

void IndexTest::expect_empty() {
  EXPECT_EQ(sizes(), empty_sizes_);
  testing::RecordedCalls calls;
  index_->dump(calls);
  EXPECT_EQ(calls.calls().size(), 0u);
}

void expect_same_answers(const AnyIndex& left, const AnyIndex& right,
                         std::span<const std::vector<LocalHash>> queries) {
  MatchScores of_left;
  MatchScores of_right;
  for (const bool early_exit : {false, true}) {
    for (const std::vector<LocalHash>& query : queries) {
      left.find_matches(query, of_left, {.early_exit = early_exit});
      right.find_matches(query, of_right, {.early_exit = early_exit});
      ASSERT_EQ(scores_of(of_left), scores_of(of_right))
          << "a query of " << query.size() << " blocks" << (early_exit ? ", early_exit" : "");
      ASSERT_EQ(of_left.exact(), of_right.exact());
    }
  }
}

IndexSizes counted(const IndexSizes& sizes) {
  return {sizes.workers, sizes.blocks, sizes.contents, 0, 0, 0};
}

}  // namespace ashlar::index::conformance
