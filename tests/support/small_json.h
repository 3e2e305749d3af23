// Json: a JSON value, read from a text that is known to be well formed (the notes beside recordings). Numbers
// are doubles.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace ashlar::testing {

struct Json {
  enum class Kind { kNull, kBool, kNumber, kText, kList, kMap };
  Kind kind = Kind::kNull;
  double number = 0;
  std::string text;
  std::vector<Json> list;
  std::map<std::string, Json> map;

  static Json parse(std::string_view text) {
    const char* at = text.data();
    return value(at, text.data() + text.size());
  }
  // Null where there is none.
  const Json& operator[](const std::string& key) const {
    static const Json kNone;
    const auto found = map.find(key);
    return found == map.end() ? kNone : found->second;
  }

 private:
  static void skip(const char*& at, const char* end) {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r' || *at == ',' || *at == ':'))
      ++at;
  }
  static Json value(const char*& at, const char* end) {
    Json json;
    skip(at, end);
    if (at >= end) return json;
    if (*at == '{') {
      json.kind = Kind::kMap;
      for (++at, skip(at, end); at < end && *at != '}'; skip(at, end)) {
        std::string key = value(at, end).text;
        json.map[std::move(key)] = value(at, end);
      }
      ++at;
    } else if (*at == '[') {
      json.kind = Kind::kList;
      for (++at, skip(at, end); at < end && *at != ']'; skip(at, end)) json.list.push_back(value(at, end));
      ++at;
    } else if (*at == '"') {
      json.kind = Kind::kText;
      for (++at; at < end && *at != '"'; ++at) {
        if (*at == '\\') ++at;
        json.text.push_back(*at);
      }
      ++at;
    } else if (*at == 't' || *at == 'f' || *at == 'n') {
      json.kind = *at == 'n' ? Kind::kNull : Kind::kBool;
      json.number = *at == 't' ? 1 : 0;
      while (at < end && *at >= 'a' && *at <= 'z') ++at;
    } else {
      const std::string digits(at, static_cast<std::size_t>(std::min<std::ptrdiff_t>(end - at, 40)));
      char* stop = nullptr;
      json.kind = Kind::kNumber;
      json.number = std::strtod(digits.c_str(), &stop);
      at += stop > digits.c_str() ? stop - digits.c_str() : 1;
    }
    return json;
  }
};

}  // namespace ashlar::testing
