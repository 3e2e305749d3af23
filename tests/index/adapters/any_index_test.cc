#include "ashlar/index/make_index.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "ashlar/testing/index_calls.h"
#include "ashlar/testing/index_oracle.h"
#include "index/chain.h"
#include "index/index_printers.h"

namespace ashlar::index {
namespace {

using conformance::branch_of;
using conformance::Chain;
using conformance::chain_of;
using testing::IndexOracle;

// The facade is an Indexer itself.
static_assert(Indexer<AnyIndex>);
static_assert(Indexer<IndexOf<IndexOracle>>);

const Worker kWorker{WorkerId(1), 0};

std::uint32_t depth(const AnyIndex& index, const Chain& chain, const Worker& worker = kWorker) {
  MatchScores scores;
  index.find_matches(chain.locals, scores);
  return scores.of(worker).value_or(Score{}).depth;
}

std::string refusal(const IndexOptions& options) {
  auto index = make_index(options);
  return index ? std::string() : index.error().to_string();
}

// Options that differ from the defaults in what is set here.
IndexOptions options_of(std::string kind, std::size_t threads = 0) {
  IndexOptions options;
  options.kind = std::move(kind);
  options.threads = threads;
  return options;
}

TEST(AnyIndexTest, PassesEveryCallOn) {
  IndexOf<IndexOracle> of("oracle");
  AnyIndex& index = of;
  IndexOracle direct;
  EXPECT_EQ(index.name(), "oracle");
  const Chain chain = chain_of(1, 4);
  const std::vector<testing::IndexCall> calls = {
      testing::StoreCall{kWorker, StorageTier::kDevice, {}, {}, chain.blocks(0, 4)},
      testing::StoreCall{{WorkerId(2), 0}, StorageTier::kHost, {}, 0, chain.blocks(0, 2)},
      testing::StoreCall{{WorkerId(2), 1}, StorageTier::kHost, {}, 0, chain.blocks(0, 3)},
      testing::StoreCall{{WorkerId(3), 0}, StorageTier::kDevice, BlockName(5), {}, chain.blocks(0, 3)},
      testing::RemoveCall{kWorker, StorageTier::kDevice, chain.names_from_the_end(3, 1)},
      testing::ClearCall{{WorkerId(2), 0}},
  };
  for (const testing::IndexCall& call : calls)
    EXPECT_EQ(testing::apply(call, index), testing::apply(call, direct)) << to_string(call);
  EXPECT_EQ(difference(of.get(), direct), "");
  EXPECT_EQ(index.counters(), direct.counters());
  EXPECT_EQ(index.sizes(), direct.sizes());
  EXPECT_EQ(depth(index, chain), 3u);
  IndexOracle copy;
  index.dump(copy);
  EXPECT_EQ(difference(copy, direct), "");
  index.remove_worker(WorkerId(2));
  EXPECT_EQ(depth(index, chain, {WorkerId(2), 1}), 0u);
  index.settle();  // nothing to wait for
}

TEST(AnyIndexTest, QueryOptionsReachTheIndex) {
  IndexOf<IndexOracle> of("oracle");
  const AnyIndex& index = of;
  const Chain chain = chain_of(1, 4);
  const auto blocks = chain.blocks(0, 4);
  of.store({kWorker, StorageTier::kDevice, {}, {}, blocks});
  MatchScores scores;
  index.find_matches(chain.locals, scores, {.early_exit = true});
  EXPECT_FALSE(scores.exact());
  EXPECT_EQ(scores.longest(), 1u);
}

TEST(MakeIndexTest, EveryKindAnswersAloneAndInAPool) {
  const Chain chain = chain_of(1, 100);
  const Chain branch = branch_of(chain, 60, 2, 100);
  const Worker other{WorkerId(2), 3};
  for (const std::string_view kind : kIndexKinds) {
    for (const std::size_t threads : {0, 1, 3}) {
      auto made = make_index(options_of(std::string(kind), threads));
      ASSERT_TRUE(made) << kind;
      AnyIndex& index = **made;
      const std::string on_threads =
          threads == 1 ? " on 1 thread" : " on " + std::to_string(threads) + " threads";
      EXPECT_EQ(index.name(), std::string(kind) + (threads == 0 ? "" : on_threads));
      const auto blocks = chain.blocks(0, 100);
      const auto tail = branch.blocks(60, 40);
      EXPECT_EQ(index.store({kWorker, StorageTier::kDevice, {}, {}, blocks}), StoreVerdict::kApplied);
      EXPECT_EQ(index.store({other, StorageTier::kDevice, {}, {}, blocks}), StoreVerdict::kApplied);
      EXPECT_EQ(index.store({other, StorageTier::kDevice, chain.names[59], 60, tail}),
                StoreVerdict::kApplied);
      EXPECT_EQ(index.remove(other, StorageTier::kDevice, chain.names_from_the_end(70, 30)), 30u);
      index.settle();
      EXPECT_EQ(depth(index, chain), 100u) << index.name();
      EXPECT_EQ(depth(index, chain, other), 70u) << index.name();
      EXPECT_EQ(depth(index, branch, other), 100u) << index.name();
      IndexOracle copy;
      index.dump(copy);
      EXPECT_EQ(copy.sizes().blocks, 100u + 110) << index.name();
      EXPECT_EQ(index.counters().stored, 240u) << index.name();
      index.remove_worker(WorkerId(2));
      index.clear(kWorker);
      EXPECT_EQ(index.sizes().blocks, 0u) << index.name();
    }
  }
}

TEST(MakeIndexTest, OnlyFlashOrphans) {
  const Chain chain = chain_of(1, 5);
  IndexOptions options = options_of("flash");
  for (const MidChainRemoval policy : {MidChainRemoval::kRetain, MidChainRemoval::kOrphan}) {
    options.mid_chain = policy;
    auto index = make_index(options).value();
    const auto blocks = chain.blocks(0, 5);
    const auto again = chain.blocks(2, 1);
    index->store({kWorker, StorageTier::kDevice, {}, {}, blocks});
    index->remove(kWorker, StorageTier::kDevice, std::span(&chain.names[2], 1));
    index->store({kWorker, StorageTier::kDevice, chain.names[1], {}, again});
    EXPECT_EQ(depth(*index, chain), policy == MidChainRemoval::kRetain ? 5u : 3u);
  }
  for (const std::string_view kind : kIndexKinds) {
    if (kind == "flash") continue;
    options.kind = kind;
    EXPECT_EQ(refusal(options), "invalid_argument: mid_chain is orphan, but an index of kind \"" +
                                    std::string(kind) + "\" only retains; use flash or retain");
  }
}

TEST(MakeIndexTest, WrongOptionsAreRefusedWithTheValue) {
  EXPECT_EQ(refusal(options_of("btree")),
            "invalid_argument: there is no index of kind \"btree\"; there are flash, positional, "
            "concurrent_radix_tree, radix_tree");
  IndexOptions options = options_of("positional");
  options.jump_size = 0;
  EXPECT_EQ(refusal(options), "invalid_argument: jump_size is 0; it must be 1 or more");
  EXPECT_EQ(refusal(options_of("flash", 1025)), "invalid_argument: threads is 1025; a pool has 1 to 1024");
  options = options_of("flash", 1);
  options.queue_capacity = 0;
  EXPECT_EQ(refusal(options), "invalid_argument: queue_capacity is 0 blocks; it must be 1 to 4294967296");
  options.threads = 0;  // no queue, nothing wrong with it
  EXPECT_EQ(refusal(options), "");
  options.mid_chain = static_cast<MidChainRemoval>(7);
  EXPECT_EQ(refusal(options), "invalid_argument: mid_chain is 7; it must be retain (0) or orphan (1)");
}

}  // namespace
}  // namespace ashlar::index
