#include "block/sequence/plain_blocks.h"

#include <algorithm>

namespace ashlar::block::sequences {

PlainBlocks::PlainBlocks(Id blocks, std::uint32_t block_size, bool reuse_last_token)
    : block_size_(block_size), reuse_last_token_(reuse_last_token), blocks_(blocks) {
  for (Id id = 0; id < blocks; ++id) free_.push_back(id);
}

PlainBlocks::Id PlainBlocks::take() {
  const Id id = free_.front();
  free_.pop_front();
  blocks_[id] = {.references = 1, .prefix = {}};
  return id;
}

// The block holds the last `block_size` tokens of the first `blocks` blocks.
void PlainBlocks::fill(Id id, const Tokens& tokens, std::size_t blocks) {
  blocks_[id].prefix.assign(tokens.begin(),
                            tokens.begin() + static_cast<std::ptrdiff_t>(blocks * block_size_));
  found_[blocks_[id].prefix] = id;
}

void PlainBlocks::allocate(Sequence& sequence) {
  const std::size_t full = sequence.tokens.size() / block_size_;
  const std::size_t coverable = (sequence.tokens.size() - (reuse_last_token_ ? 0 : 1)) / block_size_;
  bool miss = false;
  for (std::size_t i = 0; i < blocks_of(sequence); ++i) {
    Tokens prefix;
    if (i < full) {
      prefix.assign(sequence.tokens.begin(),
                    sequence.tokens.begin() + static_cast<std::ptrdiff_t>((i + 1) * block_size_));
    }
    const auto found = i < coverable ? found_.find(prefix) : found_.end();
    miss = miss || found == found_.end() || blocks_[found->second].prefix != prefix;
    if (miss) {
      sequence.table.push_back(take());
      if (i < full) fill(sequence.table.back(), sequence.tokens, i + 1);
      continue;
    }
    const Id id = found->second;
    if (blocks_[id].references++ == 0) free_.erase(std::find(free_.begin(), free_.end(), id));
    sequence.table.push_back(id);
    sequence.cached += block_size_;
  }
}

void PlainBlocks::deallocate(Sequence& sequence) {
  for (; !sequence.table.empty(); sequence.table.pop_back()) {
    if (--blocks_[sequence.table.back()].references == 0) free_.push_back(sequence.table.back());
  }
  sequence.cached = 0;
}

void PlainBlocks::may_append(Sequence& sequence) {
  if (begins_block(sequence)) sequence.table.push_back(take());
  if (sequence.tokens.size() % block_size_ == 0)
    fill(sequence.table.back(), sequence.tokens, sequence.table.size());
}

}  // namespace ashlar::block::sequences
