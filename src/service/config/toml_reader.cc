#include "service/config/toml_reader.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <set>
#include <utility>

#include "ashlar/base/log.h"

namespace ashlar::service {
namespace {

constexpr std::uint32_t kMaxArrayDepth = 16;

bool is_bare_key(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
}

bool is_toml_digit(char c) {
  return c >= '0' && c <= '9';
}

// Every reading function returns false at the first fault, which is kept with its place.
class TomlReader {
 public:
  TomlReader(std::string_view name, std::string_view text) : name_(name), text_(text) {}

  Result<std::vector<TomlTable>> read() {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
    tables_.emplace_back();
    while (!fault_ && skip_lines()) {
      const bool good = text_[at_] == '[' ? read_header() : read_entry();
      if (!good || !end_of_line()) break;
    }
    if (fault_) return std::move(*fault_);
    return std::move(tables_);
  }

 private:
  bool fail(std::string_view what) { return fail_at(what, at_); }
  bool fail_at(std::string_view what, std::size_t at) {
    if (!fault_) fault_ = toml_error(name_, place_of(at), what);
    return false;
  }

  // Places are asked for in order, but for refusals, of which there is one.
  TomlPlace place_of(std::size_t at) {
    if (at < known_) {
      known_ = 0;
      line_start_ = 0;
      line_ = 1;
    }
    for (; known_ < at; ++known_) {
      if (text_[known_] != '\n') continue;
      ++line_;
      line_start_ = known_ + 1;
    }
    return {line_, at - line_start_ + 1};
  }

  bool at_end() const { return at_ >= text_.size(); }
  char peek(std::size_t ahead = 0) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }
  bool starts(std::string_view with) const {
    return text_.substr(std::min(at_, text_.size())).starts_with(with);
  }
  bool at_newline() const { return peek() == '\n' || starts("\r\n"); }

  void skip_blanks() {
    while (peek() == ' ' || peek() == '\t') ++at_;
  }

  bool skip_comment() {
    if (peek() != '#') return true;
    for (; !at_end() && !at_newline(); ++at_)
      if (is_control(peek())) return fail("a control character stands in a comment");
    return true;
  }

  static bool is_control(char c) { return (static_cast<unsigned char>(c) < 0x20 && c != '\t') || c == 0x7F; }

  // Blanks, line ends and comments. False at the end of the text, or at a fault.
  bool skip_lines() {
    for (;;) {
      skip_blanks();
      if (!skip_comment()) return false;
      if (!at_newline()) return !at_end();
      at_ += peek() == '\n' ? 1 : 2;
    }
  }

  bool end_of_line() {
    skip_blanks();
    if (!skip_comment()) return false;
    return at_end() || at_newline() || fail("the line should end here; write one key per line");
  }

  bool read_key(std::string& key) {
    key.clear();
    if (peek() == '"' || peek() == '\'') {
      if (starts("\"\"\"") || starts("'''")) return fail("a key cannot have several lines");
      return peek() == '"' ? read_basic(key) : read_literal(key);
    }
    const std::size_t start = at_;
    while (is_bare_key(peek())) ++at_;
    key = text_.substr(start, at_ - start);
    return !key.empty() || fail("a key should be here, of letters, digits, '_' and '-', or in quotes");
  }

  // [name] or [[name]].
  bool read_header() {
    const std::size_t start = at_;
    const bool is_item = starts("[[");
    at_ += is_item ? 2 : 1;
    std::string name;
    std::string part;
    for (;;) {
      skip_blanks();
      if (!read_key(part)) return false;
      if (part.find('.') != std::string::npos) return fail_at("a part of a table's name has a dot", start);
      name += part;
      skip_blanks();
      if (peek() != '.') break;
      ++at_;
      name += '.';
    }
    const std::string_view close = is_item ? "]]" : "]";
    if (!starts(close)) return fail(is_item ? "]] should be here" : "] should be here");
    at_ += close.size();
    // A table is named once, and is not an array of tables too; nor is its name a key outside of tables.
    const auto is_key = [&](const TomlEntry& entry) { return entry.key == name; };
    const bool is_taken = std::ranges::any_of(tables_.front().entries, is_key) || singles_.contains(name) ||
                          (!is_item && items_.contains(name));
    if (is_taken) return fail_at("this table, or a key of its name, is already there", start);
    (is_item ? items_ : singles_).insert(name);
    keys_.clear();
    tables_.push_back({.name = std::move(name), .is_item = is_item, .place = place_of(start), .entries = {}});
    return true;
  }

  bool read_entry() {
    TomlEntry entry;
    const std::size_t start = at_;
    entry.place = place_of(start);
    if (!read_key(entry.key)) return false;
    skip_blanks();
    if (peek() == '.') return fail("dotted keys are not read; write a table: [name]");
    if (peek() != '=') return fail("= should be here");
    ++at_;
    skip_blanks();
    if (!read_value(entry.value, 0)) return false;
    if (!keys_.insert(entry.key).second) return fail_at("this key is already in this table", start);
    tables_.back().entries.push_back(std::move(entry));
    return true;
  }

  bool read_value(TomlValue& out, std::uint32_t depth) {
    out.place = place_of(at_);
    switch (peek()) {
      case '"':
        return starts("\"\"\"") ? read_lines(out.value.emplace<std::string>(), '"')
                                : read_basic(out.value.emplace<std::string>());
      case '\'':
        return starts("'''") ? read_lines(out.value.emplace<std::string>(), '\'')
                             : read_literal(out.value.emplace<std::string>());
      case '[':
        return read_array(out.value.emplace<TomlArray>(), depth + 1);
      case '{':
        return fail("inline tables are not read; write a table: [name], or [[name]]");
      case '\n':
      case '\r':
      case '#':
      case '\0':
        return fail("a value should be here");
      default:
        return read_word(out);
    }
  }

  bool read_array(TomlArray& out, std::uint32_t depth) {
    if (depth > kMaxArrayDepth) return fail("arrays are nested too deep");
    const std::size_t start = at_++;
    for (;;) {
      if (!skip_lines()) return fault_ ? false : fail_at("the text ends within this array", start);
      if (peek() == ']') break;
      if (!read_value(out.emplace_back(), depth)) return false;
      if (!skip_lines()) return fault_ ? false : fail_at("the text ends within this array", start);
      if (peek() == ']') break;
      if (peek() != ',') return fail("a comma or ] should be here");
      ++at_;
    }
    ++at_;
    return true;
  }

  // Booleans and numbers.
  bool read_word(TomlValue& out) {
    const std::size_t start = at_;
    while (is_bare_key(peek()) || peek() == '+' || peek() == '.' || peek() == ':') ++at_;
    const std::string word(text_.substr(start, at_ - start));
    if (word == "true" || word == "false") {
      out.value = word == "true";
      return true;
    }
    const bool is_date = word.size() >= 5 && std::ranges::all_of(word.substr(0, 2), is_toml_digit) &&
                         (word.find(':') != std::string::npos || (word[4] == '-' && is_toml_digit(word[3])));
    if (is_date) return fail_at("dates and times are not read; write a text, in quotes", start);
    return read_integer(word, out) || read_float(word, out) || fault_ ||
           fail_at("no value of TOML; texts stand in quotes", start);
  }

  // Digits with single underscores between them; without these in `plain`.
  static bool take_digits(std::string_view digits, std::string& plain, unsigned base) {
    bool was_digit = false;
    for (const char c : digits) {
      const bool is_digit = base == 16 ? std::isxdigit(static_cast<unsigned char>(c)) != 0
                                       : c >= '0' && c < static_cast<char>('0' + base);
      if (!is_digit && (c != '_' || !was_digit)) return false;
      was_digit = is_digit;
      if (is_digit) plain += c;
    }
    return was_digit;
  }

  bool read_integer(std::string_view word, TomlValue& out) const {
    unsigned base = 10;
    std::string plain;
    std::string_view digits = word;
    if (word.starts_with("0x") || word.starts_with("0o") || word.starts_with("0b")) {
      base = word[1] == 'x' ? 16 : word[1] == 'o' ? 8 : 2;
      digits.remove_prefix(2);
    } else if (word.starts_with('+') || word.starts_with('-')) {
      digits.remove_prefix(1);
    }
    if (!take_digits(digits, plain, base)) return false;
    if (base == 10 && plain.size() > 1 && plain[0] == '0') return false;
    const bool is_negative = word.starts_with('-');
    const std::uint64_t limit = is_negative ? std::uint64_t{1} << 63 : (std::uint64_t{1} << 63) - 1;
    std::uint64_t value = 0;
    for (const char c : plain) {
      const auto digit = static_cast<std::uint64_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
      if (value > (limit - digit) / base) return false;
      value = value * base + digit;
    }
    out.value = static_cast<std::int64_t>(is_negative ? 0 - value : value);
    return true;
  }

  static bool read_float(std::string_view word, TomlValue& out) {
    std::string plain;
    std::string_view rest = word;
    if (rest.starts_with('+') || rest.starts_with('-')) {
      if (rest[0] == '-') plain = "-";
      rest.remove_prefix(1);
    }
    if (rest == "inf" || rest == "nan") {
      const double value = rest == "inf" ? std::numeric_limits<double>::infinity() : std::nan("");
      out.value = plain.empty() ? value : -value;
      return true;
    }
    const std::size_t point = rest.find('.');
    const std::size_t exponent = rest.find_first_of("eE");
    if (point == exponent) return false;  // neither: an integer that is too large
    const std::string_view whole = rest.substr(0, std::min(point, exponent));
    if (!take_digits(whole, plain, 10) || (whole.size() > 1 && whole[0] == '0')) return false;
    if (point != std::string_view::npos) {
      if (point > exponent) return false;
      plain += '.';
      const std::size_t end = std::min(exponent, rest.size());
      if (!take_digits(rest.substr(point + 1, end - point - 1), plain, 10)) return false;
    }
    if (exponent != std::string_view::npos) {
      std::string_view power = rest.substr(exponent + 1);
      plain += 'e';
      if (power.starts_with('+') || power.starts_with('-')) {
        plain += power[0];
        power.remove_prefix(1);
      }
      if (!take_digits(power, plain, 10)) return false;
    }
    out.value = std::strtod(plain.c_str(), nullptr);
    return true;
  }

  bool read_literal(std::string& out) {
    const std::size_t start = at_++;
    for (; !at_end() && peek() != '\''; ++at_)
      if (!take_character(out, start)) return false;
    return end_text(start, 1);
  }

  bool read_basic(std::string& out) {
    const std::size_t start = at_++;
    while (!at_end() && peek() != '"') {
      if (peek() == '\\') {
        if (!read_escape(out)) return false;
        continue;
      }
      if (!take_character(out, start)) return false;
      ++at_;
    }
    return end_text(start, 1);
  }

  // Requires: not at the end. Leaves the place where it is.
  bool take_character(std::string& out, std::size_t start) {
    if (at_newline()) return fail_at("this text does not end on its line", start);
    if (is_control(peek())) return fail("a control character stands in a text");
    out += peek();
    return true;
  }

  bool end_text(std::size_t start, std::size_t quotes) {
    if (at_end()) return fail_at("this text does not end", start);
    at_ += quotes;
    return true;
  }

  // Texts of several lines; a line end right behind the opening quotes is not part of it.
  bool read_lines(std::string& out, char quote) {
    const std::string close(3, quote);
    const std::size_t start = at_;
    at_ += 3;
    if (at_newline()) at_ += peek() == '\n' ? 1 : 2;
    while (!at_end()) {
      if (starts(close)) {
        // One or two quotes may stand before the closing ones.
        for (int more = 0; more < 2 && peek(3) == quote; ++more, ++at_) out += quote;
        return end_text(start, 3);
      }
      if (quote == '"' && peek() == '\\') {
        if (!read_escape_of_lines(out)) return false;
        continue;
      }
      if (at_newline()) {
        if (peek() == '\r') ++at_;
        out += '\n';
      } else if (is_control(peek())) {
        return fail("a control character stands in a text");
      } else {
        out += peek();
      }
      ++at_;
    }
    return end_text(start, 3);
  }

  // A backslash at the end of a line joins it with the next word.
  bool read_escape_of_lines(std::string& out) {
    std::size_t ahead = 1;
    while (peek(ahead) == ' ' || peek(ahead) == '\t') ++ahead;
    const bool joins = peek(ahead) == '\n' || (peek(ahead) == '\r' && peek(ahead + 1) == '\n');
    if (!joins) return read_escape(out);
    at_ += ahead;
    while (peek() == ' ' || peek() == '\t' || at_newline()) at_ += starts("\r\n") ? 2 : 1;
    return true;
  }

  bool read_escape(std::string& out) {
    constexpr std::string_view kNames = "btnfr\"\\";
    constexpr std::string_view kValues = "\b\t\n\f\r\"\\";
    const std::size_t start = at_++;
    const char c = peek();
    ++at_;
    if (const std::size_t i = kNames.find(c); c != '\0' && i != std::string_view::npos) {
      out += kValues[i];
      return true;
    }
    if (c != 'u' && c != 'U') return fail_at("no escape of TOML; write \\\\ for a backslash", start);
    std::uint32_t code = 0;
    for (int digits = c == 'u' ? 4 : 8; digits > 0; --digits, ++at_) {
      if (std::isxdigit(static_cast<unsigned char>(peek())) == 0)
        return fail_at("an escape has four hex digits behind \\u, eight behind \\U", start);
      code =
          code << 4 | static_cast<std::uint32_t>(peek() <= '9' ? peek() - '0' : (peek() | 0x20) - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000))
      return fail_at("no character has this number", start);
    const int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    constexpr std::uint32_t kHeads[] = {0, 0xC0, 0xE0, 0xF0};
    out += static_cast<char>(kHeads[more] | code >> (6 * more));
    for (int i = more; i-- > 0;) out += static_cast<char>(0x80 | ((code >> (6 * i)) & 0x3F));
    return true;
  }

  std::string_view name_;
  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t known_ = 0;
  std::size_t line_start_ = 0;
  std::size_t line_ = 1;
  std::vector<TomlTable> tables_;
  std::set<std::string, std::less<>> keys_;     // of the last table
  std::set<std::string, std::less<>> singles_;  // names of tables
  std::set<std::string, std::less<>> items_;    // names of arrays of tables
  std::optional<Error> fault_;
};

}  // namespace

std::string_view TomlValue::kind() const {
  constexpr std::string_view kKinds[] = {"a text", "an integer", "a float", "a boolean", "an array"};
  static_assert(std::size(kKinds) == std::variant_size_v<decltype(value)>, "every kind has a name");
  return kKinds[value.index()];
}

Result<std::vector<TomlTable>> read_toml(std::string_view name, std::string_view text) {
  return TomlReader(name, text).read();
}

Error toml_error(std::string_view name, const TomlPlace& place, std::string_view what) {
  return make_error(ErrorCode::kInvalidArgument, "%s:%zu:%zu: %s", printable(name).c_str(), place.line,
                    place.column, std::string(what).c_str());
}

}  // namespace ashlar::service
