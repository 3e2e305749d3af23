// ThreadNumber: a small number for every thread that asks, dense over the process, so that per-thread data
// can lie in arrays.
//
// A thread takes the lowest free number at its first call and gives it back when it ends. What the thread did
// before that happens before everything that the next owner of the number does after its first call.
//
// Thread safety: thread-safe, without locks. Complexity: one thread-local load; a walk over a bitmap of
// kLimit bits at a thread's first call.
#pragma once

#include <cstdint>

namespace ashlar::index::detail {

class ThreadNumber {
 public:
  // Numbers are below this.
  static constexpr std::uint32_t kLimit = 8192;
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

  // The calling thread's number; kNone while all are taken, and in a thread that is past giving its number
  // back.
  static std::uint32_t mine() noexcept {
    const std::uint32_t number = mine_ - 1;
    if (number < kLimit) [[likely]]
      return number;
    return take();
  }

 private:
  struct Owner;

  static constexpr std::uint32_t kGone = 0xFFFF'FFFFu;

  static std::uint32_t take() noexcept;

  // The number + 1; 0 before the first call, kGone after the number went back.
  static inline constinit thread_local std::uint32_t mine_ = 0;
};

}  // namespace ashlar::index::detail
