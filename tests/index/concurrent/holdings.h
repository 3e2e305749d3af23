// Holdings: what one worker holds, by content, tier and name, and how a call changes it.
//
// Thread safety: thread-compatible.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/index/indexer.h"
#include "index/concurrent/paths.h"

namespace ashlar::index::concurrent {

// A presence that begins or ends. Workers are numbered by the run.
struct Change {
  std::uint32_t worker;
  Content content;
  StorageTier tier;
  bool held;
};

class Holdings {
 public:
  Holdings(const Paths& paths, std::uint32_t worker, MidChainRemoval mid_chain)
      : paths_(&paths), worker_(worker), mid_chain_(mid_chain) {}

  bool empty() const noexcept { return held_.empty(); }
  bool holds(Content content) const { return held_.contains(content); }
  bool holds(Content content, StorageTier tier) const { return !names_of(content, tier).empty(); }
  const std::set<BlockName>& names_of(Content content, StorageTier tier) const;
  // All names of a tier, those of longer paths first.
  std::vector<BlockName> names_in(StorageTier tier) const;
  // A name of the content in any tier. Requires: holds(content).
  BlockName any_name_of(Content content) const;
  // Blocks from the start of the path that are held.
  std::size_t prefix_of(const Path& path) const;

  // The effects of calls that an index must apply; the changes are added to `changes`.
  void store(Content content, StorageTier tier, BlockName name, std::vector<Change>& changes);
  void remove(StorageTier tier, std::span<const BlockName> names, std::vector<Change>& changes);
  void clear(std::vector<Change>& changes);

 private:
  using Names = std::array<std::set<BlockName>, kStorageTiers>;

  void forget(Content content, std::vector<Change>& changes);
  void forget_behind(Content content, std::vector<Change>& changes);

  const Paths* paths_;
  std::uint32_t worker_;
  MidChainRemoval mid_chain_;
  std::map<Content, Names> held_;
  std::unordered_map<BlockName, Content> meanings_;
};

}  // namespace ashlar::index::concurrent
