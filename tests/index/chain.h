// Chain: the blocks of one sequence with the names that an engine gives them, made from small numbers.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index::conformance {

struct Chain {
  std::vector<LocalHash> locals;
  std::vector<BlockName> names;

  std::size_t size() const noexcept { return locals.size(); }
  std::span<const LocalHash> first(std::size_t count) const { return std::span(locals).first(count); }
  std::vector<StoredBlock> blocks(std::size_t from, std::size_t count) const {
    std::vector<StoredBlock> blocks;
    for (std::size_t i = from; i < from + count; ++i) blocks.push_back({locals[i], names[i]});
    return blocks;
  }
  // The names from `from` on, the last one first: the order in which engines evict.
  std::vector<BlockName> names_from_the_end(std::size_t from, std::size_t count) const {
    const auto begin = names.begin() + static_cast<std::ptrdiff_t>(from);
    std::vector<BlockName> reversed(begin, begin + static_cast<std::ptrdiff_t>(count));
    std::ranges::reverse(reversed);
    return reversed;
  }
};

// Chains of different families share nothing.
inline void grow(Chain& chain, std::uint64_t family, std::size_t length) {
  for (std::size_t i = chain.size(); i < length; ++i) {
    Random random(family * 1'000'003 + i);
    chain.locals.emplace_back(random.next());
    chain.names.emplace_back(random.next());
  }
}

inline Chain chain_of(std::uint64_t family, std::size_t length) {
  Chain chain;
  grow(chain, family, length);
  return chain;
}

// The first `kept` blocks of the stem, then blocks of another family.
inline Chain branch_of(const Chain& stem, std::size_t kept, std::uint64_t family, std::size_t length) {
  Chain chain;
  chain.locals.assign(stem.locals.begin(), stem.locals.begin() + static_cast<std::ptrdiff_t>(kept));
  chain.names.assign(stem.names.begin(), stem.names.begin() + static_cast<std::ptrdiff_t>(kept));
  grow(chain, family, length);
  return chain;
}

// The same content under other names.
inline Chain renamed(Chain chain, std::uint64_t family) {
  for (std::size_t i = 0; i < chain.size(); ++i)
    chain.names[i] = BlockName(Random(family * 1'000'003 + i).next() + 1);
  return chain;
}

}  // namespace ashlar::index::conformance
