#include "ashlar/tokens/partial_token_block.h"

#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::tokens {

PartialTokenBlock::PartialTokenBlock(std::uint32_t block_size, const SequenceHasher& hasher)
    : hasher_(hasher), block_size_(block_size) {
  tokens_.reserve(block_size);
}

Result<PartialTokenBlock> PartialTokenBlock::create(std::uint32_t block_size, const SequenceHasher& hasher) {
  ASHLAR_RETURN_IF_ERROR(validate_block_size(block_size));
  return PartialTokenBlock(block_size, hasher);
}

PartialTokenBlock PartialTokenBlock::after(const TokenBlock& block, const SequenceHasher& hasher) {
  PartialTokenBlock next(block.block_size(), hasher);
  next.parent_ = block.sequence_hash();
  next.parent_prefix_ = block.prefix_digest();
  next.root_ = block.root();
  return next;
}

std::optional<SequenceHash> PartialTokenBlock::sequence_hash() const {
  if (!is_full()) return std::nullopt;
  const Result<BlockHashes> hashes = hasher_.hash_block({parent_, parent_prefix_}, tokens_, runs_);
  return hashes ? std::optional(hashes->sequence) : std::nullopt;  // at the last position there is none
}

Result<void> PartialTokenBlock::add_token(Token token) {
  return add_tokens({&token, 1});
}

Result<void> PartialTokenBlock::add_tokens(std::span<const Token> tokens) {
  if (tokens.size() > remaining()) {
    return make_error(ErrorCode::kCapacity, "%zu tokens do not fit into a block that has room for %zu of %u",
                      tokens.size(), remaining(), block_size_);
  }
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  return {};
}

Result<Token> PartialTokenBlock::pop_token() {
  const Token last = empty() ? Token() : tokens_.back();
  ASHLAR_RETURN_IF_ERROR(pop_tokens(1));
  return last;
}

Result<void> PartialTokenBlock::pop_tokens(std::size_t count) {
  if (!runs_.empty()) {
    return make_error(ErrorCode::kUnsupported,
                      "block %u holds part of a multimodal item: its tokens cannot be popped", position());
  }
  if (count > size()) {
    return make_error(ErrorCode::kInvalidArgument, "cannot pop %zu tokens from a block that holds %zu", count,
                      size());
  }
  tokens_.resize(size() - count);
  return {};
}

Result<TokenBlock, Rejected<PartialTokenBlock>> PartialTokenBlock::commit() && {
  if (!is_full()) {
    Error error = make_error(ErrorCode::kNotReady,
                             "block %u holds %zu of %u tokens; only a full block can be committed",
                             position(), size(), block_size_);
    return Rejected<PartialTokenBlock>{std::move(error), std::move(*this)};
  }
  auto hashes = hasher_.hash_block({parent_, parent_prefix_}, tokens_, runs_);
  if (!hashes) return Rejected<PartialTokenBlock>{std::move(hashes).error(), std::move(*this)};
  return take_block(*hashes);
}

TokenBlock PartialTokenBlock::take_block(const BlockHashes& hashes) {
  ASHLAR_DCHECK(tokens_.size() == block_size_, "a block of %zu tokens is sealed, the size is %u",
                tokens_.size(), block_size_);
  ASHLAR_DCHECK(hashes.prefix.is_known(), "block %u has a name but no prefix digest", position());
  ASHLAR_DCHECK(hashes.sequence.position() == position(), "block %u is named as block %u", position(),
                hashes.sequence.position());
  ASHLAR_DCHECK(parent_.has_value() == root_.has_value(), "block %u has a parent or a root, and not both",
                position());
  TokenBlock block;
  block.tokens_ = std::move(tokens_);
  block.local_ = hashes.local;
  block.hash_ = hashes.sequence;
  block.parent_ = parent_.value_or(SequenceHash());
  block.root_ = root_.value_or(hashes.sequence);
  block.prefix_ = hashes.prefix;
  block.prefix_key_ = hasher_.prefix_key().fingerprint();
  return block;
}

TokenBlock PartialTokenBlock::commit_and_advance(std::vector<Token> storage) {
  TokenBlock block = take_block(hasher_.hash_block({parent_, parent_prefix_}, tokens_, runs_).value());
  tokens_ = std::move(storage);
  runs_.clear();
  parent_ = block.sequence_hash();
  parent_prefix_ = block.prefix_digest();
  root_ = block.root();
  return block;
}

}  // namespace ashlar::tokens
