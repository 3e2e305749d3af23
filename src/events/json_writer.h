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

// The text in quotes, in UTF-8 whatever its bytes are: each byte that is not UTF-8 becomes \ufffd. Control
// characters, DEL and U+0080 to U+009F included, U+2028, U+2029 and those that turn the direction of text are
// spelled out: a terminal that shows the text does not obey them.
void append_quoted(std::string& out, std::string_view text);

}  // namespace ashlar::events
