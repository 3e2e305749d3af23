// KernelCopy: copies between this process and the memory of another through the kernel, many pieces at once.
//
// Thread safety: confined.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ashlar/base/result.h"
#include "ashlar/transfer/executor.h"
#include "base/owned_fd.h"

namespace ashlar::transfer {

enum class KernelCopyDirection : std::uint8_t { kRead, kWrite };

class KernelCopy {
 public:
  // `process` passes when the process of `pid` ends. What was moved is added to `stats`.
  KernelCopy(pid_t pid, const OwnedFd& process, KernelCopyDirection direction, TransferStats* stats) noexcept
      : pid_(pid), process_(process), direction_(direction), stats_(stats) {}

  // Copies now or later: flush() ends it. Errors: kUnavailable: the process or its memory is gone, or the
  // system forbids the copy.
  Result<void> add(std::byte* local, std::byte* remote, std::uint64_t bytes);
  Result<void> flush();

 private:
  static constexpr std::size_t kPieces = 1024;  // UIO_MAXIOV
  struct Pieces {
    std::array<iovec, kPieces> list;
    std::size_t first = 0;
    std::size_t end = 0;

    void add(std::byte* address, std::uint64_t bytes) noexcept;
    void advance(std::uint64_t bytes) noexcept;
  };

  const pid_t pid_;
  const OwnedFd& process_;
  const KernelCopyDirection direction_;
  TransferStats* const stats_;
  Pieces local_;
  Pieces remote_;
  std::uint64_t bytes_ = 0;  // of both lists
};

}  // namespace ashlar::transfer
