// ByteWriter, ByteReader: little-endian numbers, for files and descriptors.
//
// Thread safety: thread-compatible.
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>
#include <vector>

namespace ashlar {

class ByteWriter {
 public:
  template <std::integral T>
  void put(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(bits & 0xFF));
      if constexpr (sizeof(T) > 1) bits >>= 8;
    }
  }
  void put_bytes(std::span<const std::byte> bytes) {
    bytes_.insert(bytes_.end(), bytes.begin(), bytes.end());
  }
  std::vector<std::byte>& bytes() noexcept { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// Reads numbers until the bytes end; after that returns zeros, and ok() is false.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) noexcept : bytes_(bytes) {}
  template <std::integral T>
  T get() noexcept {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return 0;
    }
    std::make_unsigned_t<T> value = 0;
    for (std::size_t i = sizeof(T); i-- > 0;)
      value = static_cast<std::make_unsigned_t<T>>((std::uint64_t{value} << 8) |
                                                   std::to_integer<std::uint64_t>(bytes_[i]));
    bytes_ = bytes_.subspan(sizeof(T));
    return static_cast<T>(value);
  }
  // The next bytes; empty, and ok() is false, when there are fewer.
  std::span<const std::byte> get_bytes(std::size_t count) noexcept {
    if (bytes_.size() < count) {
      ok_ = false;
      bytes_ = {};
      return {};
    }
    const std::span<const std::byte> out = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return out;
  }
  bool ok() const noexcept { return ok_; }
  std::size_t left() const noexcept { return bytes_.size(); }

 private:
  std::span<const std::byte> bytes_;
  bool ok_ = true;
};

}  // namespace ashlar
