// MsgpackReader: reads msgpack values one by one, straight from the bytes.
//
// Every reading function returns false at the first fault, which is kept with its position; the reader then
// stays there. No recursion, and no byte beyond the end is read. Counts of arrays and maps are checked
// against the bytes left, so a caller may allocate for them.
//
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace ashlar::events {

class MsgpackReader {
 public:
  enum class Type : std::uint8_t { kNil, kBool, kInteger, kFloat, kText, kBytes, kArray, kMap, kOther, kEnd };
  // bits holds the two's complement; negative only where the value is.
  struct Integer {
    std::uint64_t bits = 0;
    bool negative = false;
  };

  explicit MsgpackReader(std::span<const std::byte> bytes) noexcept
      : begin_(bytes.data()), at_(bytes.data()), end_(bytes.data() + bytes.size()) {}

  const std::byte* at() const noexcept { return at_; }
  std::size_t offset() const noexcept { return static_cast<std::size_t>(at_ - begin_); }
  std::size_t left() const noexcept { return static_cast<std::size_t>(end_ - at_); }
  // Seeks to a position that offset() returned.
  void seek(std::size_t offset) noexcept { at_ = begin_ + offset; }
  void advance(std::size_t count) noexcept { at_ += count; }

  // The first fault, or null.
  const char* fault() const noexcept { return fault_; }
  std::size_t fault_offset() const noexcept { return fault_offset_; }
  bool fail(const char* what) noexcept { return fail_at(what, offset()); }
  bool fail_at(const char* what, std::size_t offset) noexcept {
    if (fault_ == nullptr) {
      fault_ = what;
      fault_offset_ = offset;
    }
    return false;
  }

  Type peek() const noexcept;
  bool is_nil() const noexcept { return at_ != end_ && *at_ == std::byte{0xC0}; }
  // Skips a nil. False, without a fault, if the next value is not nil.
  bool take_nil() noexcept {
    const bool nil = is_nil();
    at_ += nil ? 1 : 0;
    return nil;
  }

  bool read_integer(Integer& out, const char* what) noexcept;
  // An integer in 0..limit.
  bool read_unsigned(std::uint64_t& out, std::uint64_t limit, const char* what) noexcept;
  // A float or an integer.
  bool read_number(double& out, const char* what) noexcept;
  bool read_text(std::string_view& out, const char* what) noexcept;
  bool read_bytes(std::span<const std::byte>& out, const char* what) noexcept;
  bool read_array(std::uint32_t& count, const char* what) noexcept;
  bool read_map(std::uint32_t& count, const char* what) noexcept;
  // Skips one value of any depth.
  bool skip() noexcept;

 private:
  static std::uint64_t load(const std::byte* from, unsigned width) noexcept {
    std::uint64_t value = 0;
    for (unsigned i = 0; i < width; ++i) value = (value << 8) | std::to_integer<std::uint64_t>(from[i]);
    return value;
  }
  // The number of `width` bytes after the head, followed by `extra` bytes; moves to the end of the number.
  bool read_length(unsigned width, std::uint64_t& out) noexcept {
    if (left() < 1 + width) return fail("the bytes end within a value");
    out = load(at_ + 1, width);
    at_ += 1 + width;
    return true;
  }
  bool read_count(std::uint8_t fixed, std::uint8_t wide, std::uint32_t per_item, std::uint32_t& count,
                  const char* what) noexcept;

  const std::byte* begin_;
  const std::byte* at_;
  const std::byte* end_;
  const char* fault_ = nullptr;
  std::size_t fault_offset_ = 0;
};

inline MsgpackReader::Type MsgpackReader::peek() const noexcept {
  if (at_ == end_) return Type::kEnd;
  const auto head = std::to_integer<std::uint8_t>(*at_);
  if (head < 0x80 || head >= 0xE0) return Type::kInteger;
  if (head < 0x90) return Type::kMap;
  if (head < 0xA0) return Type::kArray;
  if (head < 0xC0) return Type::kText;
  if (head == 0xC0) return Type::kNil;
  if (head == 0xC2 || head == 0xC3) return Type::kBool;
  if (head >= 0xC4 && head <= 0xC6) return Type::kBytes;
  if (head == 0xCA || head == 0xCB) return Type::kFloat;
  if (head >= 0xCC && head <= 0xD3) return Type::kInteger;
  if (head >= 0xD9 && head <= 0xDB) return Type::kText;
  if (head == 0xDC || head == 0xDD) return Type::kArray;
  if (head == 0xDE || head == 0xDF) return Type::kMap;
  return Type::kOther;
}

inline bool MsgpackReader::read_integer(Integer& out, const char* what) noexcept {
  if (at_ == end_) return fail("the bytes end where a value should be");
  const auto head = std::to_integer<std::uint8_t>(*at_);
  if (head < 0x80) {
    out = {head, false};
    ++at_;
    return true;
  }
  if (head >= 0xE0) {
    out = {static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<std::int8_t>(head))), true};
    ++at_;
    return true;
  }
  if (head < 0xCC || head > 0xD3) return fail(what);
  const unsigned width = 1u << (head & 3);  // cc..cf and d0..d3: 1, 2, 4, 8 bytes
  std::uint64_t bits = 0;
  if (!read_length(width, bits)) return false;
  if (head < 0xD0) {
    out = {bits, false};
    return true;
  }
  const unsigned shift = 64 - 8 * width;
  const auto value = static_cast<std::int64_t>(bits << shift) >> shift;
  out = {static_cast<std::uint64_t>(value), value < 0};
  return true;
}

inline bool MsgpackReader::read_unsigned(std::uint64_t& out, std::uint64_t limit, const char* what) noexcept {
  const std::size_t start = offset();
  Integer value;
  if (!read_integer(value, what)) return false;
  if (value.negative || value.bits > limit) return fail_at(what, start);
  out = value.bits;
  return true;
}

inline bool MsgpackReader::read_number(double& out, const char* what) noexcept {
  if (at_ == end_) return fail("the bytes end where a value should be");
  const auto head = std::to_integer<std::uint8_t>(*at_);
  std::uint64_t bits = 0;
  if (head == 0xCB) {
    if (!read_length(8, bits)) return false;
    out = std::bit_cast<double>(bits);
    return true;
  }
  if (head == 0xCA) {
    if (!read_length(4, bits)) return false;
    out = static_cast<double>(std::bit_cast<float>(static_cast<std::uint32_t>(bits)));
    return true;
  }
  Integer value;
  if (!read_integer(value, what)) return false;
  out = value.negative ? static_cast<double>(static_cast<std::int64_t>(value.bits))
                       : static_cast<double>(value.bits);
  return true;
}

inline bool MsgpackReader::read_text(std::string_view& out, const char* what) noexcept {
  if (at_ == end_) return fail("the bytes end where a value should be");
  const std::size_t start = offset();
  const auto head = std::to_integer<std::uint8_t>(*at_);
  std::uint64_t length = head & 0x1F;
  if (head >= 0xD9 && head <= 0xDB) {
    if (!read_length(1u << (head - 0xD9), length)) return false;
  } else if (head >= 0xA0 && head < 0xC0) {
    ++at_;
  } else {
    return fail(what);
  }
  if (length > left()) return fail_at("the bytes end within a text", start);
  out = {reinterpret_cast<const char*>(at_), static_cast<std::size_t>(length)};
  at_ += length;
  return true;
}

inline bool MsgpackReader::read_bytes(std::span<const std::byte>& out, const char* what) noexcept {
  if (at_ == end_) return fail("the bytes end where a value should be");
  const std::size_t start = offset();
  const auto head = std::to_integer<std::uint8_t>(*at_);
  if (head < 0xC4 || head > 0xC6) return fail(what);
  std::uint64_t length = 0;
  if (!read_length(1u << (head - 0xC4), length)) return false;
  if (length > left()) return fail_at("the bytes end within a run of bytes", start);
  out = {at_, static_cast<std::size_t>(length)};
  at_ += length;
  return true;
}

inline bool MsgpackReader::read_count(std::uint8_t fixed, std::uint8_t wide, std::uint32_t per_item,
                                      std::uint32_t& count, const char* what) noexcept {
  if (at_ == end_) return fail("the bytes end where a value should be");
  const std::size_t start = offset();
  const auto head = std::to_integer<std::uint8_t>(*at_);
  std::uint64_t items = head & 0x0F;
  if ((head & 0xF0) == fixed) {
    ++at_;
  } else if (head == wide || head == wide + 1) {
    if (!read_length(head == wide ? 2 : 4, items)) return false;
  } else {
    return fail(what);
  }
  if (items * per_item > left()) return fail_at("more elements announced than bytes are left", start);
  count = static_cast<std::uint32_t>(items);
  return true;
}

inline bool MsgpackReader::read_array(std::uint32_t& count, const char* what) noexcept {
  return read_count(0x90, 0xDC, 1, count, what);
}

inline bool MsgpackReader::read_map(std::uint32_t& count, const char* what) noexcept {
  return read_count(0x80, 0xDE, 2, count, what);
}

inline bool MsgpackReader::skip() noexcept {
  for (std::uint64_t pending = 1; pending != 0; --pending) {
    std::uint32_t count = 0;
    switch (peek()) {
      case Type::kNil:
      case Type::kBool:
        ++at_;
        break;
      case Type::kInteger: {
        Integer unused;
        if (!read_integer(unused, "")) return false;
        break;
      }
      case Type::kFloat: {
        double unused = 0;
        if (!read_number(unused, "")) return false;
        break;
      }
      case Type::kText: {
        std::string_view unused;
        if (!read_text(unused, "")) return false;
        break;
      }
      case Type::kBytes: {
        std::span<const std::byte> unused;
        if (!read_bytes(unused, "")) return false;
        break;
      }
      case Type::kArray:
        if (!read_array(count, "")) return false;
        pending += count;
        break;
      case Type::kMap:
        if (!read_map(count, "")) return false;
        pending += 2 * std::uint64_t{count};
        break;
      case Type::kOther: {  // an extension, or the head that msgpack never uses
        const auto head = std::to_integer<std::uint8_t>(*at_);
        std::uint64_t length = 0;
        if (head >= 0xD4 && head <= 0xD8) {
          length = std::uint64_t{1} << (head - 0xD4);
          ++at_;
        } else if (head >= 0xC7 && head <= 0xC9) {
          if (!read_length(1u << (head - 0xC7), length)) return false;
        } else {
          return fail("no msgpack value begins with this byte");
        }
        if (length >= left()) return fail("the bytes end within an extension");
        at_ += 1 + length;
        break;
      }
      case Type::kEnd:
        return fail("the bytes end where a value should be");
    }
    if (pending - 1 > left()) return fail("more elements announced than bytes are left");
  }
  return true;
}

}  // namespace ashlar::events
