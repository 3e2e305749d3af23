// PartsCursor: walks the bytes of several spans in order, as if they were one; forward only.
//
// Thread safety: thread-compatible. The spans must outlive it.
// Complexity:    no allocation; a span is visited once when it is passed, and once per gather() before that.
#pragma once

#include <sys/uio.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "ashlar/base/check.h"

namespace ashlar::storage {

// Byte is std::byte or const std::byte.
template <class Byte>
class PartsCursor {
  static_assert(std::is_same_v<std::remove_const_t<Byte>, std::byte>, "parts are spans of bytes");

 public:
  using Parts = std::span<const std::span<Byte>>;

  PartsCursor() = default;
  explicit PartsCursor(Parts parts) noexcept : parts_(parts) {
    for (const std::span<Byte>& part : parts) left_ += part.size();
    pass_ends();
  }

  // Bytes not yet passed.
  std::uint64_t left() const noexcept { return left_; }
  // The next contiguous bytes; empty only at the end.
  std::span<Byte> run() const noexcept {
    return left_ == 0 ? std::span<Byte>() : parts_[at_].subspan(within_);
  }
  // Describes the next bytes, at most `most`, for a system call. Returns the number of descriptors used.
  std::size_t gather(std::span<iovec> into, std::uint64_t most) const noexcept {
    std::size_t count = 0;
    std::size_t within = within_;
    most = std::min(most, left_);
    for (std::size_t at = at_; most > 0 && count < into.size(); ++at, within = 0) {
      const std::span<Byte> rest = parts_[at].subspan(within);
      if (rest.empty()) continue;
      const auto now = static_cast<std::size_t>(std::min<std::uint64_t>(rest.size(), most));
      into[count++] = {.iov_base = const_cast<std::byte*>(rest.data()), .iov_len = now};
      most -= now;
    }
    return count;
  }
  // Requires: bytes <= left().
  void pass(std::uint64_t bytes) noexcept {
    ASHLAR_DCHECK(bytes <= left_, "passed the end of the parts");
    left_ -= bytes;
    while (bytes > 0) {
      const std::uint64_t now = std::min<std::uint64_t>(bytes, parts_[at_].size() - within_);
      within_ += static_cast<std::size_t>(now);
      bytes -= now;
      pass_ends();
    }
  }
  // Copies into the next bytes and passes them. Requires: bytes.size() <= left().
  void copy(std::span<const std::byte> bytes) noexcept
    requires(!std::is_const_v<Byte>)
  {
    ASHLAR_DCHECK(bytes.size() <= left_, "%zu bytes for parts with room for %llu", bytes.size(),
                  static_cast<unsigned long long>(left_));
    while (!bytes.empty()) {
      const std::span<Byte> to = run();
      const std::size_t now = std::min(to.size(), bytes.size());
      std::memcpy(to.data(), bytes.data(), now);
      bytes = bytes.subspan(now);
      pass(now);
    }
  }

 private:
  // Skips exhausted spans.
  void pass_ends() noexcept {
    while (at_ < parts_.size() && within_ == parts_[at_].size()) {
      ++at_;
      within_ = 0;
    }
  }

  Parts parts_;
  std::uint64_t left_ = 0;
  std::size_t at_ = 0;      // the span of the next byte,
  std::size_t within_ = 0;  // and the offset in it
};

}  // namespace ashlar::storage
