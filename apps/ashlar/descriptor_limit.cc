#include "apps/ashlar/descriptor_limit.h"

#include <sys/resource.h>

#include "ashlar/base/log.h"

namespace ashlar::apps {

namespace {

// Of listeners, events, journals and the libraries.
constexpr std::size_t kOtherFiles = 256;

}  // namespace

void raise_descriptor_limit(std::size_t connections) {
  rlimit files{};
  if (::getrlimit(RLIMIT_NOFILE, &files) != 0) return;
  if (files.rlim_cur < files.rlim_max) {
    const rlimit raised = {.rlim_cur = files.rlim_max, .rlim_max = files.rlim_max};
    if (::setrlimit(RLIMIT_NOFILE, &raised) == 0) files = raised;
  }
  const std::size_t needed = 2 * connections + kOtherFiles;
  if (files.rlim_cur != RLIM_INFINITY && files.rlim_cur < needed)
    ASHLAR_LOG(LogLevel::kWarn, "serve",
               "this process may open %llu files; max_connections = %zu needs %zu (ulimit -Hn, LimitNOFILE=)",
               static_cast<unsigned long long>(files.rlim_cur), connections, needed);
}

}  // namespace ashlar::apps
