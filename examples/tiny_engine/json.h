// Json: a JSON value, as the HTTP face of the tiny engine reads it. Numbers keep their text, members their
// order: write() gives one text for one value, whatever spaces and escapes it was read from.
//
// Thread safety: plain values.
// Complexity:    parse() is O(text); values nest 64 deep at most.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ashlar/base/result.h"

namespace tiny_engine {

struct Json {
  enum class Kind : std::uint8_t { kNull, kBool, kNumber, kText, kList, kObject };

  Kind kind = Kind::kNull;
  bool truth = false;
  std::string text = {};                // of a text, decoded; of a number, as it stands
  std::vector<Json> items = {};         // of a list; of an object, the values of its members
  std::vector<std::string> names = {};  // of the members

  // Errors: kInvalidArgument: not JSON, with the byte.
  static ashlar::Result<Json> parse(std::string_view text);
  void write(std::string& out) const;

  // A member; null where there is none, also of a value that is no object. The last one of a name counts.
  const Json& operator[](std::string_view name) const;
  bool is(Kind which) const noexcept { return kind == which; }
  // The whole number 0..2^53; nullopt for anything else.
  std::optional<std::uint64_t> whole_number() const;
};

// The text in quotes, always valid UTF-8: a byte that is none becomes U+FFFD.
std::string json_quoted(std::string_view text);

}  // namespace tiny_engine
