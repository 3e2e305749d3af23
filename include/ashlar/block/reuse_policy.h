// ReusePolicy: the order in which a HashMapBackend evicts its blocks. FifoReuse, LifoReuse, LruReuse and
// PriorityReuse are the library's; a user-defined class that models the concept works in the same places.
//
//   BlockManager<G1>::builder().with_hashmap_backend<MyPolicy>()
//
// insert() and remove() are the backend's; next() takes the block to reuse first; peek() shows the next ones
// without a change. A policy with a touch(id) hears of touches; without one they have no effect. A policy is
// constructed from the EvictionContext. examples/lower_tier_first.h is a user-defined one.
//
// Thread safety: confined; the store calls a policy under its own lock.
// Complexity:    Fifo, Lifo and Lru O(1), O(ids written) for peek(); PriorityReuse O(log n), and its peek()
//                at k blocks O(k log k) with an allocation. Memory: kBytesPerBlock per block of the pool.
#pragma once

#include <compare>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>

#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

// insert(): the block is not in the policy; remove(), touch(): it is. next(): removes and returns the block
// to reuse; nullopt only when the policy is empty. peek() writes the next blocks in order and returns their
// number.
template <class P>
concept ReusePolicy =
    requires(P policy, const P& view, BlockId id, const tokens::SequenceHash& hash, std::span<BlockId> out) {
      { policy.insert(id, hash) } -> std::same_as<void>;
      { policy.remove(id) } -> std::same_as<void>;
      { policy.next() } -> std::same_as<std::optional<BlockId>>;
      { view.peek(out) } -> std::same_as<std::size_t>;
      { view.size() } -> std::same_as<std::size_t>;
    };

// The orders that one list keeps; FifoReuse, LifoReuse and LruReuse name them. Asks for no facts.
template <ReuseOrder kOrder>
  requires(kOrder != ReuseOrder::kPriority)
class ListReuse {
 public:
  static constexpr std::size_t kBytesPerBlock = IntrusiveOrder::kBytesPerBlock;

  explicit ListReuse(const EvictionContext& context) : order_(context.block_count) {}

  void insert(BlockId id) {
    if constexpr (kOrder == ReuseOrder::kLifo) {
      order_.push_front(id);
    } else {
      order_.push_back(id);
    }
  }
  void insert(BlockId id, const tokens::SequenceHash&) { insert(id); }
  void remove(BlockId id) { order_.remove(id); }
  void touch(BlockId id)
    requires(kOrder == ReuseOrder::kLru)
  {
    order_.remove(id);
    order_.push_back(id);
  }
  std::optional<BlockId> next() { return order_.pop_front(); }
  std::size_t peek(std::span<BlockId> out) const { return order_.peek(out); }
  std::size_t size() const { return order_.size(); }

 private:
  IntrusiveOrder order_;
};
// The block released first is reused first; a touch changes nothing.
using FifoReuse = ListReuse<ReuseOrder::kFifo>;
// The block released last is reused first; a touch changes nothing.
using LifoReuse = ListReuse<ReuseOrder::kLifo>;
// The block released or touched longest ago is reused first.
using LruReuse = ListReuse<ReuseOrder::kLru>;
static_assert(ReusePolicy<FifoReuse> && ReusePolicy<LifoReuse> && ReusePolicy<LruReuse>);

// What PriorityReuse orders by, lowest first.
struct PriorityKey {
  std::uint8_t priority = BlockRetention::kDefaultPriority;
  std::uint64_t returned = 0;  // tick of the last release or touch
  std::uint64_t acquired = 0;  // tick of the last allocation or revival (BlockFacts)

  friend auto operator<=>(const PriorityKey&, const PriorityKey&) = default;
};

// The block of the lowest priority is reused first, of equals the one released longest ago.
//
// The priority is that of the block's retention when it is released or touched,
// BlockRetention::kDefaultPriority for a block without one. It then stays, whatever time the retention names;
// the retention backend has priorities that fade. A touch counts as a release. Releases are numbered one by
// one, so that the end of a sequence goes before its head; the tick of acquisition, last in the order, would
// break a tie. Facts: retention, acquisition.
class PriorityReuse {
 public:
  static constexpr std::size_t kBytesPerBlock = IndexedHeap<PriorityKey>::kBytesPerBlock;

  // Requests its facts: the context must belong to a manager under construction.
  explicit PriorityReuse(const EvictionContext& context) : heap_(context.block_count), facts_(context.facts) {
    facts_->keep_retentions();
    facts_->keep_acquisitions();
  }

  void insert(BlockId id, const tokens::SequenceHash&) { heap_.push(id, next_key(id)); }
  void remove(BlockId id) { heap_.remove(id); }
  void touch(BlockId id) { heap_.update(id, next_key(id)); }
  std::optional<BlockId> next() { return heap_.pop(); }
  std::size_t peek(std::span<BlockId> out) const { return heap_.peek(out); }
  std::size_t size() const { return heap_.size(); }

 private:
  PriorityKey next_key(BlockId id) {
    return {facts_->retention(id).value_or(BlockRetention{}).priority, ++tick_, facts_->acquired(id)};
  }

  IndexedHeap<PriorityKey> heap_;
  std::shared_ptr<BlockFacts> facts_;
  std::uint64_t tick_ = 0;
};
static_assert(ReusePolicy<PriorityReuse>);

// Evicts inactive blocks, found by hash, in the order of a reuse policy. The hash map is the store's own
// index, which finds active and inactive blocks alike; only the order is left to the policy. Memory, facts
// and complexity are the policy's.
template <ReusePolicy Policy>
class HashMapBackend {
 public:
  static constexpr std::size_t kBytesPerBlock = Policy::kBytesPerBlock;  // if the policy defines it

  // Constructs Policy(context, args...).
  template <class... Args>
  explicit HashMapBackend(const EvictionContext& context, Args&&... args)
      : policy_(context, std::forward<Args>(args)...) {}
  // Takes an existing policy.
  explicit HashMapBackend(Policy policy) : policy_(std::move(policy)) {}

  // For policies that ignore hashes: spares the store the look-up.
  void insert(BlockId id)
    requires requires(Policy policy) { policy.insert(id); }
  {
    policy_.insert(id);
  }
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
static_assert(EvictionBackend<HashMapBackend<LifoReuse>>);
static_assert(EvictionBackend<HashMapBackend<LruReuse>>);
static_assert(EvictionBackend<HashMapBackend<PriorityReuse>>);

}  // namespace ashlar::block
