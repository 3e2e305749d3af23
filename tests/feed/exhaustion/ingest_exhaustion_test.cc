// An EngineIngest that gets no memory for a run of new blocks: what it told is what it holds, and the same
// message again completes it.
#include <gtest/gtest.h>

#include <span>
#include <vector>

#include "ashlar/feed/engine_session.h"
#include "feed/batch_builder.h"
#include "support/failing_new.h"

namespace ashlar::feed {
namespace {

using support::FailingAllocation;
using support::for_every_allocation;

constexpr std::uint32_t kTokens = 4;
constexpr std::size_t kBlocks = 600;  // several pages of names, and chunks of records

EngineBatch store(std::size_t first, std::size_t count) {
  std::vector<BlockName> names;
  for (std::size_t i = first; i < first + count; ++i) names.emplace_back(1000 + i);
  std::vector<Token> text;
  for (std::size_t i = first * kTokens; i < (first + count) * kTokens; ++i)
    text.emplace_back(static_cast<std::uint32_t>(i));
  BatchBuilder builder;
  builder.stored(first == 0 ? std::nullopt : std::optional(BlockName(999 + first)), names, text, kTokens);
  return builder.batch();
}

std::size_t told(const std::vector<KvEvent>& events) {
  return events.size();
}
std::size_t told(const IndexChanges& changes) {
  std::size_t blocks = 0;
  for (const IndexChanges::Change& change : changes.changes) blocks += change.count;
  EXPECT_EQ(blocks, changes.blocks.size());
  EXPECT_EQ(changes.block_hashes.size(), changes.blocks.size());
  return blocks;
}

template <class Output>
class IngestExhaustion : public ::testing::Test {};
using Outputs = ::testing::Types<std::vector<KvEvent>, IndexChanges>;
TYPED_TEST_SUITE(IngestExhaustion, Outputs);

TYPED_TEST(IngestExhaustion, ARunThatFindsNoMemoryIsToldAsFarAsItIsHeld) {
  const EngineBatch first = store(0, 20);
  const EngineBatch second = store(20, kBlocks - 20);
  const std::size_t failures = for_every_allocation([&](FailingAllocation& failing) {
    EngineIngest ingest = EngineIngest::create({.full_reports = false}).value();
    TypeParam out;
    ingest.apply(first, out);
    ASSERT_EQ(told(out), 20u);
    const bool done = failing.during([&] {
      ingest.apply(second, out);
      return true;
    });
    ASSERT_TRUE(done || failing.happened());  // it may have found another way
    ingest.check_invariants();
    ASSERT_EQ(told(out), ingest.present());
    if (done) {
      ASSERT_EQ(ingest.present(), kBlocks);
      return;
    }
    const std::size_t held = ingest.present();
    ingest.apply(second, out);
    ingest.check_invariants();
    ASSERT_EQ(told(out), kBlocks);
    ASSERT_EQ(ingest.present(), kBlocks);
    ASSERT_EQ(ingest.counters().repeated, held - 20);
  });
  EXPECT_GT(failures, 10u);
}

}  // namespace
}  // namespace ashlar::feed
