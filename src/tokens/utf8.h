// is_utf8(): whether bytes are well-formed UTF-8 (no overlong forms, no surrogates, at most U+10FFFF).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace ashlar::tokens {

constexpr bool is_utf8(std::string_view text) noexcept {
  for (std::size_t i = 0; i < text.size();) {
    const auto head = static_cast<std::uint8_t>(text[i]);
    if (head < 0x80) {
      ++i;
      continue;
    }
    const std::size_t more = head >= 0xF0 ? 3 : head >= 0xE0 ? 2 : 1;
    if (head < 0xC2 || head > 0xF4 || text.size() - i <= more) return false;
    std::uint32_t code = head & (0x3Fu >> more);
    for (std::size_t k = 1; k <= more; ++k) {
      const auto byte = static_cast<std::uint8_t>(text[i + k]);
      if ((byte & 0xC0) != 0x80) return false;
      code = code << 6 | (byte & 0x3F);
    }
    constexpr std::uint32_t kLeast[] = {0, 0x80, 0x800, 0x10000};
    if (code < kLeast[more] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    i += 1 + more;
  }
  return true;
}

}  // namespace ashlar::tokens
