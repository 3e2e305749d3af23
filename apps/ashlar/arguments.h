// What the parser of arguments is told to check, and how its errors are said.
//
// Thread safety: free functions.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace ashlar::apps {

// Digits alone, in the range. The message has the range, not the value.
CLI::Validator whole_number(std::uint64_t least = 0,
                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
// A decimal number in the range; neither infinite nor none.
CLI::Validator real_number(double least, double most);

// Why the arguments are not understood. Values behind '=', values of options that are not known and logins
// are not shown.
std::string parse_problem(const CLI::App& program, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments);

}  // namespace ashlar::apps
