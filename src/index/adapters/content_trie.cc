#include "index/adapters/content_trie.h"

#include <algorithm>

namespace ashlar::index::detail {

namespace {
constexpr std::size_t kFirstChains = 16;
}

ContentTrie::Id ContentTrie::find(Id parent, LocalHash local) const noexcept {
  if (size_ == 0) return kNone;
  for (Id id = chains_[chain_of(parent, local.value())]; id != kRoot; id = node(id).next)
    if (node(id).local == local.value() && node(id).parent == parent) return id;
  return kNone;
}

std::size_t ContentTrie::compared(Id parent, LocalHash local) const noexcept {
  std::size_t count = 0;
  for (Id id = chains_[chain_of(parent, local.value())]; id != kRoot; id = node(id).next) {
    ++count;
    if (node(id).local == local.value() && node(id).parent == parent) break;
  }
  return count;
}

ContentTrie::Id ContentTrie::find_or_add(Id parent, LocalHash local) {
  if (const Id found = find(parent, local); found != kNone) return found;
  if (size_ == chains_.size()) double_chains();
  Id id = free_;
  if (id != kRoot) {
    free_ = node(id).next;
  } else {
    ASHLAR_CHECK(nodes_.size() < kMaxContents, "the trie holds %zu contents, its most", nodes_.size());
    nodes_.emplace_back();
    id = static_cast<Id>(nodes_.size());
  }
  Id& head = chains_[chain_of(parent, local.value())];
  node(id) = {local.value(), parent, 0, head};
  head = id;
  if (parent != kRoot) ++node(parent).uses;
  ++size_;
  return id;
}

void ContentTrie::release(Id id) noexcept {
  ASHLAR_DCHECK(node(id).uses > 0, "content %u is not held", id);
  --node(id).uses;
  trim(id);
}

void ContentTrie::trim(Id id) noexcept {
  while (id != kRoot && node(id).uses == 0) {
    Node& freed = node(id);
    const Id parent = freed.parent;
    Id* link = &chains_[chain_of(parent, freed.local)];
    while (*link != id) link = &node(*link).next;
    *link = freed.next;
    freed.next = free_;
    free_ = id;
    --size_;
    ASHLAR_DCHECK(parent == kRoot || node(parent).uses != 0, "content %u did not count as a use of %u", id,
                  parent);
    if (parent != kRoot) --node(parent).uses;
    id = parent;
  }
  if (size_ == 0) {
    std::vector<Node>().swap(nodes_);
    std::vector<Id>().swap(chains_);
    free_ = kRoot;
  }
}

void ContentTrie::double_chains() {
  if (chains_.empty()) seed_ = draw_seed();
  std::vector<Id> old(std::max(kFirstChains, chains_.size() * 2), kRoot);
  old.swap(chains_);
  shift_ = 64 - std::countr_zero(chains_.size());
  std::size_t moved_contents = 0;
  for (Id id : old) {
    for (; id != kRoot; ++moved_contents) {
      Node& moved = node(id);
      const Id next = moved.next;
      Id& head = chains_[chain_of(moved.parent, moved.local)];
      moved.next = head;
      head = id;
      id = next;
    }
  }
  ASHLAR_DCHECK(moved_contents == size_, "%zu of %zu contents moved to the new chains", moved_contents,
                size_);
}

}  // namespace ashlar::index::detail
