// read_toml(): a TOML file as a list of its tables.
//
// Of TOML 1.0 it reads tables, arrays of tables, texts of all four kinds, integers, floats, booleans and
// arrays. Dates, inline tables and dotted keys are refused with a sentence, and so is a key or a table that
// stands twice.
//
// Thread safety: free function; values.
// Complexity:    O(bytes); a table with n keys adds O(n log n).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ashlar/base/result.h"

namespace ashlar::service {

struct TomlPlace {
  std::size_t line = 1;
  std::size_t column = 1;  // in bytes
};

struct TomlValue;
using TomlArray = std::vector<TomlValue>;

struct TomlValue {
  std::variant<std::string, std::int64_t, double, bool, TomlArray> value = false;
  TomlPlace place = {};

  // "a text", "an integer", …: for refusals, which never show the value itself.
  std::string_view kind() const;
};

struct TomlEntry {
  std::string key;
  TomlPlace place;
  TomlValue value;
};

struct TomlTable {
  std::string name;      // empty: the keys before the first table; parts of the name are joined by dots
  bool is_item = false;  // one of an array of tables, [[name]]
  TomlPlace place;
  std::vector<TomlEntry> entries;
};

// `name` of the file, for refusals: "name:line:column: …". The first table is that of the keys before any
// other, even if there are none.
// Errors: kInvalidArgument.
Result<std::vector<TomlTable>> read_toml(std::string_view name, std::string_view text);

// A refusal with its place, in the form of read_toml().
Error toml_error(std::string_view name, const TomlPlace& place, std::string_view what);

}  // namespace ashlar::service
