// MacKey: HMAC-SHA256 (RFC 2104) under one key, for the control connections of agents.
//
// The two keyed states are kept, so that a message costs two compressions more than its hash.
//
// Thread safety: immutable. Allocates nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>

#include "tokens/sha256.h"

namespace ashlar::transfer {

class MacKey {
 public:
  using Mac = std::array<std::byte, tokens::Sha256::kSize>;

  explicit MacKey(std::span<const std::byte> key) noexcept;
  // Of the parts one after the other. Callers put lengths where parts could be divided differently.
  Mac of(std::initializer_list<std::span<const std::byte>> parts) const noexcept;

  // Whether they are equal, in a time that depends on their sizes only.
  static bool equal(std::span<const std::byte> a, std::span<const std::byte> b) noexcept;

 private:
  tokens::Sha256 inner_;
  tokens::Sha256 outer_;
};

}  // namespace ashlar::transfer
