// JSON text, appended to a string.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ashlar::events {

inline void append_number(std::string& out, std::uint64_t value) {
  char digits[20];
  std::size_t count = 0;
  do {
    digits[count++] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  while (count > 0) out += digits[--count];
}

// The text in quotes. Control characters, DEL and U+0080 to U+009F included, are spelled out: a terminal that shows the text does
// not obey them. Other bytes from 0x80 on are written as they are.
inline void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  for (std::size_t i = 0; i < text.size(); ++i) {
    auto byte = static_cast<unsigned char>(text[i]);
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && (static_cast<unsigned char>(text[i + 1]) & 0xE0) == 0x80;
    if (c1) byte = static_cast<unsigned char>(text[++i]);
    if (c1 || byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += "0123456789abcdef"[byte >> 4];
      out += "0123456789abcdef"[byte & 15];
    } else {
      if (byte == '"' || byte == '\\') out += '\\';
      out += text[i];
    }
  }
  out += '"';
}

}  // namespace ashlar::events
