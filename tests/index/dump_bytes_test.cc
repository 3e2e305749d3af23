// A dump as bytes, in both forms, read back into every structure: equal names, tiers, workers and answers.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ashlar/events/event_codec.h"
#include "ashlar/events/router_event_json.h"
#include "ashlar/testing/index_call_generator.h"
#include "ashlar/testing/index_oracle.h"
#include "index/conformance_suite.h"
#include "index/index_printers.h"
#include "support/rounds.h"

namespace ashlar::index::conformance {
namespace {

using testing::CallGeneratorOptions;
using testing::IndexCallGenerator;
using testing::IndexOracle;

class DumpBytesTest : public ::testing::TestWithParam<IndexCase> {
 protected:
  static IndexOracle held_by(AnyIndex& index) {
    index.settle();
    IndexOracle held;
    index.dump(held);
    return held;
  }
  // Each worker's score for each query.
  static std::vector<std::map<Worker, Score>> answers(AnyIndex& index,
                                                      const std::vector<std::vector<LocalHash>>& queries) {
    index.settle();
    std::vector<std::map<Worker, Score>> out;
    MatchScores scores;
    for (const std::vector<LocalHash>& query : queries) {
      index.find_matches(query, scores);
      std::map<Worker, Score>& one = out.emplace_back();
      scores.for_each([&](const Worker& worker, const Score& score) { one.emplace(worker, score); });
    }
    return out;
  }
  // Every prefix of what the generator asks.
  static std::vector<std::vector<LocalHash>> queries_of(IndexCallGenerator& calls) {
    std::vector<std::vector<LocalHash>> queries;
    for (int i = 0; i < 12; ++i) {
      const std::vector<LocalHash> whole = calls.next_query();
      for (std::size_t length = 0; length <= std::min<std::size_t>(whole.size(), 40); ++length)
        queries.emplace_back(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(length));
      queries.push_back(whole);
    }
    return queries;
  }

  static std::vector<std::byte> stream_of(const AnyIndex& index, std::size_t batch_events) {
    events::DumpWriter writer({.keys = {}, .position = {}, .batch_events = batch_events});
    index.dump(writer);
    return std::move(writer).finish().value();
  }
  static std::string json_of(const AnyIndex& index) {
    events::RouterDumpWriter writer("model:group", 16);
    index.dump(writer);
    return std::move(writer).finish().value();
  }
};

TEST_P(DumpBytesTest, AnyStructureReadsItBack) {
  std::size_t blocks = 0;
  std::size_t holes = 0;
  const std::uint64_t seeds = testing::all_rounds() ? 6 : 1;
  for (std::uint64_t seed = 1; seed <= seeds || (seed < 100 && (blocks <= 100 || holes == 0)); ++seed) {
    IndexCallGenerator calls(seed, CallGeneratorOptions::varied(seed));
    const std::unique_ptr<AnyIndex> index = GetParam().make();
    for (int i = 0; i < 250; ++i) testing::apply(calls.next(), *index);
    index->settle();
    const IndexOracle held = held_by(*index);
    const std::vector<std::vector<LocalHash>> queries = queries_of(calls);
    const auto expected = answers(*index, queries);
    const std::vector<std::byte> stream = stream_of(*index, seed % 2 == 0 ? 4096 : 7);
    const std::string json = json_of(*index);
    for (const IndexCase& other : index_cases()) {
      const std::unique_ptr<AnyIndex> from_stream = other.make();
      const std::unique_ptr<AnyIndex> from_json = other.make();
      const Result<events::DumpCounts> read = events::read_dump(stream, *from_stream);
      ASSERT_TRUE(read) << other << ", seed " << seed << ": " << read.error();
      const Result<events::DumpCounts> parsed = events::read_router_dump(json, *from_json);
      ASSERT_TRUE(parsed) << other << ", seed " << seed << ": " << parsed.error();
      EXPECT_EQ(parsed->block_size, 16u);
      EXPECT_EQ(read->stored, parsed->stored);
      EXPECT_EQ(read->workers, parsed->workers);
      ASSERT_EQ(difference(held_by(*from_stream), held), "") << other << ", seed " << seed;
      ASSERT_EQ(difference(held_by(*from_json), held), "") << other << ", seed " << seed;
      ASSERT_EQ(answers(*from_stream, queries), expected) << other << ", seed " << seed;
      ASSERT_EQ(answers(*from_json, queries), expected) << other << ", seed " << seed;
      holes += read->removed;
    }
    blocks += held.sizes().blocks;
  }
  EXPECT_GT(blocks, 100u);
  EXPECT_GT(holes, 0u) << "some worker holds blocks behind a hole";
}

TEST_P(DumpBytesTest, AnEmptyIndexIsAnEmptyDump) {
  const std::unique_ptr<AnyIndex> index = GetParam().make();
  const std::unique_ptr<AnyIndex> other = GetParam().make();
  EXPECT_EQ(events::read_dump(stream_of(*index, 1), *other)->workers, 0u);
  EXPECT_EQ(events::read_router_dump(json_of(*index), *other)->stored, 0u);
  other->settle();
  EXPECT_EQ(other->sizes().blocks, 0u);
}

INSTANTIATE_TEST_SUITE_P(Indexes, DumpBytesTest, ::testing::ValuesIn(index_cases()), name_of_case);

}  // namespace
}  // namespace ashlar::index::conformance
