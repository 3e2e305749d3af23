// Paths: the sequences that a concurrent run stores and asks for, and the numbers of their contents.
//
// A content (a path of local hashes from the start) has a number; numbers are dense, and that of a longer
// path is larger than that of its beginnings. Sequences share stems and diverge at any block, so that storing
// one splits what another has stored.
//
// Thread safety: immutable once made.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/random.h"
#include "ashlar/index/indexer.h"

namespace ashlar::index::concurrent {

using Content = std::uint32_t;

// Of a path that nobody stores.
inline constexpr Content kNever = 0xFFFF'FFFFu;

struct Path {
  std::vector<LocalHash> locals;
  std::vector<Content> contents;  // of each beginning

  std::size_t size() const noexcept { return locals.size(); }
};

struct PathOptions {
  std::size_t stems = 3;
  std::size_t branches = 21;
  std::size_t stem_length = 150;  // at most
  std::size_t tail_length = 60;   // of a branch, at most
};

class Paths {
 public:
  Paths(std::uint64_t seed, const PathOptions& options);

  // What is stored.
  const std::vector<Path>& stored() const noexcept { return stored_; }
  // What is asked for: stored paths whole, cut short, and going on where nobody goes.
  const std::vector<Path>& queries() const noexcept { return queries_; }
  std::size_t contents() const noexcept { return parents_.size(); }
  // kNever for the first block of a sequence.
  Content parent(Content content) const { return parents_[content]; }

 private:
  Path path_of(std::vector<LocalHash> locals);
  Path query_of(std::vector<LocalHash> locals) const;

  std::map<std::pair<Content, LocalHash>, Content> numbers_;
  std::vector<Content> parents_;
  std::vector<Path> stored_;
  std::vector<Path> queries_;
};

}  // namespace ashlar::index::concurrent
