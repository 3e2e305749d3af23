#include "service/gateway/prefix_tree.h"

#include <algorithm>
#include <map>
#include <queue>

#include "ashlar/base/check.h"
#include "ashlar/base/random.h"

namespace ashlar::service {

namespace {

constexpr std::uint32_t kNotSeen = UINT32_MAX;

// Never the root's.
std::uint64_t name_below(std::uint64_t parent, tokens::LocalHash first) {
  return spread_bits(spread_bits(parent) ^ first.value()) | 1;
}

}  // namespace

PrefixTree::PrefixTree(index::IndexOutline outline) : outline_(std::move(outline)) {
  const std::vector<index::IndexOutline::Run>& runs = outline_.runs;
  std::vector<std::uint32_t> branches(runs.size(), 0);
  for (const index::IndexOutline::Run& run : runs)
    if (run.parent != index::IndexOutline::kNoRun) ++branches[run.parent];
  elements_.push_back({});
  element_of_.reserve(runs.size());
  for (const index::IndexOutline::Run& run : runs) {
    const bool is_start = run.parent == index::IndexOutline::kNoRun;
    ASHLAR_CHECK(is_start || run.parent < element_of_.size(), "runs come parents first");
    const std::uint32_t parent = is_start ? 0 : element_of_[run.parent];
    if (!is_start && branches[run.parent] == 1) {
      element_of_.push_back(parent);
      elements_[parent].blocks += run.blocks;
      continue;
    }
    element_of_.push_back(static_cast<std::uint32_t>(elements_.size()));
    elements_.push_back({.name = name_below(elements_[parent].name, run.first),
                         .parent = parent,
                         .position = run.position,
                         .blocks = run.blocks});
  }
  count_children();
  for (const index::IndexOutline::Holder& holder : outline_.holders) copies_ += holder.blocks;
}

// Elements without any block, whose blocks were all removed, are nobody's children.
void PrefixTree::count_children() {
  for (std::size_t i = elements_.size(); i-- > 0;) {
    elements_[i].below += elements_[i].blocks;
    if (i == 0 || elements_[i].below == 0) continue;
    ASHLAR_DCHECK(elements_[i].parent < i, "elements come parents first");
    elements_[elements_[i].parent].below += elements_[i].below;
    ++elements_[elements_[i].parent].children;
  }
  std::uint32_t next = 0;
  for (Element& element : elements_) {
    element.first_child = next;
    next += element.children;
  }
  children_.resize(next);
  std::vector<std::uint32_t> filled(elements_.size(), 0);
  for (std::uint32_t i = 1; i < elements_.size(); ++i) {
    if (elements_[i].below == 0) continue;
    const std::uint32_t parent = elements_[i].parent;
    children_[elements_[parent].first_child + filled[parent]++] = i;
  }
}

std::optional<std::vector<PrefixTree::Seen>> PrefixTree::view(const Wanted& wanted) const {
  const auto root = std::ranges::find(elements_, wanted.root, &Element::name);
  if (root == elements_.end() || (root != elements_.begin() && root->below == 0)) return std::nullopt;
  // The largest first, each after its parent.
  struct Open {
    std::uint64_t below;
    std::uint32_t element;
    std::size_t parent;  // of `seen`
    std::size_t level;
    bool operator<(const Open& other) const {
      return below != other.below ? below < other.below : element > other.element;
    }
  };
  std::priority_queue<Open> open;
  std::vector<Seen> seen;
  std::vector<std::uint32_t> seen_of(elements_.size(), kNotSeen);
  const auto add = [&](std::uint32_t at, std::size_t level) {
    const Element& element = elements_[at];
    const std::size_t number = seen.size();
    seen_of[at] = static_cast<std::uint32_t>(number);
    seen.push_back({.name = element.name,
                    .position = element.position,
                    .blocks = element.blocks,
                    .below = element.below,
                    .children = element.children,
                    .hidden_below = element.below - element.blocks});
    if (level == wanted.depth) return;
    for (std::uint32_t i = 0; i < element.children; ++i) {
      const std::uint32_t child = children_[element.first_child + i];
      open.push({elements_[child].below, child, number, level + 1});
    }
  };
  add(static_cast<std::uint32_t>(root - elements_.begin()), 0);
  std::size_t left_out = 0;
  while (!open.empty() && seen.size() <= wanted.limit) {
    const Open next = open.top();
    open.pop();
    if (next.parent == 0 && left_out < wanted.offset) {
      ++left_out;
      seen[0].hidden_below -= next.below;
      continue;
    }
    seen[next.parent].shown.push_back(seen.size());
    seen[next.parent].hidden_below -= next.below;
    add(next.element, next.level);
  }
  add_holders(seen, seen_of);
  return seen;
}

// Each run counts for the nearest element above it that is seen, and those count for their parents.
void PrefixTree::add_holders(std::vector<Seen>& seen, const std::vector<std::uint32_t>& seen_of) const {
  std::vector<std::uint32_t> nearest(seen_of);
  for (std::size_t i = 1; i < elements_.size(); ++i)
    if (nearest[i] == kNotSeen) nearest[i] = nearest[elements_[i].parent];
  std::vector<std::map<std::uint32_t, std::uint64_t>> held(seen.size());
  std::size_t at = 0;
  for (std::size_t run = 0; run < outline_.runs.size(); ++run) {
    const std::uint32_t to = nearest[element_of_[run]];
    for (std::uint32_t left = outline_.runs[run].holders; left > 0; --left, ++at) {
      const index::IndexOutline::Holder& holder = outline_.holders[at];
      if (to != kNotSeen && holder.blocks != 0) held[to][holder.worker] += holder.blocks;
    }
  }
  ASHLAR_CHECK(at == outline_.holders.size(), "every holder is of a run");
  for (std::size_t i = seen.size(); i-- > 0;) {
    for (const std::size_t child : seen[i].shown) {
      ASHLAR_DCHECK(child > i, "children come after their parents");
      for (const auto& [worker, blocks] : seen[child].held) held[i][worker] += blocks;
    }
    seen[i].held.assign(held[i].begin(), held[i].end());
    std::ranges::sort(seen[i].held, [](const auto& a, const auto& b) {
      return a.second != b.second ? a.second > b.second : a.first < b.first;
    });
  }
}

}  // namespace ashlar::service
