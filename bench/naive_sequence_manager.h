// NaiveSequenceManager: the block manager of a small engine, as one writes it first: a map from hash to
// block, a queue of free blocks, reference counts, tokens compared on a hit. It registers blocks when it
// hands them out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::bench {

struct NaiveSequence {
  std::vector<tokens::Token> tokens;
  std::vector<tokens::SequenceHash> hashes;  // of its full blocks
  std::vector<std::uint32_t> table;
  std::size_t cached_tokens = 0;
};

class NaiveSequenceManager {
 public:
  NaiveSequenceManager(std::uint32_t blocks, std::uint32_t block_size)
      : blocks_(blocks), block_size_(block_size) {
    for (std::uint32_t id = 0; id < blocks; ++id) give_back(id);
  }

  bool allocate(NaiveSequence& sequence) {
    const std::size_t count = (sequence.tokens.size() + block_size_ - 1) / block_size_;
    const std::size_t may_hit = (sequence.tokens.size() - 1) / block_size_;
    std::size_t hits = 0;
    while (hits < may_hit && hit(sequence, hits)) ++hits;
    if (free_.size() < count - hits) {
      deallocate(sequence);
      return false;
    }
    sequence.cached_tokens = hits * block_size_;
    for (std::size_t i = hits; i < count; ++i) {
      const std::uint32_t id = take_free();
      Block& block = blocks_[id];
      if (block.has_hash) {
        const auto known = by_hash_.find(block.hash);
        if (known != by_hash_.end() && known->second == id) by_hash_.erase(known);
      }
      block.has_hash = i < sequence.hashes.size();
      block.references = 1;
      if (block.has_hash) {
        const auto tokens = tokens_of(sequence, i);
        block.hash = sequence.hashes[i];
        block.tokens.assign(tokens.begin(), tokens.end());
        by_hash_[block.hash] = id;
      }
      sequence.table.push_back(id);
    }
    return true;
  }

  void deallocate(NaiveSequence& sequence) {
    for (std::size_t i = sequence.table.size(); i-- > 0;) {
      const std::uint32_t id = sequence.table[i];
      if (--blocks_[id].references == 0) give_back(id);
    }
    sequence.table.clear();
    sequence.cached_tokens = 0;
  }

 private:
  struct Block {
    tokens::SequenceHash hash;
    std::vector<tokens::Token> tokens;
    std::uint32_t references = 0;
    bool has_hash = false;
    std::list<std::uint32_t>::iterator place;  // in the free queue, while no sequence refers to it
  };

  std::span<const tokens::Token> tokens_of(const NaiveSequence& sequence, std::size_t i) const {
    return std::span(sequence.tokens).subspan(i * block_size_, block_size_);
  }
  bool hit(NaiveSequence& sequence, std::size_t i) {
    const auto known = by_hash_.find(sequence.hashes[i]);
    if (known == by_hash_.end()) return false;
    Block& block = blocks_[known->second];
    const auto tokens = tokens_of(sequence, i);
    if (!std::equal(tokens.begin(), tokens.end(), block.tokens.begin(), block.tokens.end())) return false;
    if (block.references++ == 0) free_.erase(block.place);
    sequence.table.push_back(known->second);
    return true;
  }
  std::uint32_t take_free() {
    const std::uint32_t id = free_.front();
    free_.pop_front();
    return id;
  }
  void give_back(std::uint32_t id) { blocks_[id].place = free_.insert(free_.end(), id); }

  std::vector<Block> blocks_;
  std::uint32_t block_size_;
  std::unordered_map<tokens::SequenceHash, std::uint32_t> by_hash_;
  std::list<std::uint32_t> free_;
};

}  // namespace ashlar::bench
