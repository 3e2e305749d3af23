// TokenBlock: a full block of tokens with its hashes. Only TokenSequence and PartialTokenBlock create one, so
// its hashes always belong to its tokens.
//
// Thread safety: immutable.
// Complexity:    every function is O(1); a copy copies the tokens.
// Invariant:     sequence_hash() and prefix_digest() cover all tokens from position 0 to the end of this
//                block.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ashlar/tokens/prefix_digest.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/token.h"

namespace ashlar::tokens {

class TokenBlock {
 public:
  std::span<const Token> tokens() const noexcept { return tokens_; }
  std::uint32_t block_size() const noexcept { return static_cast<std::uint32_t>(tokens_.size()); }
  // Of these tokens alone.
  LocalHash local_hash() const noexcept { return local_; }
  const SequenceHash& sequence_hash() const noexcept { return hash_; }
  // Of all tokens from the start of the sequence to the end of this block; always known.
  const PrefixDigest& prefix_digest() const noexcept { return prefix_; }
  // The same for those who compare digests of this key: unknown when it was made under another key, and can
  // agree with none of theirs. Under keyed128 the scheme's key made it, and `key` does not count.
  PrefixDigest prefix_digest_under(const PrefixKey& key) const noexcept {
    return hash_.is_keyed() || prefix_key_ == key.fingerprint() ? prefix_ : PrefixDigest();
  }
  // Index of the block in its sequence.
  std::uint32_t position() const noexcept { return hash_.position(); }
  // The preceding block of its sequence; nullopt at position 0.
  std::optional<SequenceHash> parent() const noexcept {
    return position() == 0 ? std::nullopt : std::optional<SequenceHash>(parent_);
  }
  // The first block of the sequence: the prefix group.
  const SequenceHash& root() const noexcept { return root_; }

 private:
  friend class TokenSequence;
  friend class PartialTokenBlock;
  TokenBlock() = default;

  std::vector<Token> tokens_;
  LocalHash local_;
  SequenceHash hash_;
  SequenceHash parent_;
  SequenceHash root_;
  PrefixDigest prefix_;
  std::uint64_t prefix_key_ = 0;  // fingerprint
};

}  // namespace ashlar::tokens
