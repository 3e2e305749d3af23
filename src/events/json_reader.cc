#include "events/json_reader.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <cstring>

namespace ashlar::events {

JsonReader::Type JsonReader::peek() noexcept {
  spaces();
  if (at_ == text_.size()) return Type::kEnd;
  switch (text_[at_]) {
    case 'n':
      return Type::kNull;
    case 't':
    case 'f':
      return Type::kBool;
    case '"':
      return Type::kText;
    case '[':
      return Type::kArray;
    case '{':
      return Type::kObject;
    default:
      return text_[at_] == '-' || (text_[at_] >= '0' && text_[at_] <= '9') ? Type::kNumber : Type::kOther;
  }
}

bool JsonReader::take_null() noexcept {
  spaces();
  if (text_.substr(at_, 4) != "null") return false;
  at_ += 4;
  return true;
}

bool JsonReader::begin(char bracket, const char* what) noexcept {
  spaces();
  if (at_ == text_.size() || text_[at_] != bracket) return fail(what);
  if (depth_ + 1 >= kMaxDepth) return fail("nested too deep");
  ++at_;
  ++depth_;
  fresh_ |= std::uint64_t{1} << depth_;
  return true;
}

// Skips the comma before the next item, or the closing bracket.
bool JsonReader::next(char close, bool& more) noexcept {
  spaces();
  if (at_ == text_.size()) return fail("the text ends within an object or array");
  const std::uint64_t bit = std::uint64_t{1} << depth_;
  if (text_[at_] == close) {
    ++at_;
    --depth_;
    more = false;
    return true;
  }
  if ((fresh_ & bit) == 0) {
    if (text_[at_] != ',') return fail("a comma or the end of the object or array should be here");
    ++at_;
  }
  fresh_ &= ~bit;
  more = true;
  return true;
}

bool JsonReader::next_item(bool& more) noexcept {
  return next(']', more);
}

bool JsonReader::next_key(std::string& key, bool& more) {
  if (!next('}', more)) return false;
  if (!more) return true;
  if (!read_text(key, "a key should be here")) return false;
  spaces();
  if (at_ == text_.size() || text_[at_] != ':') return fail("a colon should be here");
  ++at_;
  return true;
}

bool JsonReader::read_bits(std::uint64_t& out, const char* what) noexcept {
  spaces();
  const std::size_t start = at_;
  std::size_t at = at_;
  const bool negative = at < text_.size() && text_[at] == '-';
  if (negative) ++at;
  const std::size_t digits = at;
  std::uint64_t value = 0;
  for (; at < text_.size() && text_[at] >= '0' && text_[at] <= '9'; ++at) {
    const auto digit = static_cast<std::uint64_t>(text_[at] - '0');
    if (value > (UINT64_MAX - digit) / 10) return fail_at(what, start);
    value = value * 10 + digit;
  }
  if (at == digits || (text_[digits] == '0' && at - digits > 1)) return fail_at(what, start);
  if (at < text_.size() && (text_[at] == '.' || text_[at] == 'e' || text_[at] == 'E'))
    return fail_at(what, start);
  if (negative && value > std::uint64_t{1} << 63) return fail_at(what, start);
  out = negative ? 0 - value : value;
  at_ = at;
  return true;
}

bool JsonReader::read_unsigned(std::uint64_t& out, std::uint64_t limit, const char* what) noexcept {
  spaces();
  const std::size_t start = at_;
  if (at_ < text_.size() && text_[at_] == '-') return fail(what);
  std::uint64_t value = 0;
  if (!read_bits(value, what)) return false;
  if (value > limit) return fail_at(what, start);
  out = value;
  return true;
}

bool JsonReader::read_hex(std::uint32_t& code) noexcept {
  if (text_.size() - at_ < 4) return fail("the text ends within an escape");
  code = 0;
  for (int i = 0; i < 4; ++i) {
    const char c = text_[at_ + static_cast<std::size_t>(i)];
    const int digit = c >= '0' && c <= '9'   ? c - '0'
                      : c >= 'a' && c <= 'f' ? c - 'a' + 10
                      : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                             : -1;
    if (digit < 0) return fail("an escape of four hex digits should be here");
    code = code << 4 | static_cast<std::uint32_t>(digit);
  }
  at_ += 4;
  return true;
}

// Requires: the backslash has been read.
bool JsonReader::read_escape(std::string& out) {
  if (at_ == text_.size()) return fail("the text ends within an escape");
  constexpr std::string_view kNames = "\"\\/bfnrt";
  constexpr std::string_view kValues = "\"\\/\b\f\n\r\t";
  const char c = text_[at_++];
  if (const std::size_t i = kNames.find(c); i != std::string_view::npos) {
    out += kValues[i];
    return true;
  }
  if (c != 'u') return fail_at("no escape of JSON", at_ - 1);
  std::uint32_t code = 0;
  if (!read_hex(code)) return false;
  if (code >= 0xDC00 && code < 0xE000) return fail("half of a surrogate pair");
  if (code >= 0xD800 && code < 0xDC00) {
    if (text_.substr(at_, 2) != "\\u") return fail("half of a surrogate pair");
    at_ += 2;
    std::uint32_t low = 0;
    if (!read_hex(low)) return false;
    if (low < 0xDC00 || low >= 0xE000) return fail("half of a surrogate pair");
    code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
  }
  if (code < 0x80) {
    out += static_cast<char>(code);
    return true;
  }
  const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
  constexpr std::uint32_t kHeads[] = {0, 0xC0, 0xE0, 0xF0};
  out += static_cast<char>(kHeads[more] | code >> (6 * more));
  for (int i = more; i-- > 0;) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
  return true;
}

bool JsonReader::read_text(std::string& out, const char* what) {
  spaces();
  if (at_ == text_.size() || text_[at_] != '"') return fail(what);
  const std::size_t start = at_++;
  out.clear();
  while (at_ < text_.size()) {
    const std::size_t from = at_;
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20)
      ++at_;
    out.append(text_, from, at_ - from);
    if (at_ == text_.size()) break;
    const char c = text_[at_];
    if (c == '"') {
      ++at_;
      return true;
    }
    if (c != '\\') return fail("a control character within a text");
    ++at_;
    if (!read_escape(out)) return false;
  }
  return fail_at("the text ends within a string", start);
}

bool JsonReader::read_bool(bool& out, const char* what) noexcept {
  spaces();
  out = text_.substr(at_, 4) == "true";
  if (!out && text_.substr(at_, 5) != "false") return fail(what);
  at_ += out ? 4 : 5;
  return true;
}

// Eight bytes at a time while none of them ends the text, escapes or is a control character: a byte is zero
// where (x - ones) & ~x has its high bit, and below 0x20 where (x - ones * 0x20) & ~x has it. A borrow may
// mark a byte above such a one too, never without one.
bool JsonReader::skip_text() noexcept {
  constexpr std::uint64_t kOnes = 0x0101'0101'0101'0101u;
  const std::size_t start = at_++;
  for (;;) {
#if defined(__SSE2__)
    // Prompts are long texts without escapes: 16 bytes at a time.
    const __m128i quotes = _mm_set1_epi8('"');
    const __m128i slashes = _mm_set1_epi8('\\');
    const __m128i last_control = _mm_set1_epi8(0x1F);
    for (; text_.size() - at_ >= 16; at_ += 16) {
      const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(text_.data() + at_));
      const __m128i marks =
          _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(bytes, quotes), _mm_cmpeq_epi8(bytes, slashes)),
                       _mm_cmpeq_epi8(_mm_min_epu8(bytes, last_control), bytes));
      if (const int places = _mm_movemask_epi8(marks); places != 0) {
        at_ += static_cast<std::size_t>(std::countr_zero(static_cast<unsigned>(places)));
        break;
      }
    }
#endif
    for (; text_.size() - at_ >= 8; at_ += 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, text_.data() + at_, sizeof(word));
      const std::uint64_t quote = word ^ (kOnes * '"');
      const std::uint64_t slash = word ^ (kOnes * '\\');
      const std::uint64_t marks =
          ((quote - kOnes) & ~quote) | ((slash - kOnes) & ~slash) | ((word - kOnes * 0x20) & ~word);
      if ((marks & (kOnes * 0x80)) != 0) break;
    }
    while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\' &&
           static_cast<unsigned char>(text_[at_]) >= 0x20)
      ++at_;
    if (at_ == text_.size()) return fail_at("the text ends within a string", start);
    const char c = text_[at_];
    if (c != '"' && c != '\\') return fail("a control character within a text");
    ++at_;
    if (c == '"') return true;
    if (at_ == text_.size()) return fail("the text ends within an escape");
    const char escape = text_[at_++];
    std::uint32_t unused = 0;
    if (escape == 'u' ? !read_hex(unused)
                      : std::string_view("\"\\/bfnrt").find(escape) == std::string_view::npos)
      return fail_at("no escape of JSON", at_ - 1);
  }
}

bool JsonReader::skip_number() noexcept {
  const std::size_t start = at_;
  const auto digits = [this] {
    const std::size_t from = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ != from;
  };
  const auto is = [this](char c) { return at_ < text_.size() && text_[at_] == c; };
  if (is('-')) ++at_;
  bool good = digits();
  if (is('.')) {
    ++at_;
    good = digits() && good;
  }
  if (is('e') || is('E')) {
    ++at_;
    if (is('+') || is('-')) ++at_;
    good = digits() && good;
  }
  return good || fail_at("no number of JSON", start);
}

bool JsonReader::skip() {
  std::string unused;
  std::uint64_t objects = 0;  // bit d: the value at depth d is an object
  const std::uint32_t outer = depth_;
  for (;;) {
    switch (peek()) {
      case Type::kNull:
      case Type::kBool: {
        bool known = false;
        for (const std::string_view word : {"null", "true", "false"}) {
          if (text_.substr(at_, word.size()) != word) continue;
          at_ += word.size();
          known = true;
          break;
        }
        if (!known) return fail("no value of JSON");
        break;
      }
      case Type::kNumber:
        if (!skip_number()) return false;
        break;
      case Type::kText:
        if (!skip_text()) return false;
        break;
      case Type::kArray:
        if (!begin_array("")) return false;
        objects &= ~(std::uint64_t{1} << depth_);
        break;
      case Type::kObject:
        if (!begin_object("")) return false;
        objects |= std::uint64_t{1} << depth_;
        break;
      case Type::kOther:
        return fail("no value of JSON");
      case Type::kEnd:
        return fail("the text ends where a value should be");
    }
    // Moves on to the next value to skip, leaving every container that ends here.
    for (bool more = false; !more;) {
      if (depth_ == outer) return true;
      const bool object = (objects >> depth_ & 1) != 0;
      if (object ? !next_key(unused, more) : !next_item(more)) return false;
    }
  }
}

}  // namespace ashlar::events
