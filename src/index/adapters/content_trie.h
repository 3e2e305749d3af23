// ContentTrie: a number for every content in use. A content is a path of local hashes from the start of a
// sequence; two paths have the same number iff they are equal: the trie compares block hashes, never path
// hashes.
//
// A number is in use while its path, or a longer one, is held; afterwards it may be reused. Children are
// found through one chained hash table over all nodes, by parent and local hash, with its own seed
// (table_seed.h).
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected per step of a path, except when the arrays double; release() is O(blocks
//                freed). 28 to 56 bytes per content.
// Invariant:     an empty trie owns no memory.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ashlar/base/check.h"
#include "ashlar/index/indexer.h"
#include "base/table_seed.h"

namespace ashlar::index::detail {

class ContentTrie {
 public:
  using Id = std::uint32_t;
  static constexpr Id kRoot = 0;  // the empty path; always present
  static constexpr Id kNone = UINT32_MAX;
  static constexpr std::size_t kMaxContents = UINT32_MAX - 1;

  // Contents, except the empty one.
  std::size_t size() const noexcept { return size_; }
  std::size_t bytes() const noexcept {
    return nodes_.capacity() * sizeof(Node) + chains_.capacity() * sizeof(Id);
  }

  // The path one block longer; kNone when absent.
  Id find(Id parent, LocalHash local) const noexcept;
  // The same, added when absent. A new one has no hold: hold() or trim() it. Requires: size() < kMaxContents.
  // Throws std::bad_alloc with the contents unchanged; trim() an empty trie afterwards.
  Id find_or_add(Id parent, LocalHash local);

  void hold(Id id) noexcept { ++node(id).uses; }
  // Undoes one hold(); frees unused nodes up to the root.
  void release(Id id) noexcept;
  // Frees the unused end of the path.
  void trim(Id id) noexcept;

  // How many contents find() compares. Requires: the trie is not empty.
  std::size_t compared(Id parent, LocalHash local) const noexcept;

  // Requires: id is not kRoot.
  Id parent(Id id) const noexcept { return node(id).parent; }
  LocalHash local(Id id) const noexcept { return LocalHash(node(id).local); }

 private:
  struct Node {
    std::uint64_t local = 0;
    Id parent = kRoot;
    std::uint32_t uses = 0;  // holds and children
    Id next = kRoot;         // in its chain, or the next free node; kRoot ends both
  };

  // nodes_[0] is the content with number 1.
  Node& node(Id id) noexcept {
    ASHLAR_DCHECK(id != kRoot && id <= nodes_.size(), "content %u of %zu", id, nodes_.size());
    return nodes_[id - 1];
  }
  const Node& node(Id id) const noexcept {
    ASHLAR_DCHECK(id != kRoot && id <= nodes_.size(), "content %u of %zu", id, nodes_.size());
    return nodes_[id - 1];
  }
  // Requires: chains_ is not empty.
  std::size_t chain_of(Id parent, std::uint64_t local) const noexcept {
    return static_cast<std::size_t>(seeded_hash(local, parent, seed_) >> shift_);
  }
  void double_chains();

  std::size_t size_ = 0;
  Id free_ = kRoot;
  std::vector<Node> nodes_;
  std::vector<Id> chains_;  // a power of two
  std::uint64_t seed_ = 0;
  int shift_ = 64;  // 64 - log2(chains)
};

}  // namespace ashlar::index::detail
