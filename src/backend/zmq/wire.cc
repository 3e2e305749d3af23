#include "backend/zmq/wire.h"

namespace ashlar::backend::zmq {

std::uint64_t read_number(FrameBytes bytes) noexcept {
  std::uint64_t number = 0;
  for (const std::byte byte : bytes) {
    if (number >> 56 != 0) return ~std::uint64_t{0};
    number = number << 8 | std::to_integer<std::uint64_t>(byte);
  }
  return number;
}

std::optional<std::uint64_t> live_number(std::span<const FrameBytes> frames, std::size_t count) noexcept {
  if (count != 3 || frames.size() < 3 || frames[1].size() != 8) return std::nullopt;
  return read_number(frames[1]);
}

std::optional<ReplyHead> reply_head(std::span<const FrameBytes> frames, std::size_t count) noexcept {
  if (count != 4 || frames.size() < 4 || !frames[0].empty() || frames[2].size() != 8) return std::nullopt;
  const std::uint64_t number = read_number(frames[2]);
  return ReplyHead{.number = number, .is_end = number == ~std::uint64_t{0}};
}

std::optional<std::uint64_t> requested_number(std::span<const FrameBytes> frames,
                                              std::size_t count) noexcept {
  if (count != 3 || frames.size() < 3 || !frames[1].empty()) return std::nullopt;
  return read_number(frames[2]);
}

}  // namespace ashlar::backend::zmq
