// Bytes written by hand: hex digits, and text between apostrophes. Spaces between them mean nothing.
#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

namespace ashlar::testing {

inline std::vector<std::byte> wire(std::string_view text) {
  std::vector<std::byte> bytes;
  bool quoted = false;
  int high = -1;
  for (const char c : text) {
    if (c == '\'') {
      quoted = !quoted;
    } else if (quoted) {
      bytes.push_back(static_cast<std::byte>(c));
    } else if (c != ' ') {
      const int digit = c >= 'a' ? c - 'a' + 10 : c - '0';
      if (high < 0) {
        high = digit;
      } else {
        bytes.push_back(static_cast<std::byte>(high * 16 + digit));
        high = -1;
      }
    }
  }
  return bytes;
}

}  // namespace ashlar::testing
