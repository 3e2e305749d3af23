// A Fenwick tree over the accesses in their order marks the last one of each block: the marks behind a place
// are the different blocks since (Bennett and Kruskal, 1975). When the tree is full, the marks are numbered
// anew, in their order.
#include "replay/plan/stack_distance.h"

#include <algorithm>

#include "ashlar/base/check.h"

namespace ashlar::replay {

void StackDistances::add(std::size_t place, std::int32_t change) {
  for (std::size_t i = place + 1; i < tree_.size(); i += i & (~i + 1)) tree_[i] += change;
}

std::uint64_t StackDistances::sum_up_to(std::size_t place) const {
  std::int64_t sum = 0;
  for (std::size_t i = place; i > 0; i -= i & (~i + 1)) sum += tree_[i];
  ASHLAR_DCHECK(sum >= 0, "a tree with %lld marks", static_cast<long long>(sum));
  return static_cast<std::uint64_t>(sum);
}

void StackDistances::compact() {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < next_; ++i) {
    const auto found = last_.find(block_at_[i]);
    if (found == last_.end() || found->second != i) continue;
    block_at_[kept] = block_at_[i];
    found->second = static_cast<std::uint32_t>(kept++);
  }
  ASHLAR_CHECK(kept == last_.size(), "%zu accesses are the last ones of %zu blocks", kept, last_.size());
  constexpr std::size_t kLeast = 1024;
  const std::size_t room = std::max(kLeast, 2 * kept);
  block_at_.resize(room);
  tree_.assign(room + 1, 0);
  for (std::size_t i = 0; i < kept; ++i) tree_[i + 1] = 1;
  for (std::size_t i = 1; i < tree_.size(); ++i)  // sums, from the leaves up
    if (const std::size_t parent = i + (i & (~i + 1)); parent < tree_.size()) tree_[parent] += tree_[i];
  next_ = kept;
}

std::uint64_t StackDistances::distance_of(std::uint64_t block) const {
  const auto found = last_.find(block);
  if (found == last_.end()) return kCold;
  const std::uint64_t distance = last_.size() - sum_up_to(found->second);
  ASHLAR_DCHECK(distance >= 1 && distance <= last_.size(), "distance %llu of %zu blocks",
                static_cast<unsigned long long>(distance), last_.size());
  return distance;
}

void StackDistances::access(std::uint64_t block) {
  if (next_ == block_at_.size()) compact();
  ASHLAR_DCHECK(next_ < block_at_.size(), "no room for access %zu", next_);
  const auto [found, is_new] = last_.try_emplace(block, static_cast<std::uint32_t>(next_));
  if (!is_new) {
    add(found->second, -1);
    found->second = static_cast<std::uint32_t>(next_);
  }
  add(next_, 1);
  block_at_[next_++] = block;
}

}  // namespace ashlar::replay
