// BodyBudget: how many bytes of request bodies a server holds in memory, over all connections.
//
// An eighth is for bodies that say that they are small: a few large ones that come slowly do not shut out
// everyone.
//
// Thread safety: thread-safe.
// Complexity:    O(1).
#pragma once

#include <cstddef>

#include "backend/http/held_bytes.h"

namespace ashlar::backend::http {

class BodyBudget : public HeldBytes {
 public:
  static constexpr std::size_t kSmall = 64 << 10;

  explicit BodyBudget(std::size_t limit) noexcept : limit_(limit) {}

  // What one body can have at most.
  static std::size_t largest_body(std::size_t limit) noexcept { return limit - limit / 8; }

  // `is_small`: the whole body has at most kSmall bytes. False: there is no room, and nothing is taken.
  bool take(std::size_t bytes, bool is_small) noexcept {
    return HeldBytes::take(bytes, is_small ? limit_ : largest_body(limit_), /*one_at_least=*/false);
  }

 private:
  const std::size_t limit_;
};

}  // namespace ashlar::backend::http
