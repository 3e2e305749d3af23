// Text from outside as it may be shown on a terminal or written to a log.
#pragma once

#include <string>
#include <string_view>

namespace ashlar {

// Control characters, those of C1 and DEL included, those that turn the direction of text, and bytes that are
// not UTF-8 become \xNN; everything else stays. A newline stays in a text of lines.
std::string printable(std::string_view text);
std::string printable_lines(std::string_view text);

}  // namespace ashlar
