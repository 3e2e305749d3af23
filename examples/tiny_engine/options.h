// Options of the command line of the programs here: flags, and options with a value after them.
//
// Thread safety: plain functions.
#pragma once

#include <charconv>
#include <functional>
#include <limits>
#include <map>
#include <string>
#include <string_view>

#include "ashlar/base/result.h"

namespace tiny_engine {

using OptionReader = std::function<ashlar::Result<void>(std::string_view option, std::string_view value)>;

struct OptionTable {
  std::map<std::string_view, bool*> flags;  // set where they stand
  std::map<std::string_view, OptionReader> values;
};

template <class Number>
OptionReader number_option(Number& out, Number most = std::numeric_limits<Number>::max()) {
  return [&out, most](std::string_view option, std::string_view text) -> ashlar::Result<void> {
    Number value = 0;
    const auto [end, wrong] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (wrong != std::errc() || end != text.data() + text.size() || value > most)
      return ashlar::Error(ashlar::ErrorCode::kInvalidArgument,
                           std::string(option) + " needs a number up to " + std::to_string(most) + ", not '" +
                               std::string(text) + "'");
    out = value;
    return {};
  };
}

inline OptionReader text_option(std::string& out) {
  return [&out](std::string_view, std::string_view text) -> ashlar::Result<void> {
    out = text;
    return {};
  };
}

// Returns whether --help stands there; nothing behind it is read. Errors: kInvalidArgument, with the option.
inline ashlar::Result<bool> read_options(int count, char** words, const OptionTable& table) {
  using ashlar::Error;
  using ashlar::ErrorCode;
  for (int i = 1; i < count; ++i) {
    const std::string_view option = words[i];
    if (option == "--help") return true;
    if (const auto flag = table.flags.find(option); flag != table.flags.end()) {
      *flag->second = true;
      continue;
    }
    const auto value = table.values.find(option);
    if (value == table.values.end())
      return Error(ErrorCode::kInvalidArgument, "there is no option " + std::string(option));
    if (++i == count) return Error(ErrorCode::kInvalidArgument, std::string(option) + " needs a value");
    ASHLAR_RETURN_IF_ERROR(value->second(option, words[i]));
  }
  return false;
}

}  // namespace tiny_engine
