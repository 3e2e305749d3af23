// Counting children in families.
//
// A family's key is 64 bits that child and parent derive independently: the child's mode and position and the
// parent fragment, as the child's own name carries them (2 + 8 + 54, 2 + 16 + 46 or 2 + 24 + 38 bits). A
// parent computes the same bits from its own position and chain hash, in the width that its child's position
// requires.
//
// Families live in an array and keep their index; an open-addressing table of family numbers finds them by
// key (linear probing with backward-shift removal: Knuth, The Art of Computer Programming 6.4, algorithm R).
// A block is in at most two families, so families are bounded by twice the blocks, and the load of the table
// by 2/3.
//
// A removal changes one count, and only a count that falls to 0, or rises from it, moves blocks: those of one
// family. No change propagates along a chain: a parent that became a leaf is an ordinary candidate of the
// next pop().
#include "block/eviction/lineage_backend.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "ashlar/base/check.h"
#include "block/registry/hash_mix.h"

namespace ashlar::block {
namespace {

using tokens::SequenceHash;

// The bits that a chained name shares with those its parent computes. Requires: position() > 0.
std::uint64_t parent_bits(const SequenceHash& child) noexcept {
  const unsigned width = child.mode() == 0 ? 54 : child.mode() == 1 ? 46 : 38;
  return (child.hi() >> width << width) | child.parent_fragment();
}

// The key of the family in which the block is a parent; 0 when it cannot have a child.
std::uint64_t key_below(const SequenceHash& hash) {
  if (hash.is_keyed()) {
    const std::uint64_t spread = hash.position() * 0x9E3779B97F4A7C15u;
    return std::uint64_t{3} << 62 | (hash.lo() ^ spread) >> 2;
  }
  if (hash.position() == SequenceHash::kMaxPosition) return 0;
  return parent_bits(*hash.child(0));
}

}  // namespace

LineageBackend::LineageBackend(const EvictionContext& context, LineageOrder order)
    : order_(order),
      facts_(context.facts),
      members_(context.block_count),
      families_(kFamiliesPerBlock * context.block_count),
      slots_(kSlotsPerBlock * context.block_count),
      by_tick_(order == LineageOrder::kOldestChainFirst ? context.block_count : 0),
      by_turn_(order == LineageOrder::kRoundRobin ? context.block_count : 0, 2) {
  ASHLAR_CHECK(context.block_count <= kMaxBlocks, "%u blocks are more than the %u of a lineage",
               context.block_count, kMaxBlocks);
  for (std::size_t i = 0; i < slots_.size(); ++i) slots_[i] = kNone;
  facts_->keep_parents();
}

Result<LineageBackend> LineageBackend::create(const EvictionContext& context, LineageOrder order) {
  if (context.block_count > kMaxBlocks) {
    return make_error(ErrorCode::kInvalidArgument,
                      "block_count is %u; the lineage backend orders at most %u blocks", context.block_count,
                      kMaxBlocks);
  }
  return LineageBackend(context, order);
}

// ---- notifications from the store

void LineageBackend::registered(BlockId id, const SequenceHash& hash) {
  announce(id, keys_of(id, hash));
  if (is_inactive(id)) leave(id);
}

void LineageBackend::unregistered(BlockId id) {
  if (members_[id.value()].place != Place::kUnknown) forget(id);
}

void LineageBackend::insert(BlockId id, const SequenceHash& hash) {
  announce(id, keys_of(id, hash));
  if (is_inactive(id)) leave(id);
  enter(id);
}

void LineageBackend::remove(BlockId id) {
  ASHLAR_DCHECK(is_inactive(id), "block %u is not in the backend", id.value());
  leave(id);
}

void LineageBackend::touch(BlockId id) {
  ASHLAR_DCHECK(is_inactive(id), "block %u is not in the backend", id.value());
  leave(id);
  enter(id);
}

std::optional<BlockId> LineageBackend::pop() {
  std::optional<BlockId> victim =
      order_ == LineageOrder::kOldestChainFirst ? by_tick_.top() : by_turn_.front(kLeaves);
  if (!victim) victim = by_turn_.front(kParents);
  if (victim) forget(*victim);
  return victim;
}

// ---- lives

LineageBackend::Keys LineageBackend::keys_of(BlockId id, const SequenceHash& hash) const noexcept {
  Keys keys{key_below(hash), kNoKey};
  if (hash.is_keyed()) {
    if (const std::optional<SequenceHash>& parent = facts_->parent(id)) keys.above = key_below(*parent);
  } else if (hash.position() > 0) {
    keys.above = parent_bits(hash);
  }
  return keys;
}

void LineageBackend::announce(BlockId id, const Keys& keys) {
  Member& member = members_[id.value()];
  if (member.place != Place::kUnknown) {
    if (key_of(member.below) == keys.below && key_of(member.above) == keys.above) return;
    forget(id);
  }
  member.place = Place::kInUse;
  member.below = family_of(keys.below);
  if (member.below != kNone) link(id.value());
  member.above = family_of(keys.above);
  if (member.above != kNone && ++families_[member.above].children == 1) {
    move_all(member.above, Place::kParent);
  }
}

void LineageBackend::forget(BlockId id) {
  if (is_inactive(id)) leave(id);
  const Member member = members_[id.value()];
  if (member.below != kNone) {
    unlink(id.value());
    drop_if_empty(member.below);
  }
  members_[id.value()] = Member{};
  if (member.above != kNone) {
    if (--families_[member.above].children == 0) move_all(member.above, Place::kLeaf);
    drop_if_empty(member.above);
  }
}

// ---- families

std::size_t LineageBackend::home(std::uint64_t key) const noexcept {
  __extension__ using Wide = unsigned __int128;
  const std::uint64_t mixed = HashMix::of(SequenceHash::from_bits(key, 0));
  return static_cast<std::size_t>(static_cast<Wide>(mixed) * slots_.size() >> 64);
}

std::uint32_t LineageBackend::family_of(std::uint64_t key) {
  if (key == kNoKey) return kNone;
  std::size_t at = home(key);
  for (; slots_[at] != kNone; at = at + 1 == slots_.size() ? 0 : at + 1) {
    if (families_[slots_[at]].key == key) return slots_[at];
  }
  const std::uint32_t family = free_ != kNone ? std::exchange(free_, families_[free_].first) : fresh_++;
  families_[family] = Family{key, 0, kNone};
  slots_[at] = family;
  return family;
}

std::uint64_t LineageBackend::key_of(std::uint32_t family) const noexcept {
  return family == kNone ? kNoKey : families_[family].key;
}

void LineageBackend::drop_if_empty(std::uint32_t family) {
  if (families_[family].children != 0 || families_[family].first != kNone) return;
  const std::size_t size = slots_.size();
  std::size_t gap = home(families_[family].key);
  while (slots_[gap] != family) gap = gap + 1 == size ? 0 : gap + 1;
  // An entry moves into the gap when its home is not between the gap and itself.
  const auto distance = [size](std::size_t from, std::size_t to) {
    return to >= from ? to - from : to + size - from;
  };
  std::size_t at = gap + 1 == size ? 0 : gap + 1;
  for (; slots_[at] != kNone; at = at + 1 == size ? 0 : at + 1) {
    if (distance(home(families_[slots_[at]].key), at) < distance(gap, at)) continue;
    slots_[gap] = slots_[at];
    gap = at;
  }
  slots_[gap] = kNone;
  families_[family].first = std::exchange(free_, family);
}

void LineageBackend::link(std::uint32_t id) {
  Member& member = members_[id];
  std::uint32_t& first = families_[member.below].first;
  if (first == kNone) {
    first = member.prev = member.next = id;
    return;
  }
  member.next = first;
  member.prev = std::exchange(members_[first].prev, id);
  members_[member.prev].next = id;
}

void LineageBackend::unlink(std::uint32_t id) {
  const Member& member = members_[id];
  std::uint32_t& first = families_[member.below].first;
  members_[member.prev].next = member.next;
  members_[member.next].prev = member.prev;
  if (first == id) first = member.next == id ? kNone : member.next;
}

void LineageBackend::move_all(std::uint32_t family, Place to) {
  const std::uint32_t first = families_[family].first;
  if (first == kNone) return;
  std::uint32_t at = first;
  do {
    const BlockId id(at);
    Place& place = members_[at].place;
    if (is_inactive(id) && place != to) {
      if (order_ == LineageOrder::kOldestChainFirst) {
        by_tick_.update(id, by_tick_.key_of(id) ^ kParentBit);
      } else {
        by_turn_.remove(id);
        by_turn_.push_back(to == Place::kLeaf ? kLeaves : kParents, id);
      }
      place = to;
    }
    at = members_[at].next;
  } while (at != first);
}

// ---- the order

bool LineageBackend::is_inactive(BlockId id) const noexcept {
  const Place place = members_[id.value()].place;
  return place == Place::kLeaf || place == Place::kParent;
}

void LineageBackend::enter(BlockId id) {
  Member& member = members_[id.value()];
  const bool is_parent = member.below != kNone && families_[member.below].children != 0;
  member.place = is_parent ? Place::kParent : Place::kLeaf;
  if (order_ == LineageOrder::kOldestChainFirst) {
    by_tick_.push(id, ++tick_ | (is_parent ? kParentBit : 0));
  } else {
    by_turn_.push_back(is_parent ? kParents : kLeaves, id);
  }
}

void LineageBackend::leave(BlockId id) {
  if (order_ == LineageOrder::kOldestChainFirst) {
    by_tick_.remove(id);
  } else {
    by_turn_.remove(id);
  }
  members_[id.value()].place = Place::kInUse;
}

// ---- peek

// The next victims of repeated pop() calls: the current order, merged with the parents that those victims
// would leave behind as leaves.
//
// The first k of the current order suffice for k victims: a parent is taken from it only when no leaf is
// left, and by then every block that left the order has been a victim.
class LineageBackend::Forecast {
 public:
  Forecast(const LineageBackend& backend, std::size_t count) : backend_(backend), standing_(count) {
    if (backend.order_ == LineageOrder::kOldestChainFirst) {
      backend.by_tick_.peek(standing_);
    } else {
      const std::size_t leaves = backend.by_turn_.peek(kLeaves, standing_);
      backend.by_turn_.peek(kParents, std::span(standing_).subspan(leaves));
    }
  }

  // Requires: at most the reserved number of calls.
  BlockId next() {
    while (at_ < standing_.size() && freed_.contains(standing_[at_].value())) ++at_;
    const bool take_freed =
        !queue_.empty() && (at_ == standing_.size() || stamp_of_leaf(standing_[at_]) > queue_.top().first);
    const BlockId victim = take_freed ? BlockId(queue_.top().second) : standing_[at_];
    if (take_freed) {
      queue_.pop();
    } else {
      ++at_;
    }
    gone_.insert(victim.value());
    lose_child(backend_.members_[victim.value()].above);
    return victim;
  }

 private:
  using Stamped = std::pair<std::uint64_t, std::uint32_t>;  // smaller stamps go first

  // Freed blocks are stamped with their ticks, or with 1, 2, ... in order of arrival, after all existing
  // leaves.
  std::uint64_t stamp_of_leaf(BlockId id) const {
    if (backend_.members_[id.value()].place == Place::kParent) return kParentBit;
    return backend_.order_ == LineageOrder::kOldestChainFirst ? backend_.by_tick_.key_of(id) : 0;
  }

  void lose_child(std::uint32_t family) {
    if (family == kNone || ++lost_[family] != backend_.families_[family].children) return;
    const std::uint32_t first = backend_.families_[family].first;
    if (first == kNone) return;
    std::uint32_t at = first;
    do {
      if (backend_.members_[at].place == Place::kParent && !gone_.contains(at)) {
        freed_.insert(at);
        queue_.emplace(backend_.order_ == LineageOrder::kOldestChainFirst
                           ? backend_.by_tick_.key_of(BlockId(at)) ^ kParentBit
                           : freed_.size(),
                       at);
      }
      at = backend_.members_[at].next;
    } while (at != first);
  }

  const LineageBackend& backend_;
  std::vector<BlockId> standing_;
  std::size_t at_ = 0;
  std::priority_queue<Stamped, std::vector<Stamped>, std::greater<>> queue_;
  std::unordered_set<std::uint32_t> freed_;
  std::unordered_set<std::uint32_t> gone_;
  std::unordered_map<std::uint32_t, std::uint32_t> lost_;  // children of a family
};

std::size_t LineageBackend::peek(std::span<BlockId> out) const {
  const std::size_t count = std::min(out.size(), size());
  if (count == 0) return 0;
  Forecast forecast(*this, count);
  for (BlockId& id : out.first(count)) id = forecast.next();
  return count;
}

}  // namespace ashlar::block
