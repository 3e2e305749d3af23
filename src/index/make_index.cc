#include "ashlar/index/make_index.h"

#include <algorithm>
#include <concepts>
#include <new>
#include <utility>

#include "ashlar/index/flash_index.h"
#include "ashlar/index/locked_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/thread_pool_indexer.h"

namespace ashlar::index {

namespace {

ThreadPoolOptions pool_options(const IndexOptions& options) {
  return {.threads = options.threads, .queue_capacity = options.queue_capacity};
}

// Standalone as Single, in a pool as Shared; they differ if the structure is single-threaded.
template <Indexer Single, Indexer Shared = Single, class... Args>
Result<std::unique_ptr<AnyIndex>> make(const IndexOptions& options, Args&&... args) {
  if (options.threads == 0)
    return std::unique_ptr<AnyIndex>(new IndexOf<Single>(options.kind, std::forward<Args>(args)...));
  using Pool = ThreadPoolIndexer<Shared>;
  ASHLAR_TRY(auto pool, Pool::create(pool_options(options), std::forward<Args>(args)...));
  const std::string pool_name = options.kind + " on " + std::to_string(options.threads) +
                                (options.threads == 1 ? " thread" : " threads");
  return std::unique_ptr<AnyIndex>(new IndexOf<Pool>(pool_name, std::move(pool)));
}

Result<std::unique_ptr<AnyIndex>> make_any(const IndexOptions& options) {
  if (options.kind == "radix_tree") return make<RadixTree, LockedIndex<RadixTree>>(options);
  if (options.kind == "concurrent_radix_tree") return make<ConcurrentRadixTree>(options);
  if (options.kind == "positional") {
    PositionalOptions positional;
    positional.jump_size = options.jump_size;
    ASHLAR_TRY(PositionalIndexer index, PositionalIndexer::create(positional));
    return make<PositionalIndexer>(options, std::move(index));
  }
  return make<FlashIndex>(
      options, FlashOptions{.mid_chain = options.mid_chain, .expected_blocks = options.expected_blocks});
}

}  // namespace

Result<void> IndexOptions::validate() const {
  if (std::ranges::find(kIndexKinds, kind) == kIndexKinds.end()) {
    std::string known;
    for (const std::string_view one : kIndexKinds) known.append(known.empty() ? "" : ", ").append(one);
    return make_error(ErrorCode::kInvalidArgument, "there is no index of kind \"%s\"; there are %s",
                      kind.c_str(), known.c_str());
  }
  if (mid_chain != MidChainRemoval::kRetain && mid_chain != MidChainRemoval::kOrphan) {
    return make_error(ErrorCode::kInvalidArgument, "mid_chain is %d; it must be retain (0) or orphan (1)",
                      static_cast<int>(mid_chain));
  }
  if (mid_chain == MidChainRemoval::kOrphan && kind != "flash") {
    return make_error(ErrorCode::kInvalidArgument,
                      "mid_chain is orphan, but an index of kind \"%s\" only retains; use flash or retain",
                      kind.c_str());
  }
  if (kind == "positional" && jump_size == 0) {
    return make_error(ErrorCode::kInvalidArgument, "jump_size is 0; it must be 1 or more");
  }
  return threads == 0 ? Result<void>() : pool_options(*this).validate();
}

Result<std::unique_ptr<AnyIndex>> make_index(const IndexOptions& options) {
  ASHLAR_RETURN_IF_ERROR(options.validate());
  try {
    return make_any(options);
  } catch (const std::bad_alloc&) {
    return Error(ErrorCode::kCapacity, "out of memory");
  }
}

}  // namespace ashlar::index
