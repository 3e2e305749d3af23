// JsonReader: reads JSON values one by one, straight from the text.
//
// Every reading function returns false at the first fault, which is kept with its position. 64-bit integers
// are exact. Depth is bounded by kMaxDepth, without recursion. Text is decoded only where it has escapes.
//
//   bool more = false;
//   if (!in.begin_object("...")) return ...;
//   while (in.next_key(key, more) && more) ...   // read or skip one value per key
//
// Thread safety: thread-compatible.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::events {

class JsonReader {
 public:
  static constexpr std::uint32_t kMaxDepth = 64;
  enum class Type : std::uint8_t { kNull, kBool, kNumber, kText, kArray, kObject, kOther, kEnd };

  explicit JsonReader(std::string_view text) noexcept : text_(text) {}

  const char* fault() const noexcept { return fault_; }
  std::size_t fault_offset() const noexcept { return fault_offset_; }
  std::size_t offset() const noexcept { return at_; }
  bool fail(const char* what) noexcept { return fail_at(what, at_); }
  bool fail_at(const char* what, std::size_t offset) noexcept {
    if (fault_ == nullptr) {
      fault_ = what;
      fault_offset_ = offset;
    }
    return false;
  }

  // The type of the next value, by its first character.
  Type peek() noexcept;
  // Skips a null. False, without a fault, if the next value is not null.
  bool take_null() noexcept;
  bool begin_object(const char* what) noexcept { return begin('{', what); }
  bool begin_array(const char* what) noexcept { return begin('[', what); }
  // The next key of the innermost open object; `more` is false at its end.
  bool next_key(std::string& key, bool& more);
  // Whether the innermost open array has another item.
  bool next_item(bool& more) noexcept;
  // An integer in 0..limit.
  bool read_unsigned(std::uint64_t& out, std::uint64_t limit, const char* what) noexcept;
  // A 64-bit integer: unsigned, or negative as its two's complement.
  bool read_bits(std::uint64_t& out, const char* what) noexcept;
  // Appends the rest of the innermost open array, all of them integers in 0..2^32-1. Those of up to seven
  // digits with nothing but commas between them, as engines write lists of tokens, are read a word at a time.
  template <class Number>
  bool read_numbers(std::vector<Number>& out, const char* what, std::size_t most = SIZE_MAX) {
    bool more = false;
    while (next_item(more) && more) {
      while (out.size() < most && take_short_number()) out.emplace_back(short_number_);
      if (out.size() >= most) return fail("the list is too long");
      std::uint64_t number = 0;
      if (!read_unsigned(number, UINT32_MAX, what)) return false;
      out.emplace_back(static_cast<std::uint32_t>(number));
    }
    return fault_ == nullptr;
  }
  bool read_text(std::string& out, const char* what);
  bool read_bool(bool& out, const char* what) noexcept;
  // Skips one value. Texts are checked for their form only: half of a surrogate pair passes.
  bool skip();
  // Whether only white space is left.
  bool at_end() noexcept {
    spaces();
    return at_ == text_.size();
  }

 private:
  void spaces() noexcept {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  // Takes a number of up to seven digits and the comma behind it into short_number_, if both stand right here
  // in a whole word. The digits of a word are added up in pairs, then pairs of those (Langdale and Lemire,
  // "Parsing gigabytes of JSON per second").
  bool take_short_number() noexcept {
    if constexpr (std::endian::native != std::endian::little) return false;
    if (text_.size() - at_ < sizeof(std::uint64_t)) return false;
    std::uint64_t word = 0;
    std::memcpy(&word, text_.data() + at_, sizeof word);
    word ^= 0x3030'3030'3030'3030;  // digits are 0 to 9 now
    // What is none has its high bit set, the first of them for sure.
    const std::uint64_t others = (word | (word + 0x7676'7676'7676'7676)) & 0x8080'8080'8080'8080;
    const auto digits = static_cast<std::size_t>(std::countr_zero(others)) / 8;
    if (digits == 0 || digits == sizeof word || text_[at_ + digits] != ',') return false;
    if (digits > 1 && text_[at_] == '0') return false;
    word <<= (sizeof word - digits) * 8;  // zeros before it
    word = (word * 10 + (word >> 8)) & 0x00FF'00FF'00FF'00FF;
    word = (word * 100 + (word >> 16)) & 0x0000'FFFF'0000'FFFF;
    short_number_ = static_cast<std::uint32_t>(word * 10'000 + (word >> 32));
    at_ += digits + 1;
    return true;
  }
  bool begin(char bracket, const char* what) noexcept;
  bool next(char close, bool& more) noexcept;
  bool read_hex(std::uint32_t& code) noexcept;
  bool read_escape(std::string& out);
  bool skip_number() noexcept;
  bool skip_text() noexcept;

  std::string_view text_;
  std::size_t at_ = 0;
  const char* fault_ = nullptr;
  std::size_t fault_offset_ = 0;
  std::uint32_t depth_ = 0;
  std::uint32_t short_number_ = 0;
  std::uint64_t fresh_ = 0;  // bit d: no item was read yet at depth d
};

}  // namespace ashlar::events
