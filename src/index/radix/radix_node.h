// RadixNode: a run of up to 64 consecutive blocks in a radix tree, the workers that hold them, and the runs
// that continue it. This is one node as data; basic_radix_tree.h has the tree and its locking.
//
//   edge:  a b c d e f     Children hang at an offset of the edge and are found by (offset, local hash):
//              |       |     [c', ...] at 2 continues b,
//              c'      g     [g, ...] at 6 continues f.
//
// A run that diverges in the middle of an edge becomes a child at that offset; the edge is not split. So a
// block keeps its place, (node, offset), as long as any worker holds it, and names can refer to places.
//
// A worker's presence in a node is one mask per tier. full() has the workers whose device mask covers the
// edge: a query passing through keeps those of its workers, word by word. Without memory full() may lack
// some: queries check the masks of those.
//
// Blocks at the end of the edge without holders and children are cut off; those in the middle stay as path.
// An edge is never shorter than one block, so a doomed node can still be found and reused.
//
// The constructor, link(), extend() and add() throw std::bad_alloc with nothing changed. The rest needs no
// memory.
//
// Thread safety: thread-compatible; in a shared tree `lock` guards everything but parent(), start(),
//                attached() and key(), which never change.
// Complexity:    add() and take() are O(log owners) while the set of owners is unchanged; take() examines
//                other owners until it has found the taken blocks held, and all of them when the end of the
//                edge is cut off. link(), unlink() and child() are O(1) expected, except when the table of
//                children doubles or halves.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"
#include "base/entry_map.h"
#include "index/common/rw_lock.h"
#include "index/radix/radix_owners.h"
#include "index/radix/radix_tally.h"
#include "index/radix/slot_set.h"

namespace ashlar::index {

class alignas(64) RadixNode {
 public:
  static constexpr std::uint32_t kMaxLength = 64;

  // The root: no blocks, and children at offset 0.
  RadixNode() = default;
  // A run of the first blocks, at most kMaxLength, that continues `parent` at an offset. It is not linked
  // yet.
  RadixNode(RadixNode* parent, std::uint32_t attached, std::span<const StoredBlock> blocks,
            RadixTally& tally);
  RadixNode(const RadixNode&) = delete;
  RadixNode& operator=(const RadixNode&) = delete;
  ~RadixNode() = default;

  // Bits of `count` blocks from an offset on. Requires: count > 0.
  static std::uint64_t bits(std::uint32_t from, std::uint32_t count) noexcept {
    return (~std::uint64_t{0} >> (kMaxLength - count)) << from;
  }

  RadixNode* parent() const noexcept { return parent_; }
  // Position of the first block in its sequence.
  std::uint32_t start() const noexcept { return start_; }
  // Offset in the parent at which this node is attached.
  std::uint32_t attached() const noexcept { return attached_; }

  std::uint32_t length() const noexcept { return length_; }
  LocalHash local(std::uint32_t offset) const noexcept { return LocalHash(edge_[offset]); }
  // How many of the blocks match the edge from an offset on.
  std::uint32_t match(std::uint32_t from, std::span<const StoredBlock> blocks) const noexcept;
  // How many of the local hashes match the edge from its start.
  std::uint32_t match(std::span<const LocalHash> locals) const noexcept;

  RadixNode* child(std::uint32_t offset, LocalHash local) const noexcept {
    if (only_.node != nullptr && only_.local == local.value() && only_.offset == offset) return only_.node;
    if (children_ == nullptr) return nullptr;
    const Child* found = children_->table.find({local.value(), offset});
    return found == nullptr ? nullptr : found->node;
  }
  bool has_children() const noexcept { return only_.node != nullptr || children_ != nullptr; }
  template <class F>
  void for_each_child(F&& fn) const {
    if (only_.node != nullptr) fn(*only_.node);
    if (children_ != nullptr) children_->table.for_each([&](const Child& child) { fn(*child.node); });
  }
  // Links a child constructed for this node.
  void link(RadixNode* child, RadixTally& tally);
  void unlink(RadixNode* child, RadixTally& tally) noexcept;
  // Frees all nodes below this one, at any depth; they are still linked.
  void free_below() const noexcept;

  // Whether blocks can be appended at this offset: it is the end, and there is room.
  bool extends_at(std::uint32_t offset) const noexcept {
    return offset == length_ && length_ < kMaxLength && parent_ != nullptr;
  }
  // Appends the first blocks to the edge, as many as there is room for. Returns how many. Requires:
  // extends_at(length()), and no child continues there with the first block.
  std::uint32_t extend(std::span<const StoredBlock> blocks, RadixTally& tally);
  // Cuts off the blocks at the end without holders and children.
  void cut_end(RadixTally& tally) noexcept;

  const RadixOwners& owners() const noexcept { return owners_; }
  const SlotSet& full() const noexcept { return full_; }

  // Adds blocks to the slot's worker. Returns those it held in that tier before.
  std::uint64_t add(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally);
  // Removes blocks of the slot's worker in that tier. Requires: it holds them there.
  void take(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally) noexcept;
  // Removes all blocks of the slot's worker, in all tiers.
  void take_all(std::uint32_t slot, RadixTally& tally) noexcept;

  // No block has a holder and no child is attached.
  bool vacant() const noexcept { return owners_.empty() && !has_children(); }
  std::size_t bytes() const noexcept {
    return sizeof(RadixNode) + edge_bytes() + owners_.bytes() + full_.bytes() + children_bytes();
  }

  mutable RwLock lock;
  // A thread found the node vacant and will free it, unless it is in use again by then.
  bool doomed = false;

 private:
  struct Child {
    struct Key {
      std::uint64_t local = 0;
      std::uint32_t offset = 0;
      friend bool operator==(const Key&, const Key&) = default;
    };
    std::uint64_t local = 0;
    RadixNode* node = nullptr;
    std::uint32_t offset = 0;

    Key key() const noexcept { return {local, offset}; }
    bool empty() const noexcept { return node == nullptr; }
    static std::uint64_t hash(const Key& key, std::uint64_t seed) noexcept {
      return seeded_hash(key.local, key.offset, seed);
    }
  };
  // All children but one, and how many are attached at each offset.
  struct Children {
    struct Branch {
      std::uint32_t offset;
      std::uint32_t children;
    };
    EntryMap<Child> table;
    std::vector<Branch> branches;  // by ascending offset, at most 64

    std::size_t bytes() const noexcept {
      return sizeof(Children) + table.bytes() + branches.capacity() * sizeof(Branch);
    }
  };

  std::size_t edge_bytes() const noexcept { return capacity_ * sizeof(std::uint64_t); }
  std::size_t children_bytes() const noexcept { return children_ == nullptr ? 0 : children_->bytes(); }
  // The largest offset of a child.
  std::uint32_t last_branch() const noexcept {
    const std::uint32_t last = only_.node == nullptr ? 0 : only_.offset;
    return children_ == nullptr ? last : std::max(last, children_->branches.back().offset);
  }
  // Resizes the edge storage for this length. False without memory for it.
  bool set_capacity(std::uint32_t length, RadixTally& tally) noexcept;
  // Blocks of the owner lose a holder; those without any stop counting as content.
  void lose(std::uint64_t blocks, RadixTally& tally) noexcept;
  bool covers(std::uint64_t mask) const noexcept { return (~mask & bits(0, length_)) == 0; }

  // Fields that queries need come first.
  std::uint8_t length_ = 0;
  std::uint8_t capacity_ = 0;
  std::uint8_t attached_ = 0;
  std::unique_ptr<std::uint64_t[]> edge_;
  SlotSet full_;
  Child only_;                          // a child, usually the only one
  std::unique_ptr<Children> children_;  // the others
  RadixOwners owners_;
  std::uint64_t held_ = 0;  // blocks with a holder
  RadixNode* parent_ = nullptr;
  std::uint32_t start_ = 0;
};

}  // namespace ashlar::index
