// ReusePolicy: the order in which a HashMapBackend gives its blocks up.
//
// insert() and remove() as the backend's; next() takes the block to reuse first; peek() looks at the next
// ones. A policy with a touch(id) hears of touches; without one they change nothing. A policy is made from
// the EvictionContext, or brought ready. Those of the library: FifoReuse, LifoReuse, LruReuse, PriorityReuse.
//
// Thread safety: confined.
#pragma once

#include <concepts>
#include <cstddef>
#include <optional>
#include <span>

#include "ashlar/block/block_id.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::block {

template <class P>
concept ReusePolicy =
    requires(P policy, const P& view, BlockId id, const tokens::SequenceHash& hash, std::span<BlockId> out) {
      { policy.insert(id, hash) } -> std::same_as<void>;
      { policy.remove(id) } -> std::same_as<void>;
      { policy.next() } -> std::same_as<std::optional<BlockId>>;
      { view.peek(out) } -> std::same_as<std::size_t>;
      { view.size() } -> std::same_as<std::size_t>;
    };

}  // namespace ashlar::block
