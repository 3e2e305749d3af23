// Messages of the program to its user.
#pragma once

#include <string_view>

namespace ashlar::apps {

// Writes lines to standard error. Control characters in untrusted text are escaped (ashlar/base/log.h).
void say(std::string_view lines);

}  // namespace ashlar::apps
