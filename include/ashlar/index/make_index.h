// make_index(): an index by the name of its structure, for programs that choose at run time. docs/index.md
// says which to choose.
//
// Thread safety: thread-safe. The index made has that of its structure; inside a thread pool every one is
// thread-safe.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"
#include "ashlar/index/any_index.h"
#include "ashlar/index/mid_chain_removal.h"

namespace ashlar::index {

inline constexpr std::array<std::string_view, 4> kIndexKinds = {"flash", "positional",
                                                                "concurrent_radix_tree", "radix_tree"};

struct IndexOptions {
  std::string kind = "flash";  // one of kIndexKinds
  // Of a positional index: positions from one look-up of a query to the next. Others do not use it.
  std::uint32_t jump_size = 32;
  // Above 0 the index stands in a ThreadPoolIndexer of so many threads, and answers stores before they are
  // applied.
  std::size_t threads = 0;
  // Of the pool: blocks and names that may wait for one thread.
  std::size_t queue_capacity = std::size_t{1} << 16;
  // kOrphan is for a flash index alone.
  MidChainRemoval mid_chain = MidChainRemoval::kRetain;

  // Errors: kInvalidArgument, with the value and what is allowed.
  Result<void> validate() const;
};

// Errors: those of validate(); kCapacity when the system gives no thread or no memory.
Result<std::unique_ptr<AnyIndex>> make_index(const IndexOptions& options);

}  // namespace ashlar::index
