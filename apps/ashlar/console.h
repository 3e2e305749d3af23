// Messages of the program to its user.
#pragma once

#include <string_view>

namespace ashlar::apps {

// Writes lines to standard error. Control characters in untrusted text are escaped (ashlar/base/log.h).
void say(std::string_view lines);

// Whether everything that was printed to standard output so far is written. main() asks at the end: a command
// need not, unless it goes on for long.
bool flush_output();

}  // namespace ashlar::apps
