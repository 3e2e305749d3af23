// ListMapLru: the LRU of blocks one writes first. The rival in eviction_bench.
//
// A std::list in the order of release, and a reserved std::unordered_map from hash to the place in it,
// because a block that is used again is known by its hash.
#pragma once

#include <cstddef>
#include <iterator>
#include <list>
#include <optional>
#include <unordered_map>

#include "ashlar/block/block_identity.h"
#include "ashlar/tokens/sequence_hash.h"

namespace ashlar::bench {

class ListMapLru {
 public:
  struct Block {
    tokens::SequenceHash hash;
    block::BlockId id;
  };

  explicit ListMapLru(std::size_t blocks) { places_.reserve(blocks); }
  ListMapLru(const ListMapLru&) = delete;  // the map's places are of this list
  ListMapLru& operator=(const ListMapLru&) = delete;

  // Requires: the hash is not here.
  void insert(block::BlockId id, const tokens::SequenceHash& hash) {
    order_.push_back({hash, id});
    places_.emplace(hash, std::prev(order_.end()));
  }
  std::optional<block::BlockId> remove(const tokens::SequenceHash& hash) {
    const auto found = places_.find(hash);
    if (found == places_.end()) return std::nullopt;
    const block::BlockId id = found->second->id;
    order_.erase(found->second);
    places_.erase(found);
    return id;
  }
  bool touch(const tokens::SequenceHash& hash) {
    const auto found = places_.find(hash);
    if (found == places_.end()) return false;
    order_.splice(order_.end(), order_, found->second);
    return true;
  }
  std::optional<Block> pop() {
    if (order_.empty()) return std::nullopt;
    const Block oldest = order_.front();
    places_.erase(oldest.hash);
    order_.pop_front();
    return oldest;
  }
  std::size_t size() const noexcept { return places_.size(); }

 private:
  std::list<Block> order_;
  std::unordered_map<tokens::SequenceHash, std::list<Block>::iterator> places_;
};

}  // namespace ashlar::bench
