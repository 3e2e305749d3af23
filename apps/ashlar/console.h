// What the program says to a person.
#pragma once

#include <string_view>

namespace ashlar::apps {

// Writes lines to standard error. Control characters of text from outside are spelled out
// (ashlar/base/printable.h).
void say(std::string_view lines);

}  // namespace ashlar::apps
