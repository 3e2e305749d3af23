// Bytes as hexadecimal digits, and back.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::backend::ucx {

inline std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string out;
  for (const std::byte one : bytes) {
    out += kDigits[std::to_integer<unsigned>(one) >> 4];
    out += kDigits[std::to_integer<unsigned>(one) & 15];
  }
  return out;
}

inline std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> out;
  for (std::size_t i = 0; i + 1 < text.size(); i += 2)
    out.push_back(static_cast<std::byte>(std::stoul(text.substr(i, 2), nullptr, 16)));
  return out;
}

}  // namespace ashlar::backend::ucx
