// The lists of both sides have the same bytes, but not the same pieces: neighbours are joined on each side by
// itself.
#include "transfer/remote/kernel_copy.h"

#include <cerrno>
#include <system_error>

#include "ashlar/base/check.h"
#include "base/wide.h"
#include "transfer/remote/loopback_address.h"

namespace ashlar::transfer {
namespace {

// A call moves no more than this, so that a cancel is not late.
constexpr std::uint64_t kMaxCallBytes = std::uint64_t{64} << 20;

}  // namespace

void KernelCopy::Pieces::add(std::byte* address, std::uint64_t bytes) noexcept {
  if (end > first && static_cast<std::byte*>(list[end - 1].iov_base) + list[end - 1].iov_len == address) {
    list[end - 1].iov_len += bytes;
    return;
  }
  list[end++] = {address, bytes};
}

void KernelCopy::Pieces::advance(std::uint64_t bytes) noexcept {
  while (bytes > 0) {
    ASHLAR_DCHECK(first < end, "the kernel moved %llu bytes more than it was given", wide(bytes));
    iovec& piece = list[first];
    if (bytes < piece.iov_len) {
      piece.iov_base = static_cast<std::byte*>(piece.iov_base) + bytes;
      piece.iov_len -= bytes;
      return;
    }
    bytes -= piece.iov_len;
    ++first;
  }
}

Result<void> KernelCopy::add(std::byte* local, std::byte* remote, std::uint64_t bytes) {
  if (local_.end == kPieces || remote_.end == kPieces || bytes_ >= kMaxCallBytes)
    ASHLAR_RETURN_IF_ERROR(flush());
  local_.add(local, bytes);
  remote_.add(remote, bytes);
  bytes_ += bytes;
  return {};
}

Result<void> KernelCopy::flush() {
  while (bytes_ > 0) {
    // A pid is given to another process only after the old one has ended.
    if (process_ended(process_))
      return make_error(ErrorCode::kUnavailable, "process %d has ended", static_cast<int>(pid_));
    const iovec* const local = local_.list.data() + local_.first;
    const iovec* const remote = remote_.list.data() + remote_.first;
    const std::size_t locals = local_.end - local_.first;
    const std::size_t remotes = remote_.end - remote_.first;
    const ssize_t moved = direction_ == KernelCopyDirection::kRead
                              ? process_vm_readv(pid_, local, locals, remote, remotes, 0)
                              : process_vm_writev(pid_, local, locals, remote, remotes, 0);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) {
      const int error = moved < 0 ? errno : EFAULT;
      return make_error(ErrorCode::kUnavailable, "the memory of process %d cannot be reached: %s",
                        static_cast<int>(pid_), std::generic_category().message(error).c_str());
    }
    const auto bytes = static_cast<std::uint64_t>(moved);
    ++stats_->operations;
    if (bytes < bytes_) ++stats_->continued;
    stats_->bytes += bytes;
    bytes_ -= bytes;
    local_.advance(bytes);
    remote_.advance(bytes);
  }
  local_.first = local_.end = remote_.first = remote_.end = 0;
  return {};
}

}  // namespace ashlar::transfer
