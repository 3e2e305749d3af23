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

// The text in quotes, always valid UTF-8: each byte that is not UTF-8 becomes \ufffd. Control characters, DEL
// and U+0080 to U+009F included, U+2028, U+2029 and those that change the direction of text are escaped, so
// that a terminal does not interpret them.
void append_quoted(std::string& out, std::string_view text);

}  // namespace ashlar::events
