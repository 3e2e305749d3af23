#include "events/json_writer.h"

#include <cstddef>

namespace ashlar::events {
namespace {

struct Character {
  std::size_t bytes = 1;
  char32_t code = 0xFFFD;  // stands for a byte that is not UTF-8
};

// The character at the front, by Unicode's table of well-formed sequences: no overlong forms, no surrogates,
// nothing past U+10FFFF.
Character first_of(std::string_view text) {
  const auto at = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {.bytes = 1, .code = lead};
  const std::size_t bytes = lead >= 0xC2 && lead < 0xE0   ? 2
                            : lead >= 0xE0 && lead < 0xF0 ? 3
                            : lead >= 0xF0 && lead < 0xF5 ? 4
                                                          : 0;
  if (bytes == 0 || bytes > text.size()) return {};
  char32_t code = lead & (0xFFU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((at(i) & 0xC0) != 0x80) return {};
    code = code << 6 | (at(i) & 0x3FU);
  }
  const bool is_overlong = (bytes == 3 && code < 0x800) || (bytes == 4 && code < 0x10000);
  if (is_overlong || (code >= 0xD800 && code < 0xE000) || code > 0x10FFFF) return {};
  return {.bytes = bytes, .code = code};
}

// Characters that a terminal or an editor interprets instead of showing: controls, line ends, and those that
// change the direction of text.
bool is_obeyed(char32_t code) {
  return code < 0x20 || (code >= 0x7F && code < 0xA0) || code == 0x061C || code == 0x200E || code == 0x200F ||
         (code >= 0x2028 && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
}

}  // namespace

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) {
    const Character character = first_of(text);
    const bool is_valid = character.code != 0xFFFD || character.bytes > 1;
    if (!is_valid || is_obeyed(character.code)) {
      out += "\\u";
      for (int shift = 12; shift >= 0; shift -= 4) out += "0123456789abcdef"[character.code >> shift & 15];
    } else {
      if (character.code == '"' || character.code == '\\') out += '\\';
      out += text.substr(0, character.bytes);
    }
    text.remove_prefix(character.bytes);
  }
  out += '"';
}

}  // namespace ashlar::events
