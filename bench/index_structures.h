// index_structures: the indexes of Ashlar by name, for programs that measure all of them.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "ashlar/index/flash_index.h"
#include "ashlar/index/positional_indexer.h"
#include "ashlar/index/radix_tree.h"
#include "ashlar/index/thread_pool_indexer.h"

namespace ashlar::bench {

inline constexpr std::string_view kIndexStructures[] = {"radix_tree",    "concurrent_radix_tree",
                                                        "positional",    "positional_32",
                                                        "positional_64", "flash",
                                                        "flash_pool",    "flash_sized"};
inline constexpr std::uint32_t kJumpSize = 8;  // of the positional index, unless its name has another

// Calls use(make), where make() returns a unique_ptr to a new index of that name. False when there is none.
// `expected` is the number of blocks that a sized one is made for.
template <class Use>
bool with_structure(std::string_view name, Use&& use, std::size_t expected = 0) {
  if (name == "radix_tree") {
    use([] { return std::make_unique<index::RadixTree>(); });
  } else if (name == "concurrent_radix_tree") {
    use([] { return std::make_unique<index::ConcurrentRadixTree>(); });
  } else if (name.starts_with("positional")) {
    const std::uint32_t jump = name == "positional" ? kJumpSize : name == "positional_32" ? 32 : 64;
    use([jump] {
      return std::make_unique<index::PositionalIndexer>(
          index::PositionalIndexer::create({.jump_size = jump}).value());
    });
  } else if (name == "flash") {
    use([] { return std::make_unique<index::FlashIndex>(); });
  } else if (name == "flash_sized") {
    use([expected] {
      return std::make_unique<index::FlashIndex>(index::FlashOptions{.expected_blocks = expected});
    });
  } else if (name == "flash_pool") {  // the same behind a queue and a thread of its own
    using Pool = index::ThreadPoolIndexer<index::FlashIndex>;
    use([] { return std::make_unique<Pool>(Pool::create({.threads = 1}).value()); });
  } else {
    return false;
  }
  return true;
}

// Whether queries may run beside a writer.
inline bool is_concurrent(std::string_view name) {
  return name != "radix_tree";
}

}  // namespace ashlar::bench
