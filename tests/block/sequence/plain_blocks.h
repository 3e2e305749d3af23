// PlainBlocks: the least that a block manager with prefix caching can do, the rules by which small engines
// live. The measure of what a SequenceManager must have room for.
//
// One queue of free blocks. A block keeps its content until it is handed out again, and full blocks are found
// by the tokens up to their end as soon as they are handed out or filled. A sequence shares what it finds, up
// to the first miss, and takes the front of the queue for the rest; the last block that was given a content
// is the one that is found. What it gives back goes to the end of the queue, the last block first.
//
// Thread safety: confined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <vector>

namespace ashlar::block::sequences {

class PlainBlocks {
 public:
  using Id = std::uint32_t;
  using Tokens = std::vector<std::uint32_t>;
  struct Sequence {
    Tokens tokens;
    std::vector<Id> table;
    std::size_t cached = 0;
  };

  // `reuse_last_token`: whether a hit may cover the last token of a sequence.
  PlainBlocks(Id blocks, std::uint32_t block_size, bool reuse_last_token);

  bool can_allocate(const Sequence& sequence) const { return free_.size() >= blocks_of(sequence); }
  // Requires: can_allocate().
  void allocate(Sequence& sequence);
  void deallocate(Sequence& sequence);
  // Whether the sequence, which has grown by a token, finds room for it.
  bool can_append(const Sequence& sequence) const { return free_.size() >= (begins_block(sequence) ? 1 : 0); }
  // Requires: can_append().
  void may_append(Sequence& sequence);

  std::size_t free() const { return free_.size(); }

 private:
  struct Block {
    unsigned references = 0;
    Tokens prefix;  // all tokens to its end; empty when it is not full
  };

  std::size_t blocks_of(const Sequence& sequence) const {
    return (sequence.tokens.size() + block_size_ - 1) / block_size_;
  }
  bool begins_block(const Sequence& sequence) const { return blocks_of(sequence) > sequence.table.size(); }
  Id take();
  void fill(Id id, const Tokens& tokens, std::size_t blocks);

  std::uint32_t block_size_;
  bool reuse_last_token_;
  std::vector<Block> blocks_;
  std::deque<Id> free_;
  std::map<Tokens, Id> found_;  // may be stale: the block's own prefix decides
};

}  // namespace ashlar::block::sequences
