// PromptCache: tokens of prompts by a keyed hash of what they were made of, and the hashes of their blocks,
// with the least recently used ones evicted. No text is kept.
//
// Thread safety: thread-compatible.
// Complexity:    O(1), but drop_joined() and drop_all(): O(entries). Memory: at most max_bytes; lists that
//                callers still hold are not counted once evicted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"
#include "tokens/siphash128.h"

namespace ashlar::service {

using TokenList = std::shared_ptr<const std::vector<tokens::Token>>;
using PromptDigest = tokens::SipHash128::Digest;

// The blocks of a prompt, as they were hashed last. Of the hasher only a keyed digest is kept: the salt of a
// request may be as long as its body.
struct HashedPrompt {
  PromptDigest hasher = {};
  std::uint32_t block_size = 0;
  std::vector<tokens::LocalHash> locals;
};

// Of all full blocks. `begun`, which may be null, has the blocks of a prompt whose first `shared` tokens are
// the same: what it has is not hashed again.
std::shared_ptr<const HashedPrompt> hash_from(const std::shared_ptr<const HashedPrompt>& begun,
                                              std::size_t shared, std::span<const tokens::Token> tokens,
                                              const tokens::SequenceHasher& hasher, std::uint32_t block_size);

struct PromptDigestHash {
  std::size_t operator()(const PromptDigest& digest) const noexcept { return digest.lo; }
};

class PromptCache {
 public:
  explicit PromptCache(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // Null: unknown. Counts as a use.
  TokenList find(const PromptDigest& key);
  // Replaces what was there. `model` and `is_joined` are for drop_joined(); `stood_in`, of what is joined: as
  // in KnownPrompt.
  void put(const PromptDigest& key, TokenList tokens, std::uint64_t model, bool is_joined,
           bool stood_in = false);
  // Null: not hashed, or unknown. No use.
  std::shared_ptr<const HashedPrompt> hashed(const PromptDigest& key) const;
  // As it was put; false: unknown. No use.
  bool stood_in(const PromptDigest& key) const;
  // Of an entry that has these tokens; else nothing. Replaces what was there.
  void set_hashed(const PromptDigest& key, const TokenList& tokens,
                  std::shared_ptr<const HashedPrompt> hashed);
  // Drops the entries of a model that were put together of parts.
  void drop_joined(std::uint64_t model);
  // The same for all of them.
  void drop_all(std::uint64_t model);

  std::size_t bytes() const noexcept { return bytes_; }
  std::size_t size() const noexcept { return entries_.size(); }
  std::uint64_t evicted() const noexcept { return evicted_; }

  // What an entry counts for, its place in the list and the table included.
  static std::size_t bytes_of(const std::vector<tokens::Token>& tokens);

 private:
  struct Entry {
    PromptDigest key;
    TokenList tokens;
    std::uint64_t model = 0;
    bool is_joined = false;
    bool stood_in = false;
    std::shared_ptr<const HashedPrompt> hashed = {};
    std::size_t bytes = 0;
  };
  using Entries = std::list<Entry>;

  void erase(Entries::iterator entry);
  // Requires: no entry has more than max_bytes_.
  void make_room();

  std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::uint64_t evicted_ = 0;
  Entries entries_;  // the most recently used first
  std::unordered_map<PromptDigest, Entries::iterator, PromptDigestHash> places_;
};

}  // namespace ashlar::service
