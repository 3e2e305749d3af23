// What the names in a list of UCX transports mean.
//
// Thread safety: free functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::backend::ucx {

// Errors: kInvalidArgument: not a list of names, or one without tcp.
Result<void> check_transports(std::string_view list);
// The parts of a list with commas.
std::vector<std::string> split_list(std::string_view list);
// Whether processes of one machine would talk over memory, where UCX cannot watch its peers.
bool shares_memory(std::string_view list);

}  // namespace ashlar::backend::ucx
