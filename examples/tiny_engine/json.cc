#include "tiny_engine/json.h"

#include <charconv>
#include <cstddef>

namespace tiny_engine {
namespace {

using ashlar::Error;
using ashlar::ErrorCode;
using ashlar::Result;

constexpr int kMaxDepth = 64;

void append_utf8(std::string& out, std::uint32_t code) {
  const auto add = [&](std::uint32_t byte) { out += static_cast<char>(byte); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xC0 | code >> 6);
    add(0x80 | (code & 0x3F));
  } else if (code < 0x10000) {
    add(0xE0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  } else {
    add(0xF0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3F));
    add(0x80 | (code >> 6 & 0x3F));
    add(0x80 | (code & 0x3F));
  }
}

// The bytes of the character at the front; 0: no valid UTF-8.
std::size_t character_bytes(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return 1;
  const std::size_t bytes = lead >= 0xC2 && lead < 0xE0   ? 2
                            : lead >= 0xE0 && lead < 0xF0 ? 3
                            : lead >= 0xF0 && lead < 0xF5 ? 4
                                                          : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i)
    if ((at(i) & 0xC0) != 0x80) return 0;
  const bool is_wrong = (lead == 0xE0 && at(1) < 0xA0) || (lead == 0xED && at(1) >= 0xA0) ||
                        (lead == 0xF0 && at(1) < 0x90) || (lead == 0xF4 && at(1) >= 0x90);
  return is_wrong ? 0 : bytes;
}

class JsonParser {
 public:
  explicit JsonParser(std::string_view text) : text_(text) {}

  Result<Json> run() {
    Json json;
    if (value(json, 0)) {
      spaces();
      if (at_ == text_.size()) return json;
    }
    return Error(ErrorCode::kInvalidArgument, "the body is not JSON: byte " + std::to_string(at_));
  }

 private:
  void spaces() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(std::string_view word) {
    if (!text_.substr(at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  bool value(Json& out, int depth) {
    spaces();
    if (at_ == text_.size() || depth > kMaxDepth) return false;
    switch (text_[at_]) {
      case '{':
        return object(out, depth);
      case '[':
        return list(out, depth);
      case '"':
        out.kind = Json::Kind::kText;
        return text(out.text);
      case 't':
        out.kind = Json::Kind::kBool;
        out.truth = true;
        return take("true");
      case 'f':
        out.kind = Json::Kind::kBool;
        return take("false");
      case 'n':
        return take("null");
      default:
        out.kind = Json::Kind::kNumber;
        return number(out.text);
    }
  }
  // After an item: true for another one, with `more` saying whether there is one.
  bool next(char end, bool& more) {
    spaces();
    more = take(",");
    return more || take(std::string_view(&end, 1));
  }
  bool object(Json& out, int depth) {
    out.kind = Json::Kind::kObject;
    ++at_;
    spaces();
    if (take("}")) return true;
    for (bool more = true; more;) {
      spaces();
      if (!text(out.names.emplace_back())) return false;
      spaces();
      if (!take(":") || !value(out.items.emplace_back(), depth + 1) || !next('}', more)) return false;
    }
    return true;
  }
  bool list(Json& out, int depth) {
    out.kind = Json::Kind::kList;
    ++at_;
    spaces();
    if (take("]")) return true;
    for (bool more = true; more;)
      if (!value(out.items.emplace_back(), depth + 1) || !next(']', more)) return false;
    return true;
  }
  bool digits() {
    const std::size_t begin = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > begin;
  }
  bool number(std::string& out) {
    const std::size_t begin = at_;
    take("-");
    if (!take("0") && !digits()) return false;
    if (take(".") && !digits()) return false;
    if (take("e") || take("E")) {
      if (!take("+")) take("-");
      if (!digits()) return false;
    }
    out = text_.substr(begin, at_ - begin);
    return true;
  }
  bool hex(std::uint32_t& code) {
    if (text_.size() - at_ < 4) return false;
    const char* begin = text_.data() + at_;
    const auto [end, wrong] = std::from_chars(begin, begin + 4, code, 16);
    if (wrong != std::errc() || end != begin + 4) return false;
    at_ += 4;
    return true;
  }
  bool escape(std::string& out) {
    if (at_ == text_.size()) return false;
    const char letter = text_[at_++];
    constexpr std::string_view kLetters = "\"\\/bfnrt";
    constexpr std::string_view kMeanings = "\"\\/\b\f\n\r\t";
    if (const std::size_t found = kLetters.find(letter); found != std::string_view::npos) {
      out += kMeanings[found];
      return true;
    }
    std::uint32_t code = 0;
    if (letter != 'u' || !hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && take("\\u")) {
      std::uint32_t low = 0;
      if (!hex(low)) return false;
      code = low >= 0xDC00 && low < 0xE000 ? 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00) : 0xFFFD;
    }
    append_utf8(out, code >= 0xD800 && code < 0xE000 ? 0xFFFD : code);
    return true;
  }
  bool text(std::string& out) {
    if (!take("\"")) return false;
    while (at_ < text_.size()) {
      const char letter = text_[at_++];
      if (letter == '"') return true;
      if (static_cast<unsigned char>(letter) < 0x20) return false;
      if (letter != '\\') {
        out += letter;
      } else if (!escape(out)) {
        return false;
      }
    }
    return false;
  }

  std::string_view text_;
  std::size_t at_ = 0;
};

}  // namespace

Result<Json> Json::parse(std::string_view text) {
  return JsonParser(text).run();
}

const Json& Json::operator[](std::string_view name) const {
  static const Json kNone;
  for (std::size_t i = names.size(); i-- > 0;)
    if (names[i] == name) return items[i];
  return kNone;
}

std::optional<std::uint64_t> Json::whole_number() const {
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  if (kind != Kind::kNumber) return std::nullopt;
  const auto [stop, wrong] = std::from_chars(text.data(), end, value);
  if (wrong != std::errc() || stop != end || value > std::uint64_t{1} << 53) return std::nullopt;
  return value;
}

void Json::write(std::string& out) const {
  switch (kind) {
    case Kind::kNull:
      out += "null";
      return;
    case Kind::kBool:
      out += truth ? "true" : "false";
      return;
    case Kind::kNumber:
      out += text;
      return;
    case Kind::kText:
      out += json_quoted(text);
      return;
    case Kind::kList:
      out += '[';
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ',';
        items[i].write(out);
      }
      out += ']';
      return;
    case Kind::kObject:
      out += '{';
      for (std::size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out += ',';
        out += json_quoted(names[i]) + ":";
        items[i].write(out);
      }
      out += '}';
      return;
  }
}

std::string json_quoted(std::string_view text) {
  std::string out = "\"";
  while (!text.empty()) {
    const auto first = static_cast<unsigned char>(text[0]);
    std::size_t bytes = character_bytes(text);
    if (bytes == 0) {
      out += "\\ufffd";
      bytes = 1;
    } else if (first < 0x20 || first == 0x7F) {
      out += "\\u00";
      out += "0123456789abcdef"[first >> 4];
      out += "0123456789abcdef"[first & 15];
    } else {
      if (first == '"' || first == '\\') out += '\\';
      out += text.substr(0, bytes);
    }
    text.remove_prefix(bytes);
  }
  return out + "\"";
}

}  // namespace tiny_engine
