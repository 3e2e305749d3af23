// LineageBackend: evicts from the ends of sequences, so that the remaining blocks can be matched.
//
// A prefix match stops at the first missing block: a block whose predecessor is gone is dead weight. The
// backend therefore prefers LEAVES, registered blocks without a registered child. A child counts while it is
// registered, in use or not, so the ancestors of a block in use are kept too. If no inactive block is a leaf,
// the oldest parent goes: the preference is never a veto.
//
// Parent and child meet through a FAMILY: all registered blocks of one position whose chain hashes end in the
// fragment that their children carry, plus a count of the registered children that carry it. A family exists
// while it has either, so parent and child may register in any order, and the parent may never come.
// Fragments have 54, 46 or 38 bits: blocks that collide in them share a family and are kept, or become
// leaves, together; nothing else depends on it. Keyed names carry no fragment. Their parents come from the
// facts, and their families from 62 bits of position and digest; a keyed block without a known parent counts
// as the first of a sequence.
//
// Two orders:
//   kOldestChainFirst  By the tick of the last release or touch. A parent that becomes a leaf keeps its tick:
//                      of chains released one after another the earliest goes whole, tail to head, before the
//                      next is begun.
//   kRoundRobin        First come, first evicted, and so for parents as the last resort. A parent that
//                      becomes a leaf goes to the end: the chains lose a block each in turn.
// Blocks of one family that move together keep their registration order.
//
// Thread safety: confined; the store's lock also covers the facts it reads.
// Complexity:    O(log n) with kOldestChainFirst, O(1) with kRoundRobin, each times the blocks of a family,
//                which is 1 without collisions. peek() is O(k log k) for k victims. Nothing allocates after
//                construction but peek(). No recursion.
// Memory:        kBytesPerBlock; the facts keep another 24 bytes per block for parents.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "ashlar/base/result.h"
#include "ashlar/block/block_orders.h"
#include "ashlar/block/eviction.h"
#include "base/large_array.h"

namespace ashlar::block {

class LineageBackend {
 public:
  // Families have 32-bit numbers, and a block is in up to two.
  static constexpr std::uint32_t kMaxBlocks = (1u << 31) - 1;

  // Requires: context.block_count <= kMaxBlocks.
  explicit LineageBackend(const EvictionContext& context,
                          LineageOrder order = LineageOrder::kOldestChainFirst);
  // Errors: kInvalidArgument for a pool of more than kMaxBlocks.
  static Result<LineageBackend> create(const EvictionContext& context,
                                       LineageOrder order = LineageOrder::kOldestChainFirst);

  // A block already known under another name, or with another parent, starts a new life: the old one is
  // unregistered.
  void registered(BlockId id, const tokens::SequenceHash& hash);
  // No effect on an unknown block.
  void unregistered(BlockId id);

  void insert(BlockId id, const tokens::SequenceHash& hash);
  void remove(BlockId id);
  void touch(BlockId id);
  std::optional<BlockId> pop();
  std::size_t peek(std::span<BlockId> out) const;
  std::size_t size() const noexcept { return by_tick_.size() + by_turn_.size(); }

 private:
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;
  static constexpr std::uint64_t kNoKey = 0;  // of no family: a child's position is never 0
  static constexpr std::size_t kFamiliesPerBlock = 2;
  static constexpr std::size_t kSlotsPerBlock = 3;
  // On top of a tick: the block is not a leaf.
  static constexpr std::uint64_t kParentBit = std::uint64_t{1} << 63;
  // Lists of by_turn_.
  static constexpr std::uint32_t kLeaves = 0;
  static constexpr std::uint32_t kParents = 1;

  enum class Place : std::uint8_t { kUnknown, kInUse, kLeaf, kParent };

  struct Member {
    std::uint32_t below = kNone;  // the family of its children
    std::uint32_t above = kNone;  // the family in which it is a child
    std::uint32_t prev = kNone;   // the ring of the blocks of `below`
    std::uint32_t next = kNone;
    Place place = Place::kUnknown;
  };
  struct Family {
    std::uint64_t key = kNoKey;
    std::uint32_t children = 0;   // registered
    std::uint32_t first = kNone;  // of the ring; of a free family the next free one
  };
  struct Keys {
    std::uint64_t below;
    std::uint64_t above;
  };
  class Forecast;

 public:
  // Upper bound, per block of the pool: membership, two families, their index, and the order.
  static constexpr std::size_t kBytesPerBlock =
      sizeof(Member) + kFamiliesPerBlock * sizeof(Family) + kSlotsPerBlock * sizeof(std::uint32_t) +
      std::max(IndexedHeap<std::uint64_t>::kBytesPerBlock, IntrusiveLists::kBytesPerBlock);

 private:
  Keys keys_of(BlockId id, const tokens::SequenceHash& hash) const noexcept;
  // The block is registered by these keys, and in use.
  void announce(BlockId id, const Keys& keys);
  // Removes every trace of the block; its parents may become leaves.
  void forget(BlockId id);

  // ---- families

  std::size_t home(std::uint64_t key) const noexcept;
  // The family of the key, created if missing; kNone for kNoKey.
  std::uint32_t family_of(std::uint64_t key);
  std::uint64_t key_of(std::uint32_t family) const noexcept;
  void drop_if_empty(std::uint32_t family);
  void link(std::uint32_t id);
  void unlink(std::uint32_t id);
  // Turns all inactive blocks of the family into parents, or leaves.
  void move_all(std::uint32_t family, Place to);

  // ---- the order

  bool is_inactive(BlockId id) const noexcept;
  void enter(BlockId id);
  void leave(BlockId id);

  LineageOrder order_;
  std::shared_ptr<BlockFacts> facts_;
  LargeArray<Member> members_;
  LargeArray<Family> families_;
  LargeArray<std::uint32_t> slots_;  // open addressing: family numbers, kNone where empty
  std::uint32_t free_ = kNone;       // the first free family
  std::uint32_t fresh_ = 0;          // families from here on were never used
  std::uint64_t tick_ = 0;
  IndexedHeap<std::uint64_t> by_tick_;  // kOldestChainFirst: leaves, then parents
  IntrusiveLists by_turn_;              // kRoundRobin: a list of leaves, a list of parents
};
static_assert(EvictionBackend<LineageBackend> && FollowsRegistrations<LineageBackend>);

}  // namespace ashlar::block
