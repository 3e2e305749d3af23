// TinyModel: a deterministic transformer that computes one token at a time on the CPU. Its weights come from
// a seed; it was never trained, but what it says depends on every key and value it reads.
//
// forward() is one function for every use, and reads keys and values only through KvRows. So its logits are
// bit for bit the same however tokens were batched or cut into chunks, and wherever their KV was meanwhile:
// any difference means that wrong KV was read.
//
// Thread safety: immutable once made.
// Complexity:    forward() is O(position) in attention, O(1) in the rest.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/tokens/token.h"

namespace tiny_engine {

using ashlar::tokens::Token;

struct ModelShape {
  std::uint32_t layers = 3;
  std::uint32_t heads = 4;
  std::uint32_t head_dim = 8;
  std::uint32_t hidden = 64;  // of the feed-forward part
  std::uint64_t seed = 1;
  std::uint32_t vocabulary = 64;  // tokens; 64: the letters of tokens_of()
  // What it may say: the tokens [say_begin, say_end). The logit of any other is minus infinity.
  std::uint32_t say_begin = 0;
  std::uint32_t say_end = 64;

  std::uint32_t width() const noexcept { return heads * head_dim; }
};

// The keys and values of one sequence: a row is one head of one token, head_dim elements of bf16.
class KvRows {
 public:
  virtual ~KvRows() = default;
  // Keeps the key and value that forward() computed.
  virtual void store(std::uint32_t layer, std::uint32_t head, std::size_t position,
                     std::span<const std::uint16_t> key, std::span<const std::uint16_t> value) = 0;
  virtual const std::uint16_t* key(std::uint32_t layer, std::uint32_t head, std::size_t position) const = 0;
  virtual const std::uint16_t* value(std::uint32_t layer, std::uint32_t head, std::size_t position) const = 0;
};

class TinyModel {
 public:
  static constexpr std::uint32_t kVocabulary = 64;  // of a shape that names no other

  // Requires: say_begin < say_end <= vocabulary.
  explicit TinyModel(const ModelShape& shape);

  const ModelShape& shape() const noexcept { return shape_; }
  // The logits after `token` at `position`. Stores its KV, and reads that of every position before it.
  // Requires: token < vocabulary.
  std::vector<float> forward(Token token, std::size_t position, KvRows& rows) const;

  // What it says after `prompt`, with the logits of every token. The oracle: plain arrays, nothing shared.
  struct Speech {
    std::vector<Token> tokens;
    std::uint64_t logits = 0;  // a hash over the bits of all of them
  };
  // `choice`: the first token is the one with the choice-th best logit.
  Speech say(std::span<const Token> prompt, std::size_t count, std::size_t choice = 0) const;

 private:
  struct Layer {
    std::vector<float> query, key, value, output, up, down;
  };

  ModelShape shape_;
  std::vector<float> embedding_;
  std::vector<Layer> layers_;
};

// The token with the choice-th best logit, the lower number first where they are equal.
Token choose(std::span<const float> logits, std::size_t choice = 0);
// Adds the bits of the logits to a hash.
std::uint64_t mix_logits(std::uint64_t hash, std::span<const float> logits);

// Letters, digits, space and full stop, one token each; another character is a full stop.
std::vector<Token> tokens_of(std::string_view text);
std::string text_of(std::span<const Token> tokens);

}  // namespace tiny_engine
