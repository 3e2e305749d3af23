// ReplyBudget: how many bytes of a proxy's own large replies are held for clients that have not read them.
//
// One reply goes whatever its size is, if no other is held.
//
// Thread safety: thread-safe.
// Complexity:    O(1).
#pragma once

#include <cstddef>

#include "backend/http/held_bytes.h"

namespace ashlar::backend::http {

class ReplyBudget : public HeldBytes {
 public:
  // Replies up to here are not counted: sockets take them.
  static constexpr std::size_t kSmall = 64 << 10;

  explicit ReplyBudget(std::size_t limit) noexcept : limit_(limit) {}

  // Room for a reply, as long as it lives.
  class Room {
   public:
    Room(ReplyBudget& budget, std::size_t bytes) noexcept
        : budget_(budget), bytes_(bytes > kSmall ? bytes : 0), is_taken_(budget.take(bytes_)) {}
    Room(const Room&) = delete;
    Room& operator=(const Room&) = delete;
    ~Room() {
      if (is_taken_) budget_.give_back(bytes_);
    }
    bool is_taken() const noexcept { return is_taken_; }

   private:
    ReplyBudget& budget_;
    const std::size_t bytes_;
    const bool is_taken_;
  };

 private:
  bool take(std::size_t bytes) noexcept {
    return bytes == 0 || HeldBytes::take(bytes, limit_, /*one_at_least=*/true);
  }

  const std::size_t limit_;
};

}  // namespace ashlar::backend::http
