// CacheGroup: layers of a model that keep their KV in the same way. Models with one kind of attention have
// one group.
//
// Each group of a request has a block table of its own; all take their blocks from one pool and have one
// block size. A group's blocks are named by the sequence hash as SequenceHash::in_group() gives it, so equal
// tokens of two groups never meet; group 0 has the plain name.
//
// Thread safety: immutable value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace ashlar::block {

struct CacheGroup {
  // How many tokens a token looks back at, itself included. Nothing: all of them.
  std::optional<std::uint32_t> window;

  static constexpr CacheGroup full_attention() noexcept { return {}; }
  static constexpr CacheGroup sliding_window(std::uint32_t tokens) noexcept { return {tokens}; }

  // Leading tokens that nobody looks at any more when `computed` tokens have their KV.
  std::size_t tokens_outside(std::size_t computed) const noexcept {
    return !window || computed + 1 <= *window ? 0 : computed + 1 - *window;
  }
  // How many blocks before a prefix of `blocks` blocks a hit of that length needs.
  std::size_t blocks_needed(std::size_t blocks, std::uint32_t block_size) const noexcept {
    return blocks - tokens_outside(blocks * block_size) / block_size;
  }

  friend bool operator==(const CacheGroup&, const CacheGroup&) = default;
};

}  // namespace ashlar::block
