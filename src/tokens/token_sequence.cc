// extend() works in three parts: fill the partial block, hash the whole blocks that follow as a batch, keep
// the rest as the new partial block. Sequences with multimodal runs go block by block, since their blocks
// differ in encoding. Integers of other types go through a stack buffer, piece by piece.
//
// Every full block owns the vector that collected its tokens. reserve() creates such vectors ahead; a dropped
// block returns its own.
#include "ashlar/tokens/token_sequence.h"

#include <algorithm>
#include <array>
#include <utility>

#include "ashlar/base/check.h"

namespace ashlar::tokens {
namespace {

constexpr std::size_t kConvertedTokens = 4096;  // at once, on the stack

template <class T>
Result<TokenSequence> sequence_of(std::span<const T> tokens, std::uint32_t block_size,
                                  const SequenceHasher& hasher, std::span<const MultimodalRun> runs) {
  ASHLAR_TRY(TokenSequence sequence, TokenSequence::create(block_size, hasher));
  ASHLAR_RETURN_IF_ERROR(sequence.extend(tokens, runs));
  return sequence;
}

}  // namespace

TokenSequence::SpareStorage& TokenSequence::SpareStorage::operator=(const SpareStorage& other) noexcept {
  if (this != &other) spares_ = std::vector<std::vector<Token>>();
  return *this;
}

void TokenSequence::SpareStorage::reserve(std::size_t spares, std::size_t kept, std::uint32_t block_size) {
  spares_.reserve(std::max(spares, kept));
  while (spares_.size() < spares) spares_.emplace_back().reserve(block_size);
}

std::vector<Token> TokenSequence::SpareStorage::take(std::uint32_t block_size) {
  std::vector<Token> storage;
  if (!spares_.empty()) {
    storage = std::move(spares_.back());
    spares_.pop_back();
  }
  storage.reserve(block_size);
  return storage;
}

void TokenSequence::SpareStorage::put_back(std::vector<Token> storage, std::uint32_t block_size) noexcept {
  if (spares_.size() == spares_.capacity() || storage.capacity() < block_size) return;
  storage.clear();
  spares_.push_back(std::move(storage));
}

Result<TokenSequence> TokenSequence::create(std::uint32_t block_size, const SequenceHasher& hasher) {
  ASHLAR_TRY(auto partial, PartialTokenBlock::create(block_size, hasher));
  return TokenSequence(std::move(partial));
}

Result<TokenSequence> TokenSequence::create(std::span<const Token> tokens, std::uint32_t block_size,
                                            const SequenceHasher& hasher,
                                            std::span<const MultimodalRun> runs) {
  return sequence_of(tokens, block_size, hasher, runs);
}

Result<TokenSequence> TokenSequence::create(std::span<const std::uint32_t> tokens, std::uint32_t block_size,
                                            const SequenceHasher& hasher,
                                            std::span<const MultimodalRun> runs) {
  return sequence_of(tokens, block_size, hasher, runs);
}

Result<std::optional<std::size_t>> TokenSequence::append(Token token) {
  ASHLAR_RETURN_IF_ERROR(check_room(1));
  partial_.tokens_.push_back(token);
  if (!partial_.is_full()) return std::optional<std::size_t>();
  complete_partial();
  return std::optional<std::size_t>(blocks_.size() - 1);
}

Result<BlockRange> TokenSequence::extend(std::span<const Token> tokens, std::span<const MultimodalRun> runs) {
  ASHLAR_RETURN_IF_ERROR(begin_extend(tokens.size(), runs));
  const std::size_t first = blocks_.size();
  extend_piece(tokens);
  return BlockRange{first, blocks_.size()};
}

Result<BlockRange> TokenSequence::extend(std::span<const std::uint32_t> tokens,
                                         std::span<const MultimodalRun> runs) {
  ASHLAR_RETURN_IF_ERROR(begin_extend(tokens.size(), runs));
  const std::size_t first = blocks_.size();
  grow_block_list((partial_.size() + tokens.size()) / block_size());
  std::array<Token, kConvertedTokens> buffer;
  // Whole blocks where some fit; a piece of a larger block goes to the partial block.
  const std::size_t piece_tokens =
      block_size() <= buffer.size() ? buffer.size() / block_size() * block_size() : buffer.size();
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), piece_tokens));
    std::transform(piece.begin(), piece.end(), buffer.begin(),
                   [](std::uint32_t value) { return Token(value); });
    extend_piece(std::span(buffer).first(piece.size()));
    tokens = tokens.subspan(piece.size());
  }
  return BlockRange{first, blocks_.size()};
}

Result<void> TokenSequence::begin_extend(std::size_t tokens, std::span<const MultimodalRun> runs) {
  if (auto room = check_room(tokens); !room) return room;
  if (auto valid = validate_runs(runs, size(), size() + tokens); !valid) return valid;
  runs_.insert(runs_.end(), runs.begin(), runs.end());
  return {};
}

void TokenSequence::extend_piece(std::span<const Token> tokens) {
  while (!tokens.empty()) {
    const std::size_t whole_blocks = tokens.size() / block_size();
    if (partial_.empty() && runs_.empty() && whole_blocks > 0) {
      append_blocks(tokens.first(whole_blocks * block_size()));
      tokens = tokens.subspan(whole_blocks * block_size());
      continue;
    }
    const std::size_t count = std::min(tokens.size(), partial_.remaining());
    partial_.tokens_.insert(partial_.tokens_.end(), tokens.begin(),
                            tokens.begin() + static_cast<std::ptrdiff_t>(count));
    tokens = tokens.subspan(count);
    if (!runs_.empty()) attach_runs_to_partial();
    if (partial_.is_full()) complete_partial();
  }
}

Result<void> TokenSequence::truncate(std::size_t length) {
  if (auto allowed = check_no_runs("truncated"); !allowed) return allowed;
  if (length > size()) {
    return make_error(ErrorCode::kInvalidArgument, "cannot truncate a sequence of %zu tokens to %zu", size(),
                      length);
  }
  const std::size_t kept_blocks = length / block_size();
  const std::size_t kept_tokens = length % block_size();
  if (kept_blocks < blocks_.size()) {
    TokenBlock& cut = blocks_[kept_blocks];
    partial_.parent_ = cut.parent();
    partial_.parent_prefix_ = kept_blocks == 0 ? PrefixDigest() : blocks_[kept_blocks - 1].prefix_digest();
    partial_.root_ = kept_blocks == 0 ? std::nullopt : std::optional<SequenceHash>(cut.root());
    if (kept_tokens > 0) std::swap(partial_.tokens_, cut.tokens_);
    drop_blocks_from(kept_blocks);
  }
  partial_.tokens_.resize(kept_tokens);
  ASHLAR_DCHECK(size() == length, "%zu tokens are left where %zu were asked for", size(), length);
  ASHLAR_DCHECK(blocks_.empty() == !partial_.parent_.has_value(),
                "the open block behind %zu full ones names a parent where there is none, or none",
                blocks_.size());
  return {};
}

Result<void> TokenSequence::unwind(std::size_t count) {
  if (auto allowed = check_no_runs("unwound"); !allowed) return allowed;
  if (count > size()) {
    return make_error(ErrorCode::kInvalidArgument, "cannot unwind %zu tokens of a sequence of %zu", count,
                      size());
  }
  return truncate(size() - count);
}

Result<std::optional<Token>> TokenSequence::pop() {
  ASHLAR_RETURN_IF_ERROR(check_no_runs("popped"));
  if (empty()) return std::optional<Token>();
  const Token last = token_at(size() - 1);
  truncate(size() - 1).value();
  return std::optional<Token>(last);
}

void TokenSequence::reserve(std::size_t blocks) {
  blocks_.reserve(blocks);
  partial_.tokens_.reserve(block_size());
  // The next block reuses the partial block's storage, so the last one leaves a spare to the partial block.
  const std::size_t further = blocks - std::min(blocks, blocks_.size());
  spares_.reserve(further, blocks, block_size());
}

void TokenSequence::reset() {
  drop_blocks_from(0);
  runs_.clear();
  partial_.tokens_.clear();
  partial_.runs_.clear();
  partial_.parent_.reset();
  partial_.parent_prefix_ = PrefixDigest();
  partial_.root_.reset();
}

Token TokenSequence::token_at(std::size_t index) const {
  ASHLAR_CHECK(index < size(), "token %zu of a sequence of %zu", index, size());
  const std::size_t block = index / block_size();
  const auto tokens = block < blocks_.size() ? blocks_[block].tokens() : partial_.tokens();
  return tokens[index % block_size()];
}

Result<std::vector<Token>> TokenSequence::tokens_at(std::size_t begin, std::size_t end) const {
  if (begin > end || end > size()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "tokens %zu to %zu are not a range of a sequence of %zu tokens", begin, end, size());
  }
  std::vector<Token> copy;
  copy.reserve(end - begin);
  while (begin < end) {
    const std::size_t block = begin / block_size();
    const auto tokens = block < blocks_.size() ? blocks_[block].tokens() : partial_.tokens();
    const auto part = tokens.subspan(begin % block_size());
    const std::size_t count = std::min(part.size(), end - begin);
    copy.insert(copy.end(), part.begin(), part.begin() + static_cast<std::ptrdiff_t>(count));
    begin += count;
  }
  return copy;
}

std::vector<Token> TokenSequence::tokens() const {
  return tokens_at(0, size()).value();
}

std::vector<SequenceHash> TokenSequence::sequence_hashes() const {
  std::vector<SequenceHash> hashes(blocks_.size());
  sequence_hashes(hashes);
  return hashes;
}

std::size_t TokenSequence::sequence_hashes(std::span<SequenceHash> out) const noexcept {
  const std::size_t count = std::min(out.size(), blocks_.size());
  for (std::size_t i = 0; i < count; ++i) out[i] = blocks_[i].sequence_hash();
  return count;
}

TokenSequence::Parts TokenSequence::into_parts() && {
  return {std::move(blocks_), std::move(partial_)};
}

Result<void> TokenSequence::check_room(std::size_t tokens) const {
  constexpr std::size_t kMaxBlocks = std::size_t{SequenceHash::kMaxPosition} + 1;
  // Blocks never exceed kMaxBlocks, so the tokens that still fit are:
  const std::size_t room = (kMaxBlocks - blocks_.size() + 1) * block_size() - 1 - partial_.size();
  if (tokens <= room) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "%zu more tokens would complete more than %zu blocks of %u tokens, all a sequence can have", tokens,
      kMaxBlocks, block_size());
}

Result<void> TokenSequence::check_no_runs(const char* operation) const {
  if (runs_.empty()) return {};
  return make_error(ErrorCode::kUnsupported,
                    "a sequence with %zu multimodal runs cannot be %s; build it again", runs_.size(),
                    operation);
}

void TokenSequence::complete_partial() {
  // check_room() made sure that the block has a position.
  blocks_.push_back(partial_.commit_and_advance(spares_.take(block_size())));
}

void TokenSequence::grow_block_list(std::size_t count) {
  const std::size_t needed = blocks_.size() + count;
  if (needed > blocks_.capacity()) blocks_.reserve(std::max(needed, 2 * blocks_.capacity()));
}

void TokenSequence::drop_blocks_from(std::size_t first) noexcept {
  const auto begin = blocks_.begin() + static_cast<std::ptrdiff_t>(first);
  for (auto block = begin; block != blocks_.end(); ++block) {
    spares_.put_back(std::move(block->tokens_), block_size());
  }
  blocks_.erase(begin, blocks_.end());
}

void TokenSequence::append_blocks(std::span<const Token> tokens) {
  std::array<BlockHashes, 64> hashes;
  const std::size_t piece_tokens = hashes.size() * block_size();
  grow_block_list(tokens.size() / block_size());
  while (!tokens.empty()) {
    const auto piece = tokens.first(std::min(tokens.size(), piece_tokens));
    const std::size_t count =
        hasher()
            .hash_blocks({partial_.parent_, partial_.parent_prefix_}, piece, block_size(), hashes)
            .value();
    for (std::size_t i = 0; i < count; ++i) {
      const auto content = piece.subspan(i * block_size(), block_size());
      TokenBlock block;
      block.tokens_ = spares_.take(block_size());
      block.tokens_.assign(content.begin(), content.end());
      block.local_ = hashes[i].local;
      block.hash_ = hashes[i].sequence;
      block.parent_ = partial_.parent_.value_or(SequenceHash());
      block.root_ = partial_.root_.value_or(hashes[i].sequence);
      block.prefix_ = hashes[i].prefix;
      block.prefix_key_ = hasher().prefix_key().fingerprint();
      partial_.parent_ = block.hash_;
      partial_.parent_prefix_ = block.prefix_;
      partial_.root_ = block.root_;
      blocks_.push_back(std::move(block));
    }
    ASHLAR_DCHECK(partial_.position() == blocks_.size(), "the open block is number %u behind %zu full ones",
                  partial_.position(), blocks_.size());
    tokens = tokens.subspan(piece.size());
  }
}

void TokenSequence::attach_runs_to_partial() {
  const std::uint64_t begin = std::uint64_t{blocks_.size()} * block_size();
  const auto touching = runs_touching(runs_, begin, begin + partial_.size());
  partial_.runs_.assign(touching.begin(), touching.end());
}

}  // namespace ashlar::tokens
