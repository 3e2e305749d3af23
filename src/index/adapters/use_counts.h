// UseCounts: uses per content and time bucket: the collected half of a UseWindow.
//
// Every content with uses in the window is a node of a trie and has a row of counts, one column per bucket,
// reused in turn: the column of bucket b is b modulo the number of buckets. A row is brought up to date on
// use: columns of buckets that passed since are zeroed. Contents are in one list per bucket, that of their
// last use; a bucket that leaves the window drops the contents of its list. A prefix is used whenever a block
// behind it is, so a forgotten content is never a prefix of a kept one.
//
// Thread safety: thread-compatible.
// Complexity:    O(1) expected per used block and per content forgotten.
// Invariant:     without contents it owns no memory except the list heads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/adapters/content_trie.h"

namespace ashlar::index::detail {

class UseCounts {
 public:
  using Bucket = std::int64_t;

  UseCounts(std::uint32_t buckets, std::size_t max_contents);

  // Forgets at most `most` contents outside the window that ends with this bucket. Returns false when more
  // remain: until then the old window applies. An earlier bucket than the last changes nothing.
  bool advance(Bucket now, std::size_t most);
  // Counts one use of each block, now. Returns how many could not be counted.
  std::size_t use(std::span<const LocalHash> locals);
  // As UseWindow::recent_uses(). Requires: uses.size() >= locals.size().
  std::size_t read(std::span<const LocalHash> locals, std::span<std::uint32_t> uses) const;

  std::size_t contents() const noexcept { return trie_.size(); }
  std::size_t bytes() const noexcept {
    return trie_.bytes() + rows_.capacity() * sizeof(Row) + counts_.capacity() * sizeof(std::uint32_t);
  }
  // Buckets forgotten to make room.
  std::uint64_t shortened() const noexcept { return shortened_; }

 private:
  using Content = ContentTrie::Id;
  static constexpr Content kEnd = ContentTrie::kNone;

  struct Row {
    Bucket last = 0;
    Content before = kEnd;  // in the list of `last`
    Content after = kEnd;
  };

  std::size_t column(Bucket bucket) const noexcept {
    return static_cast<std::size_t>(bucket % static_cast<Bucket>(heads_.size()));
  }
  std::uint32_t& count(Content content, Bucket bucket) noexcept {
    return counts_[content * heads_.size() + column(bucket)];
  }
  // A new child, or kNone without room or memory for one.
  Content add(Content parent, LocalHash local);
  bool make_room();
  void free_if_empty() noexcept;
  void touch(Content content);
  void link(Content content);
  void unlink(Content content) noexcept;
  // Counts `most` down per content; false when it stopped at 0.
  bool forget_bucket(Bucket bucket, std::size_t& most);

  std::size_t max_contents_;
  bool started_ = false;
  Bucket first_ = 0;  // the oldest bucket that counts
  Bucket now_ = 0;
  std::uint64_t shortened_ = 0;
  ContentTrie trie_;
  std::vector<Content> heads_;  // one list per bucket
  std::vector<Row> rows_;       // by content
  std::vector<std::uint32_t> counts_;
};

}  // namespace ashlar::index::detail
