// ThreadNumber: a small number for every thread that asks, dense over the process, so that per-thread data
// can be stored in arrays.
//
// A thread takes the lowest free number at its first call and returns it when it ends. Everything the thread
// did before that happens before everything the number's next owner does after its first call.
//
// Thread safety: thread-safe, lock-free. Complexity: one thread-local load; a scan of a bitmap of kLimit bits
// at a thread's first call.
#pragma once

#include <cstdint>

namespace ashlar::index::detail {

class ThreadNumber {
 public:
  // Numbers are below this.
  static constexpr std::uint32_t kLimit = 8192;
  static constexpr std::uint32_t kNone = 0xFFFF'FFFFu;

  // The calling thread's number; kNone while all are taken, and in a thread that has already returned its
  // number.
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

  // The number + 1; 0 before the first call, kGone after the number was returned.
  static inline constinit thread_local std::uint32_t mine_ = 0;
};

}  // namespace ashlar::index::detail
