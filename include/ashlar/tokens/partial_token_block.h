// PartialTokenBlock: a block of a sequence that is still being filled.
//
// It holds up to block_size tokens and knows what precedes it. commit() turns a full one into a TokenBlock;
// the next one starts with after(). Storage for a whole block is allocated when the partial block is made, so
// adding and popping tokens never allocates, and commit() hands that storage to the TokenBlock.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::tokens {

class PartialTokenBlock {
 public:
  // The empty first block of a sequence. Errors: kInvalidArgument when the block size is not in 1..65536.
  static Result<PartialTokenBlock> create(std::uint32_t block_size, const SequenceHasher& hasher = {});
  // The empty block that follows `block`. Requires: the hasher that made `block`.
  static PartialTokenBlock after(const TokenBlock& block, const SequenceHasher& hasher);

  std::uint32_t block_size() const noexcept { return block_size_; }
  const SequenceHasher& hasher() const noexcept { return hasher_; }
  // The preceding block, and the first block of the sequence; nullopt in the first block.
  const std::optional<SequenceHash>& parent() const noexcept { return parent_; }
  const std::optional<SequenceHash>& root() const noexcept { return root_; }
  // The index this block has in its sequence.
  std::uint32_t position() const noexcept { return parent_ ? parent_->position() + 1 : 0; }

  std::span<const Token> tokens() const noexcept { return tokens_; }
  std::size_t size() const noexcept { return tokens_.size(); }
  bool empty() const noexcept { return tokens_.empty(); }
  bool is_full() const noexcept { return tokens_.size() == block_size_; }
  std::size_t remaining() const noexcept { return block_size_ - tokens_.size(); }

  // The name that commit() will give the block; nullopt unless it is full. O(block size).
  std::optional<SequenceHash> sequence_hash() const;

  // Errors: kCapacity, with nothing added, when the tokens do not all fit.
  Result<void> add_token(Token token);
  Result<void> add_tokens(std::span<const Token> tokens);

  // Removes tokens from the end. Errors, which change nothing: kInvalidArgument when there are fewer,
  // kUnsupported when a multimodal run touches this block.
  Result<Token> pop_token();
  Result<void> pop_tokens(std::size_t count);

  // Errors: kNotReady when the block is not full; kInvalidArgument when the sequence is at its last position.
  [[nodiscard]] Result<TokenBlock, Rejected<PartialTokenBlock>> commit() &&;

 private:
  friend class TokenSequence;
  PartialTokenBlock(std::uint32_t block_size, const SequenceHasher& hasher);

  // Moves these tokens into a block. Requires: full; the hashes of this block.
  TokenBlock take_block(const BlockHashes& hashes);
  // commit() in place: returns the block and becomes the empty one after it, which fills `storage`.
  // Requires: full, and not at the last position; storage is empty and has room for block_size tokens.
  TokenBlock commit_and_advance(std::vector<Token> storage);

  std::vector<Token> tokens_;        // capacity: block_size_
  std::vector<MultimodalRun> runs_;  // those that touch this block, by offset in the sequence
  SequenceHasher hasher_;
  std::optional<SequenceHash> parent_;
  PrefixDigest parent_prefix_;
  std::optional<SequenceHash> root_;
  std::uint32_t block_size_;
};

}  // namespace ashlar::tokens
