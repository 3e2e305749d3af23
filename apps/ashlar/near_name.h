// What somebody may have meant: the nearest of a few known words.
//
// Thread safety: free functions.
#pragma once

#include <span>
#include <string>
#include <string_view>

namespace ashlar::apps {

// The candidate with the fewest changes (letters put in, left out, replaced, or two exchanged), or that
// `word` is the beginning of; empty when none is near: a third of the letters may differ.
std::string near_name(std::string_view word, std::span<const std::string> candidates);

}  // namespace ashlar::apps
