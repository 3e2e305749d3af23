// RadixNode: a run of up to 64 consecutive blocks in a radix tree, the workers that hold them, and the runs
// that go on from it. This is one node as data; basic_radix_tree.h has the tree and its locking.
//
//   edge:  a b c d e f     Children hang at an offset of the edge and are found by (offset, local hash):
//              |       |     [c', ...] at 2 continues b,
//              c'      g     [g, ...] at 6 continues f.
//
// A run that diverges in the middle of an edge becomes a child at that offset; the edge is not split. So a
// block keeps its place, (node, offset), for as long as anyone holds it, and names can refer to places.
//
// A worker's presence in a node is one mask per tier. full() has the workers whose device mask covers the
// edge: a query that passes through the node keeps those of its workers, by words and not by workers. Without
// memory full() may lack some: queries look at the masks of those.
//
// Blocks at the end of the edge that nobody holds and nothing hangs on are cut off; those in the middle stay
// as path. An edge is never shorter than one block, so a node that is to be freed can still be found and used
// again.
//
// The constructor, link(), extend() and add() throw std::bad_alloc where there is no memory, with everything
// as it was. The rest needs none.
//
// Thread safety: thread-compatible; where a tree is shared, `lock` guards everything but parent(), start(),
// attached()
//                and key(), which never change.
// Complexity:    add() and take() are O(log owners) as long as nobody comes or goes; take() looks at other
//                owners until it has found the taken blocks held, and at all of them where the end of the
//                edge is cut off. link(), unlink() and child() are O(1) expected, but for the steps that
//                double or halve the table of children.
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
  // A run of the first blocks, at most kMaxLength, that goes on from `parent` at an offset. It is not linked
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
  // Offset in the parent at which this node hangs.
  std::uint32_t attached() const noexcept { return attached_; }

  std::uint32_t length() const noexcept { return length_; }
  LocalHash local(std::uint32_t offset) const noexcept { return LocalHash(edge_[offset]); }
  // How many of the blocks follow the edge from an offset on.
  std::uint32_t match(std::uint32_t from, std::span<const StoredBlock> blocks) const noexcept;
  // How many of the local hashes follow the edge from its start.
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
  // Links a node made for this one.
  void link(RadixNode* child, RadixTally& tally);
  void unlink(RadixNode* child, RadixTally& tally) noexcept;
  // Frees all nodes below this one, however deep; they are still linked.
  void free_below() const noexcept;

  // Whether blocks can be added to the edge at this offset: it is the end, and there is room.
  bool extends_at(std::uint32_t offset) const noexcept {
    return offset == length_ && length_ < kMaxLength && parent_ != nullptr;
  }
  // Adds the first blocks to the edge, as many as there is room for. Returns how many.
  // Requires: extends_at(length()), and no child goes on there with the first block.
  std::uint32_t extend(std::span<const StoredBlock> blocks, RadixTally& tally);
  // Cuts off the blocks at the end that nobody holds and nothing hangs on.
  void cut_end(RadixTally& tally) noexcept;

  const RadixOwners& owners() const noexcept { return owners_; }
  const SlotSet& full() const noexcept { return full_; }

  // The slot's worker holds the blocks. Returns those that it held in that tier before.
  std::uint64_t add(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally);
  // The slot's worker holds the blocks in that tier no longer. Requires: it holds them there.
  void take(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally) noexcept;
  // The slot's worker holds nothing here any more, in any tier.
  void take_all(std::uint32_t slot, RadixTally& tally) noexcept;

  // Nobody holds a block here and nothing goes on from here.
  bool vacant() const noexcept { return owners_.empty() && !has_children(); }
  std::size_t bytes() const noexcept {
    return sizeof(RadixNode) + edge_bytes() + owners_.bytes() + full_.bytes() + children_bytes();
  }

  mutable RwLock lock;
  // Some thread found the node vacant and will free it, unless it is in use again by then.
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
  // All children but one, and how many of them hang at each offset.
  struct Children {
    struct Branch {
      std::uint32_t offset;
      std::uint32_t children;
    };
    EntryMap<Child> table;
    std::vector<Branch> branches;  // by rising offset, at most 64

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
  // Room for an edge of this length. False where there is no memory for it.
  bool set_capacity(std::uint32_t length, RadixTally& tally) noexcept;
  // Blocks that the owner held lose a holder; those without any are no content any more.
  void lose(std::uint64_t blocks, RadixTally& tally) noexcept;
  bool covers(std::uint64_t mask) const noexcept { return (~mask & bits(0, length_)) == 0; }

  // What a query needs lies in front.
  std::uint8_t length_ = 0;
  std::uint8_t capacity_ = 0;
  std::uint8_t attached_ = 0;
  std::unique_ptr<std::uint64_t[]> edge_;
  SlotSet full_;
  Child only_;                          // a child, usually the only one
  std::unique_ptr<Children> children_;  // the others
  RadixOwners owners_;
  std::uint64_t held_ = 0;  // blocks that somebody holds
  RadixNode* parent_ = nullptr;
  std::uint32_t start_ = 0;
};

}  // namespace ashlar::index
