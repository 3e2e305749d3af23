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

#include <cstddef>
#include <cstdint>
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
  // Appends the rest of the innermost open array, all of them integers in 0..2^32-1. Those of up to nine
  // digits with nothing but commas between them, as engines write lists of tokens, take a tenth of the time.
  template <class Number>
  bool read_numbers(std::vector<Number>& out, const char* what) {
    bool more = false;
    while (next_item(more) && more) {
      while (take_short_number()) out.emplace_back(short_number_);
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
  // Takes a number with the comma behind it into short_number_, if both stand right here.
  bool take_short_number() noexcept {
    constexpr std::ptrdiff_t kDigits = 9;
    const char* const begin = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    const char* at = begin;
    std::uint32_t value = 0;
    for (; at != end && at - begin <= kDigits && *at >= '0' && *at <= '9'; ++at)
      value = value * 10 + static_cast<std::uint32_t>(*at - '0');
    const std::ptrdiff_t digits = at - begin;
    if (digits == 0 || digits > kDigits || (digits > 1 && *begin == '0') || at == end || *at != ',')
      return false;
    short_number_ = value;
    at_ = static_cast<std::size_t>(at - text_.data()) + 1;
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
