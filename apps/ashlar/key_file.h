// The key of a hash scheme, from a file.
//
// Thread safety: free function.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::apps {

// All bytes of the file. Errors: kNotFound: it cannot be opened; kInvalidArgument: not a plain file, empty,
// or longer than a key; kIo.
Result<std::vector<std::uint8_t>> read_key_file(const std::string& path);

}  // namespace ashlar::apps
