// The indexes that threads may share, for the concurrency suite. A new structure is added in
// concurrent_cases.cc.
#pragma once

#include <ostream>
#include <vector>

#include "index/concurrent/concurrent_run.h"

namespace ashlar::index::concurrent {

struct ConcurrentCase {
  IndexCase index;
  ConcurrentRun::FindMany find_many;  // where the index has such a call
};

std::vector<ConcurrentCase> concurrent_cases();

inline std::ostream& operator<<(std::ostream& out, const ConcurrentCase& one) {
  return out << one.index;
}

}  // namespace ashlar::index::concurrent
