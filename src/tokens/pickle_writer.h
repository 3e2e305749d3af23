// PickleWriter: pickle protocol 5 of nested tuples, byte for byte as CPython's C pickler writes it for
// objects without shared references.
//
// Values are written in order; a tuple begins with its size and ends after its items. Output is cut into
// frames: the start of a value closes a frame of 64 KiB or more; a string or bytes object of 64 KiB or more
// stands outside of frames; a last frame of fewer than 4 bytes has no header.
//
// Thread safety: thread-compatible.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace ashlar::tokens {

class PickleWriter {
 public:
  PickleWriter() {
    byte(0x80);
    byte(5);
    framing_ = true;
  }

  void none() {
    boundary();
    op(0x4E);
  }
  void integer(std::int64_t value) {
    boundary();
    std::uint8_t code[12];
    std::size_t size = 0;
    const auto bits = static_cast<std::uint64_t>(value);
    unsigned width = 0;
    if (value >= 0 && value <= 0xFF) {
      code[size++] = 0x4B;
      width = 1;
    } else if (value >= 0 && value <= 0xFFFF) {
      code[size++] = 0x4D;
      width = 2;
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      code[size++] = 0x4A;
      width = 4;
    } else {  // the fewest bytes of two's complement
      width = 5;
      while (width < 8 && (value >> (8 * width - 1)) != 0 && (value >> (8 * width - 1)) != -1) ++width;
      code[size++] = 0x8A;
      code[size++] = static_cast<std::uint8_t>(width);
    }
    for (unsigned i = 0; i < width; ++i) code[size++] = static_cast<std::uint8_t>(bits >> (8 * i));
    write({code, size});
  }
  void text(std::string_view utf8) {
    boundary();
    sized(0x8C, 0x58, 0x8D, {reinterpret_cast<const std::uint8_t*>(utf8.data()), utf8.size()});
    op(0x94);
  }
  void bytes(std::span<const std::uint8_t> data) {
    boundary();
    sized(0x43, 0x42, 0x8E, data);
    op(0x94);
  }
  void begin_tuple(std::size_t size) {
    boundary();
    if (size > 3) op(0x28);
  }
  void end_tuple(std::size_t size) {
    if (size == 0) return op(0x29);  // the empty tuple is not memoised
    op(size == 1 ? 0x85 : size == 2 ? 0x86 : size == 3 ? 0x87 : 0x74);
    op(0x94);
  }
  // The whole pickle. Consumes the writer.
  const std::vector<std::uint8_t>& finish() {
    op(0x2E);
    commit_frame();
    return out_;
  }

 private:
  static constexpr std::size_t kHeader = 9;
  static constexpr std::size_t kFrameTarget = std::size_t{64} * 1024;
  static constexpr std::size_t kFrameMinimum = 4;
  static constexpr std::size_t kNoFrame = SIZE_MAX;

  void byte(std::uint8_t value) { out_.push_back(value); }
  void op(std::uint8_t code) { write({&code, 1}); }
  void write(std::span<const std::uint8_t> data) {
    if (framing_ && frame_ == kNoFrame) {
      frame_ = out_.size();
      out_.resize(out_.size() + kHeader);
    }
    out_.insert(out_.end(), data.begin(), data.end());
  }
  void sized(std::uint8_t one, std::uint8_t four, std::uint8_t eight, std::span<const std::uint8_t> data) {
    std::uint8_t code[9];
    const unsigned width = data.size() <= 0xFF ? 1 : data.size() <= 0xFFFFFFFF ? 4 : 8;
    code[0] = width == 1 ? one : width == 4 ? four : eight;
    const std::uint64_t size = data.size();
    for (unsigned i = 0; i < width; ++i) code[1 + i] = static_cast<std::uint8_t>(size >> (8 * i));
    const bool alone = data.size() >= kFrameTarget;
    if (alone) {
      commit_frame();
      framing_ = false;
    }
    write({code, 1 + width});
    write(data);
    framing_ = true;
  }
  void boundary() {
    if (frame_ != kNoFrame && out_.size() - frame_ - kHeader >= kFrameTarget) commit_frame();
  }
  void commit_frame() {
    if (frame_ == kNoFrame) return;
    const std::uint64_t size = out_.size() - frame_ - kHeader;
    if (size >= kFrameMinimum) {
      out_[frame_] = 0x95;
      for (unsigned i = 0; i < 8; ++i) out_[frame_ + 1 + i] = static_cast<std::uint8_t>(size >> (8 * i));
    } else {
      const auto begin = out_.begin() + static_cast<std::ptrdiff_t>(frame_);
      out_.erase(begin, begin + kHeader);
    }
    frame_ = kNoFrame;
  }

  std::vector<std::uint8_t> out_;
  std::size_t frame_ = kNoFrame;  // offset of the open frame's header
  bool framing_ = false;
};

}  // namespace ashlar::tokens
