#include "apps/ashlar/console.h"

#include <cstdio>
#include <string>

#include "ashlar/base/log.h"

namespace ashlar::apps {

void say(std::string_view lines) {
  std::fprintf(stderr, "%s\n", printable_lines(lines).c_str());
}

bool flush_output() {
  return std::fflush(stdout) == 0 && std::ferror(stdout) == 0;
}

}  // namespace ashlar::apps
