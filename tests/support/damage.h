// damage(): what can happen to the bytes of a message.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "ashlar/base/random.h"

namespace ashlar::testing {

// Heads of msgpack values, ends of their ranges, and what JSON is made of.
inline constexpr std::uint8_t kTelling[] = {0x00, 0x7F, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC0, 0xC1, 0xC4,
                                            0xC6, 0xC7, 0xCA, 0xCB, 0xCC, 0xCD, 0xCE, 0xCF, 0xD0, 0xD3, 0xD8,
                                            0xD9, 0xDB, 0xDC, 0xDD, 0xDE, 0xDF, 0xE0, 0xFF, '"',  '\\', '{',
                                            '}',  '[',  ']',  ',',  ':',  '-',  '0',  '9',  'u'};

// One to four accidents: bits, bytes that mean something, parts gone, doubled or cut off.
inline void damage(std::vector<std::byte>& bytes, Random& random) {
  for (std::uint64_t n = 1 + random.below(4); n > 0; --n) {
    const std::size_t at = bytes.empty() ? 0 : random.below(bytes.size());
    const auto spot = bytes.begin() + static_cast<std::ptrdiff_t>(at);
    const auto telling = static_cast<std::byte>(kTelling[random.below(std::size(kTelling))]);
    switch (random.below(6)) {
      case 0:
        if (!bytes.empty()) *spot ^= static_cast<std::byte>(1u << random.below(8));
        break;
      case 1:
        if (!bytes.empty()) *spot = telling;
        break;
      case 2:
        bytes.insert(spot, 1 + random.below(6), telling);
        break;
      case 3:
        bytes.erase(spot, spot + static_cast<std::ptrdiff_t>(std::min(bytes.size() - at, random.below(9))));
        break;
      case 4:
        bytes.resize(at);
        break;
      default: {  // a part stands twice
        const std::vector<std::byte> part(
            spot, spot + static_cast<std::ptrdiff_t>(std::min<std::size_t>(bytes.size() - at, 40)));
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(random.below(bytes.size() + 1)),
                     part.begin(), part.end());
      }
    }
  }
}

}  // namespace ashlar::testing
