// PrefixTree: what the workers of a group hold, as a tree of prefixes that a person can look at.
//
// Blocks that follow each other without a branch are one element, however many they are. view() picks the
// largest elements below a root, as many as asked for; the rest of each parent's children is counted. An
// element's name is a hash of its path: the same prefix has the same name in a later tree.
//
// Thread safety: immutable.
// Complexity:    the constructor and view() are O(runs and holders of the outline).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "ashlar/index/flash_index.h"

namespace ashlar::service {

class PrefixTree {
 public:
  static constexpr std::uint64_t kRoot = 0;  // name of the root: before any block

  explicit PrefixTree(index::IndexOutline outline);

  struct Seen {
    std::uint64_t name = kRoot;
    std::uint32_t position = 0;  // of its first block
    std::uint64_t blocks = 0;    // of its own run; each content once
    std::uint64_t below = 0;     // with all that follow
    std::uint64_t children = 0;
    std::vector<std::pair<std::uint32_t, std::uint64_t>> held =
        {};                               // by worker, with all that follow; most first
    std::vector<std::size_t> shown = {};  // children, of the view's elements
    std::uint64_t hidden_below = 0;       // blocks of children that are not shown
  };
  struct Wanted {
    std::uint64_t root = kRoot;
    std::size_t depth = 1;    // levels below the root
    std::size_t limit = 100;  // elements, the root not counted
    std::size_t offset = 0;   // so many children of the root, the largest, are left out
  };
  // The root first; nothing: there is no such prefix now.
  std::optional<std::vector<Seen>> view(const Wanted& wanted) const;

  // Worker numbers of `held`.
  const std::vector<events::Worker>& workers() const noexcept { return outline_.workers; }
  std::uint64_t blocks() const noexcept { return elements_.front().below; }
  // Blocks of all workers together.
  std::uint64_t copies() const noexcept { return copies_; }
  std::size_t elements() const noexcept { return elements_.size() - 1; }

 private:
  struct Element {
    std::uint64_t name = kRoot;
    std::uint32_t parent = 0;
    std::uint32_t position = 0;
    std::uint64_t blocks = 0;
    std::uint64_t below = 0;
    std::uint32_t first_child = 0;  // of children_
    std::uint32_t children = 0;
  };

  void count_children();
  void add_holders(std::vector<Seen>& seen, const std::vector<std::uint32_t>& seen_of) const;

  index::IndexOutline outline_;
  std::vector<std::uint32_t> element_of_;  // by run
  std::vector<Element> elements_;          // the root first, parents before children
  std::vector<std::uint32_t> children_;    // by element
  std::uint64_t copies_ = 0;
};

}  // namespace ashlar::service
