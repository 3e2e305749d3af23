// The number of a program's life, for the streams it publishes.
//
// Receivers drop what an earlier life says, so a later life must have a larger number, also when the clock
// was set back in between. The last number is kept in a file.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ashlar/base/result.h"

namespace ashlar::apps {

// Where the number is kept unless told otherwise: $XDG_STATE_HOME/ashlar/incarnation, or below
// ~/.local/state. None where neither is set.
std::optional<std::string> incarnation_file();

// The larger of `now_ms` and the number in the file plus one, which is written to the file before it is
// returned. Folders on the way are made. Several programs may share a file. Errors: kIo; kCorruption:
// something else is in the file.
Result<std::uint64_t> next_incarnation(const std::string& path, std::uint64_t now_ms);

}  // namespace ashlar::apps
