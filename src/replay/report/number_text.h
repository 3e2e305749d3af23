// Numbers as people read them.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace ashlar::replay {

template <class... Args>
std::string formatted(const char* format, Args... args) {
  std::array<char, 128> text{};
  const int length = std::snprintf(text.data(), text.size(), format, args...);
  return std::string(text.data(), static_cast<std::size_t>(std::max(0, std::min(length, 127))));
}

inline std::string percent(double share) {
  return formatted("%.1f %%", 100 * share);
}

// "1,234,567".
inline std::string grouped(std::uint64_t number) {
  std::string text = std::to_string(number);
  for (std::size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, ",");
  return text;
}

// Three digits and a letter: "1.23k", "45.6M".
inline std::string brief(double number) {
  constexpr std::string_view kLetters = " kMGTP";
  std::size_t letter = 0;
  while (std::fabs(number) >= 999.5 && letter + 1 < kLetters.size()) {
    number /= 1'000;
    ++letter;
  }
  const int decimals = letter == 0 && number == std::floor(number) ? 0
                       : number < 9.995                            ? 2
                       : number < 99.95                            ? 1
                                                                   : 0;
  std::string text = formatted("%.*f", decimals, number);
  if (text.find('.') != std::string::npos) text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  if (letter > 0) text += kLetters[letter];
  return text;
}

// "1.23 kB", "45.6 GB".
inline std::string bytes(double number) {
  std::string text = brief(number);
  const bool has_letter = text.back() < '0' || text.back() > '9';
  return has_letter ? text.insert(text.size() - 1, " ") + "B" : text + " B";
}

// "5.2 ms", "3.1 s", "12 min", "2.5 h".
inline std::string duration(double ms) {
  if (ms <= 0) return "0";
  if (ms < 1'000) return formatted("%.*f ms", ms < 10 ? 1 : 0, ms);
  if (ms < 120'000) return formatted("%.*f s", ms < 10'000 ? 1 : 0, ms / 1'000);
  if (ms < 7'200'000) return formatted("%.*f min", ms < 600'000 ? 1 : 0, ms / 60'000);
  return formatted("%.1f h", ms / 3'600'000);
}

}  // namespace ashlar::replay
