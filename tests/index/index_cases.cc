#include "index/index_cases.h"

#include "ashlar/index/flash_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/thread_pool_indexer.h"
#include "ashlar/testing/index_oracle.h"

namespace ashlar::index::conformance {

using testing::IndexOracle;

std::vector<IndexCase> index_cases() {
  return {
      index_case<IndexOracle>("Oracle"),
      index_case<RadixTree>("RadixTree"),
      index_case<ConcurrentRadixTree>("ConcurrentRadixTree"),
      index_case<PositionalIndexer>("PositionalJump1", PositionalOptions{.jump_size = 1}),
      index_case<PositionalIndexer>("PositionalJump8", PositionalOptions{.jump_size = 8}),
      index_case<PositionalIndexer>("PositionalJump64", PositionalOptions{.jump_size = 64}),
      index_case<FlashIndex>("Flash"),
      index_case<FlashIndex>("FlashSized", FlashOptions{.expected_blocks = 1'000}),
      answering_later(
          index_case<ThreadPoolIndexer<FlashIndex>>("FlashInThreadPool", ThreadPoolOptions{.threads = 3})),
  };
}

std::vector<IndexCase> orphan_index_cases() {
  const auto orphan = MidChainRemoval::kOrphan;
  return {
      with(index_case<IndexOracle>("OrphanOracle", orphan), orphan),
      with(index_case<FlashIndex>("OrphanFlash", FlashOptions{.mid_chain = orphan}), orphan),
  };
}

std::vector<IndexCase> all_index_cases() {
  std::vector<IndexCase> all = index_cases();
  for (IndexCase& one : orphan_index_cases()) all.push_back(std::move(one));
  return all;
}

}  // namespace ashlar::index::conformance
