// RetentionBackend: evicts by a retention priority that fades with time and that only a share of the pool may
// claim.
//
//   order     the effective priority, lowest first; at the same priority, with never_hit_first, blocks that
//             no match has found before those that one has; then the block released or touched longest ago
//   time      a block has the priority of its retention up to its `until`. From then on its distance to the
//             default priority is halved, rounding towards the default, after every half_life, until nothing
//             is left: priority 99 over a default of 35 goes 67, 51, 43, 39, 37, 36, 35. With a half_life of
//             zero it is the default at `until`.
//   cap       at most retained_share of the pool's blocks are here with more than the default priority. When
//             one more comes, the first of them in the order above is demoted: it has the default priority
//             from then on.
//   facts     retention and hits are those known when the block was inserted or last touched; a touch also
//             lifts a demotion, as if the block had just come
//
// Everything here is a preference: pop() yields a victim while any block is left, whatever its priority.
//
// Changes that are due by the clock happen at the start of insert(), touch(), pop() and peek(). So peek()
// predicts the pops of the same moment; it is const because the order at that moment does not depend on
// earlier calls.
//
// Memory: kBytesPerBlock per block of the pool. Facts: retention; hits with never_hit_first.
//
// Thread safety: confined; peek() counts as a change.
// Complexity:    O(log n), and O(log n) for each change that time makes, at most seven in the stay of one
//                block; peek() at k blocks O(k log k), and it allocates. The clock is read only while
//                something here can still fade.
// Invariant:     a block is in exactly one of normal_ and retained_, and in fading_ as long as time will
//                change it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "ashlar/base/clock.h"
#include "ashlar/base/result.h"
#include "ashlar/block/block_orders.h"
#include "ashlar/block/block_retention.h"
#include "ashlar/block/eviction.h"

namespace ashlar::block {

class RetentionBackend {
 public:
  static constexpr std::size_t kBytesPerBlock =
      2 * IndexedHeap<std::uint64_t>::kBytesPerBlock + IndexedHeap<Clock::TimePoint>::kBytesPerBlock;

  // Errors: those of the options.
  static Result<RetentionBackend> create(const EvictionContext& context,
                                         const RetentionOptions& options = {});

  void insert(BlockId id, const tokens::SequenceHash&);
  void remove(BlockId id);
  void touch(BlockId id);
  std::optional<BlockId> pop();
  std::size_t peek(std::span<BlockId> out) const;
  std::size_t size() const { return normal_.size() + retained_.size(); }

 private:
  // Ascending in the order of eviction: priority, hit, tick, from the high bits down.
  using Key = std::uint64_t;
  // Distance of a block above or below the default priority, and when it is next halved; kForever: never.
  struct Worth {
    int distance;
    Clock::TimePoint fades;
  };

  RetentionBackend(const EvictionContext& context, const RetentionOptions& options);

  Worth worth_of(BlockId id) const;
  // The worth at a later moment.
  Worth faded(Worth worth, Clock::TimePoint now) const noexcept;
  // `rest` has the bits below the priority.
  Key key_at(int distance, Key rest) const noexcept;
  // Requires: the block is in no heap, and catch_up() ran.
  void place(BlockId id);
  // Applies the changes that are due.
  void catch_up() const;

  RetentionOptions options_;
  std::size_t cap_;
  Clock* clock_;
  std::shared_ptr<BlockFacts> facts_;
  std::uint64_t tick_ = 0;
  // Mutable, because peek() calls catch_up().
  mutable IndexedHeap<Key> normal_;               // up to the default priority; all evicted before retained_
  mutable IndexedHeap<Key> retained_;             // above it; at most cap_ between calls
  mutable IndexedHeap<Clock::TimePoint> fading_;  // by the moment of the next change
};
static_assert(EvictionBackend<RetentionBackend>);

}  // namespace ashlar::block
