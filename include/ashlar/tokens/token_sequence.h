// TokenSequence: the tokens of one request, cut into blocks and hashed as they arrive.
//
// It owns the full blocks and one partial block at the end. Every operation that fails changes nothing.
//
// Thread safety: thread-compatible.
// Complexity:    append() is O(1); the one that completes a block also hashes it, O(block size). extend()
//                does the same for many tokens and hashes whole blocks in batches.
// Allocation:    after reserve(n), append() and extend() allocate nothing until the sequence has more than n
//                blocks, block boundaries included; shortening and reset() keep what is reserved. Beyond
//                that, a block boundary costs one allocation, the storage of the next block, plus the growth
//                of the block list, amortised O(1); between boundaries append() allocates nothing.
//                Multimodal runs have their own storage, which reserve() does not cover. A copy of a sequence
//                has nothing reserved, and its partial block may grow as well.
// Invariant:     blocks()[i].position() == i, and the hashes equal those of hashing tokens() from the start.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "ashlar/base/result.h"
#include "ashlar/tokens/multimodal_run.h"
#include "ashlar/tokens/partial_token_block.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"
#include "ashlar/tokens/token_block.h"

namespace ashlar::tokens {

// Indexes of blocks, [begin, end).
struct BlockRange {
  std::size_t begin = 0;
  std::size_t end = 0;

  std::size_t size() const noexcept { return end - begin; }
  bool empty() const noexcept { return begin == end; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

class TokenSequence {
 public:
  // The result of into_parts(): the full blocks and the tokens after them.
  struct Parts {
    std::vector<TokenBlock> blocks;
    PartialTokenBlock partial;
  };

  // An empty sequence. Errors: kInvalidArgument when the block size is not in 1..65536.
  static Result<TokenSequence> create(std::uint32_t block_size, const SequenceHasher& hasher = {});
  // A sequence of `tokens`, of which `runs` stand for other items (multimodal_run.h).
  // Errors: kInvalidArgument for the block size, for runs that validate_runs() refuses, and for more blocks
  // than positions.
  static Result<TokenSequence> create(std::span<const Token> tokens, std::uint32_t block_size,
                                      const SequenceHasher& hasher = {},
                                      std::span<const MultimodalRun> runs = {});
  static Result<TokenSequence> create(std::span<const std::uint32_t> tokens, std::uint32_t block_size,
                                      const SequenceHasher& hasher = {},
                                      std::span<const MultimodalRun> runs = {});

  // Adds one token. Returns the index of the block it completed, if it did.
  // Errors: kInvalidArgument when the block would be past SequenceHash::kMaxPosition.
  Result<std::optional<std::size_t>> append(Token token);
  // Adds tokens, of which `runs` (offsets from the start of the sequence) stand for other items. Returns the
  // indexes of the blocks that were completed. Errors: as create().
  Result<BlockRange> extend(std::span<const Token> tokens, std::span<const MultimodalRun> runs = {});
  Result<BlockRange> extend(std::span<const std::uint32_t> tokens, std::span<const MultimodalRun> runs = {});

  // Shorten the sequence: to its first `length` tokens, by its last `count` tokens, by its last token. Tokens
  // of a block that is cut return to the partial block. truncate() and unwind() refuse more tokens than there
  // are (kInvalidArgument); pop() of an empty sequence returns nothing. All refuse sequences with multimodal
  // runs (kUnsupported).
  Result<void> truncate(std::size_t length);
  Result<void> unwind(std::size_t count);
  Result<std::optional<Token>> pop();
  // Clears tokens and runs; block size, hasher and reserved memory stay.
  void reset();
  // Reserves for `blocks` full blocks in total, existing ones included, and the partial block after them:
  // room in the block list and storage for the tokens, one allocation per block. Never shrinks.
  void reserve(std::size_t blocks);

  std::uint32_t block_size() const noexcept { return partial_.block_size(); }
  const SequenceHasher& hasher() const noexcept { return partial_.hasher(); }
  std::span<const MultimodalRun> runs() const noexcept { return runs_; }

  // In tokens.
  std::size_t size() const noexcept { return blocks_.size() * block_size() + partial_.size(); }
  bool empty() const noexcept { return size() == 0; }

  // The full blocks; valid until the sequence changes.
  std::span<const TokenBlock> blocks() const noexcept { return blocks_; }
  // The block being filled; never full.
  const PartialTokenBlock& partial() const noexcept { return partial_; }

  // Requires: index < size().
  Token token_at(std::size_t index) const;
  // A copy of the tokens [begin, end). Errors: kInvalidArgument when begin > end or end > size().
  Result<std::vector<Token>> tokens_at(std::size_t begin, std::size_t end) const;
  // A copy of all tokens.
  std::vector<Token> tokens() const;

  // The names of the full blocks, in order.
  std::vector<SequenceHash> sequence_hashes() const;
  // Writes as many of them as fit into `out` and returns how many. Allocates nothing.
  std::size_t sequence_hashes(std::span<SequenceHash> out) const noexcept;

  [[nodiscard]] Parts into_parts() &&;

 private:
  // Token storage of future blocks: empty vectors with room for one block each. A copy has none.
  class SpareStorage {
   public:
    SpareStorage() = default;
    SpareStorage(const SpareStorage&) noexcept {}
    SpareStorage& operator=(const SpareStorage& other) noexcept;
    SpareStorage(SpareStorage&&) noexcept = default;
    SpareStorage& operator=(SpareStorage&&) noexcept = default;
    ~SpareStorage() = default;

    // Ensures at least `spares`, and keeps up to `kept` of those returned.
    void reserve(std::size_t spares, std::size_t kept, std::uint32_t block_size);
    // A spare; a new one when there is none.
    std::vector<Token> take(std::uint32_t block_size);
    // Keeps the storage of a block if there is room for it, without allocating.
    void put_back(std::vector<Token> storage, std::uint32_t block_size) noexcept;

   private:
    std::vector<std::vector<Token>> spares_;  // capacity: how many are kept
  };

  explicit TokenSequence(PartialTokenBlock partial) : partial_(std::move(partial)) {}

  Result<void> check_room(std::size_t tokens) const;
  Result<void> check_no_runs(const char* operation) const;
  // The checks of extend() and the insertion of the runs; then the tokens, in one or several pieces.
  Result<void> begin_extend(std::size_t tokens, std::span<const MultimodalRun> runs);
  void extend_piece(std::span<const Token> tokens);
  void complete_partial();
  void append_blocks(std::span<const Token> tokens);
  // Makes room for `count` more blocks; at least doubles the list's capacity when it grows.
  void grow_block_list(std::size_t count);
  // Removes the full blocks from index `first` on and keeps their storage.
  void drop_blocks_from(std::size_t first) noexcept;
  void attach_runs_to_partial();

  std::vector<TokenBlock> blocks_;
  std::vector<MultimodalRun> runs_;
  PartialTokenBlock partial_;
  SpareStorage spares_;
};

}  // namespace ashlar::tokens
