// Arguments: the command line of a peer program, the same for all of them (README.md).
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "ashlar/base/result.h"

namespace ashlar::peers {

struct Arguments {
  std::string workload;
  std::string backend;
  std::string op;
  bool frequency = true;
  bool events = false;
  std::size_t threads = 1;
  std::size_t rounds = 0;  // how often the operation goes over its chains; 0 = the operation's own default

  // Errors: kInvalidArgument, naming the option.
  static Result<Arguments> parse(std::span<char*> args);
  static const char* usage() noexcept;
};

}  // namespace ashlar::peers
