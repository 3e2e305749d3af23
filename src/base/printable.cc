#include "ashlar/base/log.h"

#include <algorithm>

namespace ashlar {
namespace {

// The length of the character at the front; 0 if it is not UTF-8. Overlong forms count as UTF-8; a terminal
// shows none of them as a control character.
std::size_t character_bytes(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text.front());
  const std::size_t size = lead < 0x80             ? 1
                           : (lead & 0xE0) == 0xC0 ? 2
                           : (lead & 0xF0) == 0xE0 ? 3
                           : (lead & 0xF8) == 0xF0 ? 4
                                                   : 0;
  if (size > text.size()) return 0;
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; };
  return std::ranges::all_of(text.substr(std::min<std::size_t>(1, size), size == 0 ? 0 : size - 1), continues)
             ? size
             : 0;
}

// Changes the direction of text: U+061C, U+200E, U+200F, U+202A to U+202E, U+2066 to U+2069.
bool turns_text(std::string_view character) {
  if (character.size() == 2) return character == "\xD8\x9C";
  if (character.size() != 3) return false;
  const auto last = static_cast<unsigned char>(character[2]);
  if (character.starts_with("\xE2\x80"))
    return last == 0x8E || last == 0x8F || (last >= 0xAA && last <= 0xAE);
  return character.starts_with("\xE2\x81") && last >= 0xA6 && last <= 0xA9;
}

bool is_control(std::string_view character) {
  const auto lead = static_cast<unsigned char>(character.front());
  if (character.size() == 1) return lead < 0x20 || lead == 0x7F;
  // U+0080 to U+009F, and every overlong form of two bytes.
  const auto second = static_cast<unsigned char>(character[1]);
  return lead < 0xC2 || (lead == 0xC2 && second < 0xA0) || turns_text(character);
}

std::string escaped(std::string_view text, bool lines) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const std::size_t size = character_bytes(text);
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, size));
    const bool kept = (lines && character == "\n") || (size != 0 && !is_control(character));
    if (kept) out += character;
    for (std::size_t i = 0; !kept && i < character.size(); ++i) {
      const auto byte = static_cast<unsigned char>(character[i]);
      out += "\\x";
      out += kDigits[byte >> 4];
      out += kDigits[byte & 15];
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) {
  return escaped(text, false);
}

std::string printable_lines(std::string_view text) {
  return escaped(text, true);
}

}  // namespace ashlar
