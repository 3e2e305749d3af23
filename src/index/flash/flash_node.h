// Node and OwnerSet: the memory that readers of a FlashIndex traverse.
//
// A node is a run of up to 64 consecutive blocks of a sequence: their local hashes side by side, then their
// names. One 64-bit mask per (worker slot, tier) records which blocks the worker holds. A node with one
// holder, in the device tier, has slot and mask inline; else an OwnerSet holds them.
//
// Changes that readers may see:
//   length      grows only; hashes below it never change. A node with children, or with 64 blocks, is closed:
//               its length is final.
//   masks       one atomic word each: a reader sees all blocks of a worker as of the instant of the load.
//   any tier    where lower tiers are in use, the union of a worker's masks is a word of its own: a block
//               that moves from tier to tier is never missed between two loads.
//   listed      per slot: the worker holds some block, in any tier. Written after the masks.
//   full        per slot of a closed node: the worker holds all its blocks on the device. Set after the mask,
//               cleared before it, so a set bit means that the mask was complete at that instant.
//   owners      replaced by a larger set; the old one stays as it was until readers have left it.
//   child       none, one, or many (then the children are in the EdgeTable under the node's id).
// All other changes build a new node, link it in place of the old one and retire the old one: a reader still
// in the old node sees the state at its replacement, which is after the reader entered.
//
// Thread safety: as said above; members without std::atomic belong to the writer or never change.
#pragma once

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "ashlar/events/tier.h"
#include "base/slab_pool.h"

namespace ashlar::index::detail {

using Mask = std::uint64_t;  // bit i: block i of a node

inline constexpr std::uint32_t kNodeBlocks = 64;
inline constexpr std::uint32_t kBlocksPerLine = 8;  // hashes, or names
inline constexpr std::uint32_t kNoNode = 0;         // ids start at 1, which is the root
inline constexpr std::uint32_t kRootId = 1;
inline constexpr std::uint32_t kMaxNodes = std::uint32_t{1} << 26;
inline constexpr std::uint32_t kMaxSlots = 0xFFFF;
inline constexpr std::uint16_t kNoSlot = 0xFFFF;

// The lowest n bits. Requires: n <= 64.
constexpr Mask low_bits(std::uint32_t n) noexcept {
  return n >= 64 ? ~Mask{0} : (Mask{1} << n) - 1;
}
constexpr Mask bit_at(std::uint32_t i) noexcept {
  return Mask{1} << i;
}

// A block as referenced by the name tables.
class BlockRef {
 public:
  BlockRef() = default;
  BlockRef(std::uint32_t node, std::uint32_t offset) noexcept : word_(node << 6 | offset) {}
  explicit BlockRef(std::uint32_t word) noexcept : word_(word) {}
  std::uint32_t node() const noexcept { return word_ >> 6; }
  std::uint32_t offset() const noexcept { return word_ & 63; }
  std::uint32_t word() const noexcept { return word_; }
  friend bool operator==(BlockRef, BlockRef) = default;

 private:
  std::uint32_t word_ = 0;
};

// The holders of a node's blocks. Entries are appended, never moved; an entry whose masks are zero holds
// nothing. It starts a cache line, and that line has the fields most queries need.
struct alignas(32) OwnerSet {
  std::uint64_t birth = 0;
  std::uint32_t capacity = 0;
  std::uint32_t words = 0;  // of `full` and `listed`; 0 in small sets
  std::uint32_t bytes = 0;
  std::atomic<std::uint32_t> count{0};
  bool lower = false;  // has masks for the lower tiers

  static constexpr std::size_t kAlignment = 64;

  // A bit per slot: the worker holds all blocks of a closed node on the device; the worker holds any block.
  std::atomic<std::uint64_t>* full() noexcept {
    return reinterpret_cast<std::atomic<std::uint64_t>*>(this + 1);
  }
  const std::atomic<std::uint64_t>* full() const noexcept {
    return reinterpret_cast<const std::atomic<std::uint64_t>*>(this + 1);
  }
  std::atomic<std::uint64_t>* listed() noexcept { return full() + words; }
  const std::atomic<std::uint64_t>* listed() const noexcept { return full() + words; }
  // Masks of one tier; for kAnyTier their union. Requires: lower, except for the first tier.
  std::atomic<Mask>* masks(std::size_t tier) noexcept { return listed() + words + tier * capacity; }
  const std::atomic<Mask>* masks(std::size_t tier) const noexcept {
    return listed() + words + tier * capacity;
  }
  std::uint32_t* slots() noexcept { return reinterpret_cast<std::uint32_t*>(masks(arrays())); }
  const std::uint32_t* slots() const noexcept {
    return reinterpret_cast<const std::uint32_t*>(masks(arrays()));
  }
  // Index of the slot among the first `entries`, or `entries`. Written for vectorization.
  std::uint32_t index_of(std::uint32_t slot, std::uint32_t entries) const noexcept {
    constexpr std::uint32_t kStep = 16;
    const std::uint32_t* const all = slots();
    std::uint32_t i = 0;
    for (; i + kStep <= entries; i += kStep) {
      std::uint32_t found = 0;
      for (std::uint32_t k = 0; k < kStep; ++k) found |= static_cast<std::uint32_t>(all[i + k] == slot);
      if (found != 0) break;
    }
    while (i < entries && all[i] != slot) ++i;
    return i;
  }
  std::size_t tiers() const noexcept { return lower ? events::kStorageTiers : 1; }
  std::size_t arrays() const noexcept { return lower ? events::kStorageTiers + 1 : 1; }
  static constexpr std::size_t kAnyTier = events::kStorageTiers;

  static std::size_t bytes_for(std::uint32_t capacity, std::uint32_t words, bool lower) noexcept {
    const std::size_t arrays = lower ? events::kStorageTiers + 1 : 1;
    const std::size_t bytes =
        sizeof(OwnerSet) + 8 * (std::size_t{2} * words + arrays * capacity) + std::size_t{4} * capacity;
    return (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
};

// Layout of a slab of nodes (node_arena.h): header, nodes with their hashes, names.
struct SlabShape {
  std::uint32_t nodes = 0;
  std::uint32_t stride = 0;      // bytes from node to node
  std::uint32_t names = 0;       // where the names begin
  std::uint64_t reciprocal = 0;  // of the stride, times 2^32, rounded up: exact for offsets within a slab
};
inline constexpr std::array<SlabShape, 8> kSlabShapes = [] {
  std::array<SlabShape, 8> shapes{};
  for (std::uint32_t shape = 3; shape <= 6; ++shape) {
    const std::uint32_t stride = 64 + (8u << shape);
    const auto nodes = static_cast<std::uint32_t>((kSlabBytes - kSlabHeader) / (stride + (8u << shape)));
    shapes[shape] = {nodes, stride, static_cast<std::uint32_t>(kSlabHeader + std::size_t{nodes} * stride),
                     ((std::uint64_t{1} << 32) + stride - 1) / stride};
  }
  return shapes;
}();

struct alignas(64) Node {
  static constexpr std::uint64_t kNoChild = 0;
  static constexpr std::uint64_t kManyChildren = 1;

  std::atomic<std::uint64_t> child{kNoChild};  // or the address of the only child
  std::atomic<OwnerSet*> owners{nullptr};      // null: the first owner is the only one
  std::atomic<Mask> first_mask{0};             // of first_slot, in the device tier
  Mask named = 0;                              // blocks whose name is in the name table
  std::atomic<std::uint8_t> length{0};
  std::uint8_t shape = 0;  // log2 of the capacity, and the flags below
  std::uint16_t first_slot = kNoSlot;
  std::uint32_t id = kNoNode;
  std::uint32_t parent = kNoNode;
  std::uint32_t first_child = kNoNode;
  std::uint32_t next = kNoNode;  // siblings
  std::uint32_t previous = kNoNode;
  std::uint32_t birth = 0;  // low bits of the era
  std::uint32_t position = 0;

  static constexpr std::uint8_t kClosed = 0x80;
  static constexpr std::uint8_t kAliased = 0x40;  // some block has, or had, another name

  std::uint32_t capacity() const noexcept { return 1u << (shape & 7); }
  bool closed() const noexcept { return (shape & kClosed) != 0; }
  bool aliased() const noexcept { return (shape & kAliased) != 0; }
  std::uint64_t* hashes() noexcept { return reinterpret_cast<std::uint64_t*>(this + 1); }
  const std::uint64_t* hashes() const noexcept { return reinterpret_cast<const std::uint64_t*>(this + 1); }
  // Names lie behind all nodes of the slab: readers do not need them.
  std::uint64_t* names() noexcept {
    const SlabShape& slab = kSlabShapes[shape & 7];
    const std::uintptr_t address = reinterpret_cast<std::uintptr_t>(this);
    const std::uintptr_t base = address & ~(kSlabBytes - 1);
    const std::uintptr_t number = (address - base - kSlabHeader) * slab.reciprocal >> 32;
    return reinterpret_cast<std::uint64_t*>(base + slab.names + number * 8 * capacity());
  }
  std::size_t bytes() const noexcept { return sizeof(Node) + std::size_t{16} * capacity(); }
  // The writer's view of fields that only it changes.
  std::uint32_t size() const noexcept { return length.load(std::memory_order_relaxed); }
  OwnerSet* set() const noexcept { return owners.load(std::memory_order_relaxed); }
};

static_assert(sizeof(Node) == 64);

}  // namespace ashlar::index::detail
