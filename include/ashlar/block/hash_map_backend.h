// HashMapBackend: inactive blocks found by hash and evicted in the order of a reuse policy.
//
// The hash map is the store's own index, which finds active and inactive blocks alike; what is left to choose is the
// order, and that is the policy.
#pragma once

#include <concepts>
#include <utility>

#include "ashlar/block/eviction.h"
#include "ashlar/block/intrusive_order.h"

namespace ashlar::block {

// insert() and remove() as the backend's; next() takes the block to reuse first; peek() looks at the next ones.
template <class P>
concept ReusePolicy =
    requires(P policy, const P& view, BlockId id, const tokens::SequenceHash& hash, std::span<BlockId> out) {
      { policy.insert(id, hash) } -> std::same_as<void>;
      { policy.remove(id) } -> std::same_as<void>;
      { policy.next() } -> std::same_as<std::optional<BlockId>>;
      { view.peek(out) } -> std::same_as<std::size_t>;
      { view.size() } -> std::same_as<std::size_t>;
    };

// First released, first reused; a touch changes nothing. Memory: 8 bytes per block. Complexity: O(1).
class FifoReuse {
 public:
  explicit FifoReuse(const EvictionContext& context) : order_(context.block_count) {}

  void insert(BlockId id, const tokens::SequenceHash&) { order_.push_back(id); }
  void remove(BlockId id) { order_.remove(id); }
  std::optional<BlockId> next() { return order_.pop_front(); }
  std::size_t peek(std::span<BlockId> out) const { return order_.peek(out); }
  std::size_t size() const { return order_.size(); }

 private:
  IntrusiveOrder order_;
};
static_assert(ReusePolicy<FifoReuse>);

template <ReusePolicy Policy>
class HashMapBackend {
 public:
  explicit HashMapBackend(const EvictionContext& context) : policy_(context) {}
  explicit HashMapBackend(Policy policy) : policy_(std::move(policy)) {}

  void insert(BlockId id, const tokens::SequenceHash& hash) { policy_.insert(id, hash); }
  void remove(BlockId id) { policy_.remove(id); }
  void touch(BlockId id) {
    if constexpr (requires { policy_.touch(id); }) policy_.touch(id);
  }
  std::optional<BlockId> pop() { return policy_.next(); }
  std::size_t peek(std::span<BlockId> out) const { return policy_.peek(out); }
  std::size_t size() const { return policy_.size(); }

 private:
  Policy policy_;
};
static_assert(EvictionBackend<HashMapBackend<FifoReuse>>);

}  // namespace ashlar::block
