// Every index that the suites run over. A new structure or setting is added in index_cases.cc, nowhere else.
#pragma once

#include <vector>

#include "index/index_case.h"

namespace ashlar::index::conformance {

// Those that keep what lies behind a removed block.
std::vector<IndexCase> index_cases();
// Those that forget it.
std::vector<IndexCase> orphan_index_cases();
// Both.
std::vector<IndexCase> all_index_cases();

}  // namespace ashlar::index::conformance
