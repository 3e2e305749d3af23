// The incarnation number of a program, for the streams it publishes.
//
// Receivers drop events of an earlier incarnation, so a later one must have a larger number, even when the
// clock was set back in between. The last number is kept in a file.
//
// Thread safety: free functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ashlar/base/result.h"

namespace ashlar::apps {

// The default file: $XDG_STATE_HOME/ashlar/incarnation, or below ~/.local/state. Empty if neither is set.
std::optional<std::string> incarnation_file();

// The larger of `now_ms` and the number in the file plus one, which is written to the file before it is
// returned. Creates missing folders. Several programs may share a file. Errors: kIo; kCorruption: the file
// has other content.
Result<std::uint64_t> next_incarnation(const std::string& path, std::uint64_t now_ms);

}  // namespace ashlar::apps
