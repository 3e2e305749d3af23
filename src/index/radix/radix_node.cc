#include "index/radix/radix_node.h"

#include <array>
#include <new>
#include <utility>

#include "index/common/hash_compare.h"

namespace ashlar::index {

namespace {

constexpr std::uint32_t kMinCapacity = 4;

std::uint32_t capacity_for(std::uint32_t length) {
  return std::max(kMinCapacity, std::bit_ceil(length));
}

}  // namespace

RadixNode::RadixNode(RadixNode* parent, std::uint32_t attached, std::span<const StoredBlock> blocks,
                     RadixTally& tally)
    : attached_(static_cast<std::uint8_t>(attached)), parent_(parent), start_(parent->start_ + attached) {
  extend(blocks, tally);
  ++tally.nodes;
  tally.bytes += static_cast<std::int64_t>(sizeof(RadixNode));
}

std::uint32_t RadixNode::match(std::uint32_t from, std::span<const StoredBlock> blocks) const noexcept {
  const std::size_t most = std::min<std::size_t>(length_ - from, blocks.size());
  const std::uint64_t* edge = edge_.get() + from;
  std::uint32_t same = 0;
  while (same < most && edge[same] == blocks[same].local.value()) ++same;
  return same;
}

std::uint32_t RadixNode::match(std::span<const LocalHash> locals) const noexcept {
  static const detail::CommonPrefix common_prefix = detail::common_prefix_kernel();
  static_assert(sizeof(LocalHash) == sizeof(std::uint64_t));
  return common_prefix(edge_.get(), reinterpret_cast<const std::uint64_t*>(locals.data()),
                       static_cast<std::uint32_t>(std::min<std::size_t>(length_, locals.size())));
}

void RadixNode::link(RadixNode* child, RadixTally& tally) {
  const Child entry{child->edge_[0], child, child->attached_};
  if (only_.node == nullptr) {
    only_ = entry;
    return;
  }
  if (children_ == nullptr) {
    auto children = std::make_unique<Children>();
    children->branches.push_back({entry.offset, 1});
    children->table.insert(entry);
    children_ = std::move(children);
    tally.bytes += static_cast<std::int64_t>(children_bytes());
    return;
  }
  const std::size_t before = children_bytes();
  std::vector<Children::Branch>& branches = children_->branches;
  const auto at = std::ranges::lower_bound(branches, entry.offset, {}, &Children::Branch::offset);
  const bool is_new = at == branches.end() || at->offset != entry.offset;
  const auto branch = is_new ? branches.insert(at, {entry.offset, 0}) : at;
  try {
    children_->table.insert(entry);
    ++branch->children;
  } catch (...) {
    if (is_new) branches.erase(branch);
    tally.bytes += static_cast<std::int64_t>(children_bytes()) - static_cast<std::int64_t>(before);
    throw;
  }
  tally.bytes += static_cast<std::int64_t>(children_bytes()) - static_cast<std::int64_t>(before);
}

// Nodes to free form a stack through their parent links, which they no longer need.
void RadixNode::free_below() const noexcept {
  RadixNode* open = nullptr;
  const auto add = [&](RadixNode& child) { child.parent_ = std::exchange(open, &child); };
  for_each_child(add);
  while (open != nullptr) {
    const std::unique_ptr<RadixNode> node(std::exchange(open, open->parent_));
    node->for_each_child(add);
  }
}

void RadixNode::unlink(RadixNode* child, RadixTally& tally) noexcept {
  if (only_.node == child) {
    only_ = {};
  } else {
    const std::size_t before = children_bytes();
    Child* found = children_->table.find({child->edge_[0], child->attached_});
    ASHLAR_DCHECK(found != nullptr && found->node == child, "the node at %u is not a child of this node",
                  child->start_);
    children_->table.erase(found);
    std::vector<Children::Branch>& branches = children_->branches;
    const std::uint32_t offset = child->attached_;
    const auto at = std::ranges::lower_bound(branches, offset, {}, &Children::Branch::offset);
    ASHLAR_DCHECK(at != branches.end() && at->offset == offset && at->children != 0,
                  "a child at offset %u was not counted", offset);
    if (--at->children == 0) branches.erase(at);
    if (branches.empty()) children_.reset();
    tally.bytes += static_cast<std::int64_t>(children_bytes()) - static_cast<std::int64_t>(before);
  }
  if (parent_ != nullptr) cut_end(tally);
}

std::uint32_t RadixNode::extend(std::span<const StoredBlock> blocks, RadixTally& tally) {
  const auto count = static_cast<std::uint32_t>(std::min<std::size_t>(kMaxLength - length_, blocks.size()));
  if (!set_capacity(length_ + count, tally)) throw std::bad_alloc();
  for (std::uint32_t i = 0; i < count; ++i) edge_[length_ + i] = blocks[i].local.value();
  length_ = static_cast<std::uint8_t>(length_ + count);
  // The new blocks have no holders yet.
  tally.bytes -= static_cast<std::int64_t>(full_.bytes());
  full_.clear();
  return count;
}

bool RadixNode::set_capacity(std::uint32_t length, RadixTally& tally) noexcept {
  const std::uint32_t capacity = capacity_for(length);
  if (capacity == capacity_ || (capacity < capacity_ && length * 4 > capacity_)) return true;
  std::unique_ptr<std::uint64_t[]> edge(new (std::nothrow) std::uint64_t[capacity]);
  if (edge == nullptr) return capacity < capacity_;
  std::copy_n(edge_.get(), std::min<std::uint32_t>(length_, length), edge.get());
  edge_ = std::move(edge);
  tally.bytes += (static_cast<std::int64_t>(capacity) - capacity_) * std::int64_t{sizeof(std::uint64_t)};
  capacity_ = static_cast<std::uint8_t>(capacity);
  return true;
}

std::uint64_t RadixNode::add(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally) {
  const std::size_t before = owners_.bytes() + full_.bytes();
  const std::uint32_t at = owners_.insert(slot);
  const std::uint64_t had = owners_.mask(at, tier);
  try {
    owners_.set_mask(at, tier, had | blocks);
  } catch (...) {
    if (owners_.held(at) == 0) owners_.erase(at);
    tally.bytes +=
        static_cast<std::int64_t>(owners_.bytes() + full_.bytes()) - static_cast<std::int64_t>(before);
    throw;
  }
  if (tier == StorageTier::kDevice && covers(had | blocks)) full_.insert(slot);
  tally.blocks += std::popcount(blocks & ~had);
  tally.contents += std::popcount(blocks & ~held_);
  held_ |= blocks;
  tally.bytes +=
      static_cast<std::int64_t>(owners_.bytes() + full_.bytes()) - static_cast<std::int64_t>(before);
  return had & blocks;
}

void RadixNode::take(std::uint32_t slot, StorageTier tier, std::uint64_t blocks, RadixTally& tally) noexcept {
  const std::size_t before = owners_.bytes();
  const std::uint32_t at = owners_.find(slot);
  ASHLAR_DCHECK(at < owners_.size() && (blocks & ~owners_.mask(at, tier)) == 0,
                "slot %u does not hold the blocks taken from it", slot);
  owners_.set_mask(at, tier, owners_.mask(at, tier) & ~blocks);
  if (tier == StorageTier::kDevice) full_.erase(slot);
  tally.blocks -= std::popcount(blocks);
  const std::uint64_t still = owners_.held(at);
  if (still == 0) owners_.erase(at);
  tally.bytes += static_cast<std::int64_t>(owners_.bytes()) - static_cast<std::int64_t>(before);
  lose(blocks & ~still, tally);
  cut_end(tally);
}

void RadixNode::take_all(std::uint32_t slot, RadixTally& tally) noexcept {
  const std::uint32_t at = owners_.find(slot);
  if (at == owners_.size()) return;
  const std::size_t before = owners_.bytes();
  for (const StorageTier tier : kAllStorageTiers) tally.blocks -= std::popcount(owners_.mask(at, tier));
  const std::uint64_t held = owners_.held(at);
  owners_.erase(at);
  full_.erase(slot);
  tally.bytes += static_cast<std::int64_t>(owners_.bytes()) - static_cast<std::int64_t>(before);
  lose(held, tally);
  cut_end(tally);
}

void RadixNode::lose(std::uint64_t blocks, RadixTally& tally) noexcept {
  for (std::uint32_t at = 0; at < owners_.size() && blocks != 0; ++at) blocks &= ~owners_.held(at);
  ASHLAR_DCHECK((blocks & ~held_) == 0, "the node at %u loses blocks that no worker held", start_);
  held_ &= ~blocks;
  tally.contents -= std::popcount(blocks);
}

void RadixNode::cut_end(RadixTally& tally) noexcept {
  const auto end = std::max({static_cast<std::uint32_t>(std::bit_width(held_)), last_branch(), 1u});
  ASHLAR_DCHECK(end <= length_, "a worker holds block %u of an edge of %u", end, unsigned{length_});
  if (end == length_) return;
  set_capacity(end, tally);
  length_ = static_cast<std::uint8_t>(end);
  // Workers that held all but the cut end are full now.
  tally.bytes -= static_cast<std::int64_t>(full_.bytes());
  full_.clear();
  for (const RadixOwners::Owner& owner : owners_.all())
    if (covers(owner.device)) full_.insert(owner.slot);
  tally.bytes += static_cast<std::int64_t>(full_.bytes());
}

}  // namespace ashlar::index
