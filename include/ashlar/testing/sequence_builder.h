// SequenceBuilder: token sequences and their hashes for tests.
//
//   const auto prompt = SequenceBuilder().blocks(3).iota(100).build();    // tokens 100 … 111 in 3 blocks
//   const auto names = SequenceBuilder().tokens(8).salt("lora", "tenant").hashes();
//
// Two sequences share a prefix when their tokens, block size and salt do: then() continues one with other
// tokens.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "ashlar/tokens/salt.h"
#include "ashlar/tokens/sequence_hash.h"
#include "ashlar/tokens/sequence_hasher.h"
#include "ashlar/tokens/token.h"
#include "ashlar/tokens/token_sequence.h"

namespace ashlar::testing {

class SequenceBuilder {
 public:
  // Tokens per block; 4 by default.
  SequenceBuilder& block_size(std::uint32_t tokens);
  SequenceBuilder& salt(std::string_view lora, std::string_view tenant = {});
  SequenceBuilder& hasher(tokens::SequenceHasher hasher);
  // The first token of the run that tokens() and blocks() append; 1 by default. May be called before or after
  // them.
  SequenceBuilder& iota(std::uint32_t start);
  // A rising run of n tokens, or of as many as fill n blocks.
  SequenceBuilder& tokens(std::size_t n);
  SequenceBuilder& blocks(std::size_t n);
  // Exactly these tokens.
  SequenceBuilder& tokens(std::span<const std::uint32_t> tokens);
  // Ends the run: later tokens are appended to it.
  SequenceBuilder& then();

  tokens::TokenSequence build() const;
  std::vector<tokens::SequenceHash> hashes() const { return build().sequence_hashes(); }

 private:
  struct Run {
    std::uint32_t start = 1;
    std::size_t tokens = 0;
    std::size_t blocks = 0;
    std::vector<std::uint32_t> given;
  };

  std::uint32_t block_size_ = 4;
  tokens::SequenceHasher hasher_;
  std::vector<Run> runs_ = std::vector<Run>(1);
};

// A synthetic name that no tokens have: the n-th of a position. Different n, different hash.
tokens::SequenceHash numbered_hash(std::uint32_t n, std::uint32_t position = 0);
// Names 0 … n-1, at rising positions: a sequence without tokens.
std::vector<tokens::SequenceHash> numbered_hashes(std::uint32_t n);

}  // namespace ashlar::testing
