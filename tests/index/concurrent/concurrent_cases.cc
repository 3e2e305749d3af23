#include "index/concurrent/concurrent_cases.h"

#include <memory>
#include <string>
#include <utility>

#include "ashlar/index/flash_index.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/thread_pool_indexer.h"

namespace ashlar::index::concurrent {
namespace {

using conformance::index_case;

template <Indexer T>
IndexCase in_thread_pool(std::string name) {
  const auto make = [name]() -> std::unique_ptr<AnyIndex> {
    auto index = ThreadPoolIndexer<T>::create({.threads = 2});
    ASHLAR_CHECK(index.has_value(), "no threads for the queues");
    return std::make_unique<IndexOf<ThreadPoolIndexer<T>>>(name, std::move(index).value());
  };
  return conformance::answering_later({name, make});
}

void find_many_in_flash(const AnyIndex& index, std::span<const std::span<const LocalHash>> queries,
                        std::span<MatchScores> scores) {
  static_cast<const IndexOf<FlashIndex>&>(index).get().find_matches(queries, scores);
}

}  // namespace

std::vector<ConcurrentCase> concurrent_cases() {
  const IndexCase flash = index_case<FlashIndex>("FlashIndex");
  const IndexCase orphaning = conformance::with(
      index_case<FlashIndex>("FlashIndexOrphaning", FlashOptions{.mid_chain = MidChainRemoval::kOrphan}),
      MidChainRemoval::kOrphan);
  return {
      {flash, find_many_in_flash},
      {orphaning, find_many_in_flash},
      {index_case<LockedIndex<RadixTree>>("LockedRadixTree"), {}},
      {index_case<ConcurrentRadixTree>("ConcurrentRadixTree"), {}},
      {index_case<PositionalIndexer>("PositionalIndexer"), {}},
      {index_case<PositionalIndexer>("PositionalIndexerJump8",
                                     PositionalOptions{.jump_size = 8, .shards = 4}),
       {}},
      {in_thread_pool<FlashIndex>("FlashIndexInThreadPool"), {}},
      {in_thread_pool<ConcurrentRadixTree>("ConcurrentRadixTreeInThreadPool"), {}},
      {in_thread_pool<PositionalIndexer>("PositionalIndexerInThreadPool"), {}},
  };
}

}  // namespace ashlar::index::concurrent
