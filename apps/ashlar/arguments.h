// Validators for the argument parser, and the texts of its errors.
//
// Thread safety: free functions.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::apps {

// Digits only, in the range. The message has the range, not the value.
CLI::Validator whole_number(std::uint64_t least = 0,
                            std::uint64_t most = std::numeric_limits<std::uint64_t>::max());
// A finite decimal number in the range.
CLI::Validator real_number(double least, double most);

// "{a,b}", as the parser describes choices: what help, manual pages and shells show.
std::string in_braces(const std::vector<std::string>& choices);

// A name that this function can read; the message is its error's. `choices`: those there are, for help and
// completion; empty: too many.
template <class Parse>
CLI::Validator read_by(Parse parse, const std::vector<std::string>& choices = {}) {
  return {[parse](std::string& text) {
            const auto read = parse(text);
            return read ? std::string() : read.error().message();
          },
          choices.empty() ? "" : in_braces(choices)};
}

// Ends the parsing: arguments that are right each and wrong together. For the callbacks of commands.
[[noreturn]] void refuse_arguments(const Error& error);

// Why the arguments were rejected. Hides values after '=', values of unknown options, and logins.
std::string parse_problem(const CLI::App& program, const CLI::ParseError& error,
                          const std::vector<std::string>& arguments);

}  // namespace ashlar::apps
